"""The commands that look after what is there: verify, repair, clean."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.errors import ConfigError, InputError
from . import completion
from .cli_options import Folder, Json, days_option, print_json
from .units import plural, size

if TYPE_CHECKING:
    from .repair import Repair
    from .store import LocalStore
    from .verify import Verification


def verify(
    folder: Folder,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte against its hash, too.")] = False,
    as_json: Json = False,
) -> None:
    """Check a dataset against its manifest, and every row's invariants."""
    from .console import ConsoleObserver, make_console, say
    from .verify import verify as check

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
    checked = f"{outcome.files:,} files, {outcome.rows:,} rows, {outcome.tokens:,} tokens"
    if not outcome.sound:
        found = plural(len(outcome.findings), "finding")
        say(console, f"{folder} is NOT what its manifest says: {found} in {checked}")
        say(console, f"packtrain repair {folder} makes again what is named, and leaves the rest alone")
        raise typer.Exit(1)
    how = "every byte matches its hash" if deep else "sizes and rows agree; --deep reads every byte against its hash"
    say(console, f"{folder} is sound: {checked}; {how}")


def repair(
    folder: Folder,
    config: Annotated[
        Path | None,
        typer.Option(help="The run's configuration, where its inputs have moved.", show_default="as the run noted it"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make again what is damaged or missing in a finished dataset, byte for byte, and leave the rest alone."""
    from .console import ConsoleObserver, make_console, say
    from .repair import repair as mend

    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        done = mend(folder, config=config, observer=observer)
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
    parts = f"; for them, {plural(done.encoded, 'block')} encoded again" if done.encoded else ""
    say(console, f"{plural(len(done.rebuilt), 'file')} rebuilt{parts}; {done.kept:,} sound and left alone")
    if not done.sound:
        say(console, f"{folder} is NOT sound: what is still wrong is nothing that making files again would mend")
        raise typer.Exit(1)
    say(console, f"{folder} is sound: manifest {done.manifest.hash[:16]}, as before")


def clean(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="A YAML configuration: its cache and its output.", show_default=False),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The cache to clean.",
            show_default="the configuration's",
            autocompletion=completion.path,
        ),
    ] = None,
    out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="An output to clean. Its cache is cleaned only where it is named, too. Repeatable.",
            autocompletion=completion.path,
        ),
    ] = None,
    older_than: Annotated[
        float,
        days_option("Keep parts and copies that were written within so many days, or a time such as 12h.", default="7"),
    ] = 7.0,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove all encoded parts and copies, also those that an output came from.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove encoded parts that nobody needs, and what killed runs left behind. Shows first what it will remove."""
    import sys

    from .clean import KINDS, Cleaning
    from .console import make_console, say

    console = make_console()
    folder, outs = _places(config, cache, out or [])
    with Cleaning(folder, outs, days=older_than, everything=everything) as cleaning:
        items = cleaning.find()
        total = sum(item.bytes for item in items)
        if not as_json:
            for kind, what in KINDS.items():
                mine = [item for item in items if item.kind == kind]
                if mine:
                    if kind == "part" and everything:
                        what = "encoded parts, those that outputs were made from, too"
                    say(console, f"{what}: {plural(len(mine), 'file')}, {size(sum(item.bytes for item in mine))}")
                    for item in mine[:3]:
                        say(console, f"  {item.path} ({size(item.bytes)})")
                    if len(mine) > 3:
                        say(console, f"  and {len(mine) - 3:,} more")
        agreed = yes or (
            not as_json and bool(items) and sys.stdin.isatty() and _agrees(plural(len(items), "file"), total)
        )
        if agreed:
            cleaning.remove(items)
    if as_json:
        listed = [{"kind": item.kind, "path": str(item.path), "bytes": item.bytes} for item in items]
        print_json({"removed": agreed, "bytes": total, "files": listed})
    elif not items:
        say(console, "there is nothing to remove")
    elif agreed:
        say(console, f"removed {plural(len(items), 'file')}, {size(total)}; a run makes again what it needs")
    else:
        say(console, f"nothing was removed: {plural(len(items), 'file')}, {size(total)}; --yes removes them")


def _plain(outcome: "Verification | Repair") -> dict[str, Any]:
    """Its fields as plain data, the manifest apart, which is large and lies in the folder."""
    return {field.name: getattr(outcome, field.name) for field in fields(outcome) if field.name != "manifest"}


def _agrees(files: str, bytes: int) -> bool:
    return typer.confirm(f"Remove {files}, {size(bytes)}?")


def _places(config: Path | None, cache: str | None, outs: list[str]) -> "tuple[LocalStore | None, list[LocalStore]]":
    """The cache and the outputs that are meant.

    Raises:
        ConfigError: nothing says which, or they are not on this machine.
        InputError: a folder is not there.
    """
    from .configfile import load_config
    from .encoding import cache_root
    from .manifests import open_output
    from .store import LocalStore
    from .stores import open_store, resolve_place

    stores = []
    for text in outs:
        store = open_output(text)
        if not isinstance(store, LocalStore):
            raise ConfigError(
                f"--out: {text} is not on this machine; what killed runs left there, a rule of the bucket removes "
                "(AbortIncompleteMultipartUpload)"
            )
        stores.append(store)
    place = resolve_place(cache, Path.cwd()) if cache is not None else None
    if config is not None and config.is_dir():
        raise ConfigError(f"{config} is a folder, and no configuration; give --out {config} to clean an output")
    if config is not None:
        loaded, base = load_config(config)
        own = resolve_place(loaded.out, base)
        place = place or cache_root(loaded, own, base)
        store = open_store(own)
        if isinstance(store, LocalStore):
            stores.append(store)
    if place is None and not stores:
        raise ConfigError("say what to clean: a configuration, --cache, or --out")
    if place is not None and not isinstance(open_store(place), LocalStore):
        raise ConfigError(
            f"the cache {place} is not on this machine, where locks tell who uses what; let the store expire its "
            "objects by a rule of its own, and clean this machine's copies by --cache with the scratch folder"
        )
    for text in outs if cache is None else [*outs, cache]:
        if not Path(resolve_place(text, Path.cwd())).is_dir():
            raise InputError(f"{text} is no folder; check the spelling")
    return (LocalStore(Path(place)) if place is not None else None), stores
