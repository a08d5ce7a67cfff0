"""`packtrain verify` checks a dataset; with `--repair`, it rebuilds the files that it finds wrong."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import plural
from .arguments.options import Folder, Json
from .views.streams import print_json

if TYPE_CHECKING:
    from ..dataset.verify import Verification
    from ..run.repair import Repair


def verify(
    folder: Folder,
    deep: Annotated[bool, typer.Option("--deep", help="Also check every byte against its hash.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Rebuild damaged and missing files, byte for byte; leave the rest alone.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="With --repair: the run's configuration, if its inputs have moved.",
            show_default="the one in the dataset",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a dataset against its manifest, and every row's invariants; with --repair, rebuild what is damaged."""
    if repair:
        _repair(folder, config, as_json)
        return
    if config is not None:
        raise ConfigError("--config: is for --repair; add that, or leave it out")
    from ..dataset.verify import verify as check
    from ..report.printing import say
    from .views.console import ConsoleObserver, make_console

    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        outcome = check(folder, deep=deep, observer=observer)
    if as_json:
        print_json({"folder": folder, "sound": outcome.sound, "deep": deep, **_plain(outcome)})
        if not outcome.sound:
            raise typer.Exit(1)
        return
    for finding in outcome.findings:
        say(console, str(finding))
    checked = ", ".join(
        plural(number, what)
        for number, what in ((outcome.files, "file"), (outcome.rows, "row"), (outcome.tokens, "token"))
    )
    if not outcome.sound:
        found = plural(len(outcome.findings), "finding")
        say(console, f"{folder} does NOT match its manifest: {found} in {checked}")
        say(console, f"packtrain verify {folder} --repair rebuilds the files named above, and leaves the rest alone")
        raise typer.Exit(1)
    how = "every byte matches its hash" if deep else "sizes and rows agree; --deep checks every byte against its hash"
    say(console, f"{folder} is sound: {checked}; {how}")


def _repair(folder: str, config: Path | None, as_json: bool) -> None:
    from ..report.printing import say
    from ..run.repair import repair as rebuild
    from .views.console import ConsoleObserver, make_console

    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        done = rebuild(folder, config=config, observer=observer)
    if as_json:
        print_json({"folder": folder, "sound": done.sound, "manifest": done.manifest.hash, **_plain(done)})
        if not done.sound:
            raise typer.Exit(1)
        return
    for finding in done.findings:
        say(console, f"{'still' if finding in done.remaining else 'was'} wrong: {finding}")
    for what, names in (("rebuilt", done.rebuilt), ("removed", done.removed)):
        for name in names:
            say(console, f"  {what}: {name}")
    say(console, f"{plural(len(done.rebuilt), 'file')} rebuilt; {done.kept:,} sound and left alone")
    if not done.sound:
        say(console, f"{folder} is NOT sound: rebuilding files cannot fix what is still wrong")
        raise typer.Exit(1)
    say(console, f"{folder} is sound: manifest {done.manifest.hash[:16]}, as before")


def _plain(outcome: "Verification | Repair") -> dict[str, Any]:
    """The fields as plain data, without the manifest, which is large and is in the folder."""
    return {field.name: getattr(outcome, field.name) for field in fields(outcome) if field.name != "manifest"}
