"""Around a run: `prep` writes examples alone, `wait`, `verify` and `clean` look after datasets and caches."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError, InputError, did_you_mean
from ...schemas.escape import escape_line
from ...schemas.units import plural, size
from .options import Config, Folder, Format, Input, Json, Set, load_run, measured, no_words
from .streams import print_json, print_line

if TYPE_CHECKING:
    from ..dataset.verify import Verification
    from ..run.prep_only import PrepCounts
    from ..run.repair import Repair
    from ..store.local import LocalStore

_SHOWN = 3


def wait(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder that a run is writing, or its URL.")],
    timeout: Annotated[
        float, measured("DURATION", "Longest wait: seconds, or a time such as 90min.", default="1h")
    ] = 3600.0,
    grace: Annotated[
        float,
        measured("DURATION", "Time without a working process after which the run counts as dead.", default="1min"),
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Wait until a dataset is finished. Fails if its run fails or dies, or if the time runs out."""
    from ...schemas.errors import RunDiedError, StalledError
    from ..dataset.wait import wait as wait_for

    try:
        manifest = wait_for(folder, timeout, grace=grace)
    except (RunDiedError, StalledError) as error:
        if as_json:
            state = "died" if isinstance(error, RunDiedError) else "timeout"
            print_json({"state": state, "message": str(error)}, indent=None)
        raise
    if as_json:
        rows = {name: split.rows for name, split in manifest.splits.items()}
        print_json({"state": "finished", "hash": manifest.hash, "rows": rows}, indent=None)
    else:
        print_line(f"{folder} is finished: manifest {manifest.hash[:16]}")


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
    if config is not None and not repair:
        raise ConfigError("--config: is for --repair; add that, or leave it out")
    from ..dataset.verify import verify as check
    from ..report.printing import say
    from ..run.repair import Repair
    from ..run.repair import repair as rebuild
    from .console import ConsoleObserver, make_console

    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        if repair:
            done: Repair | Verification = rebuild(folder, config=config, observer=observer)
        else:
            done = check(folder, deep=deep, observer=observer)
    if as_json:
        print_json({"folder": folder, "sound": done.sound, "deep": deep, **_plain(done)})
    else:
        for line in _repaired(folder, done) if isinstance(done, Repair) else _checked(folder, done, deep):
            say(console, line)
    if not done.sound:
        raise typer.Exit(1)


def _checked(folder: str, outcome: "Verification", deep: bool) -> Iterator[str]:
    yield from map(str, outcome.findings)
    counts = ((outcome.files, "file"), (outcome.rows, "row"), (outcome.tokens, "token"))
    checked = ", ".join(plural(number, what) for number, what in counts)
    if not outcome.sound:
        yield f"{folder} does NOT match its manifest: {plural(len(outcome.findings), 'finding')} in {checked}"
        yield f"packtrain verify {folder} --repair rebuilds the files named above, and leaves the rest alone"
        return
    how = "every byte matches its hash" if deep else "sizes and rows agree; --deep checks every byte against its hash"
    yield f"{folder} is sound: {checked}; {how}"


def _repaired(folder: str, done: "Repair") -> Iterator[str]:
    for finding in done.findings:
        yield f"{'still' if finding in done.remaining else 'was'} wrong: {finding}"
    yield from (f"  rebuilt: {name}" for name in done.rebuilt)
    yield from (f"  removed: {name}" for name in done.removed)
    yield f"{plural(len(done.rebuilt), 'file')} rebuilt; {done.kept:,} sound and left alone"
    if not done.sound:
        yield f"{folder} is NOT sound: rebuilding files cannot fix what is still wrong"
        return
    yield f"{folder} is sound: manifest {done.manifest.hash[:16]}, as before"


def _plain(outcome: "Verification | Repair | PrepCounts") -> dict[str, Any]:
    """The fields as plain data; of the manifest, which is large and is in the folder, the hash."""
    every = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
    return every | ({"manifest": every["manifest"].hash} if "manifest" in every else {})


def clean(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="Clean the cache of this YAML configuration.", show_default=False),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The cache to clean.",
            show_default="the configuration's",
            autocompletion=no_words,
        ),
    ] = None,
    older_than: Annotated[
        float,
        measured("DAYS", "Keep what was used within this many days, or a time such as 12h.", default="7"),
    ] = 7.0,
    everything: Annotated[bool, typer.Option("--all", help="Remove everything that can be made again.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove old encoded parts and copies, and what killed runs left behind. Lists the files first, and asks."""
    import sys

    from ..dataset.clean import Cleaning
    from ..report.printing import say
    from .console import make_console

    console = make_console()
    folder, out = _places(config, cache)
    with Cleaning(folder, days=0 if everything else older_than) as cleaning:
        items = cleaning.find()
        total = sum(item.bytes for item in items)
        what = f"{plural(len(items), 'file')}, {size(total)}"
        if not as_json and items:
            say(console, f"everything: {what}" if everything else f"older than {plural(older_than, 'day')}: {what}")
            for item in items[:_SHOWN]:
                say(console, f"  {item.path} ({size(item.bytes)})")
            if len(items) > _SHOWN:
                say(console, f"  and {len(items) - _SHOWN:,} more")
        asks = not as_json and bool(items) and sys.stdin.isatty()
        if agreed := yes or (asks and typer.confirm(f"Remove {what}?")):
            cleaning.remove(items)
            if out is not None:
                out.sweep()
    if as_json:
        listed = [{"path": str(item.path), "bytes": item.bytes} for item in items]
        print_json({"removed": agreed, "bytes": total, "files": listed})
    elif not items:
        say(console, "nothing to remove")
    elif agreed:
        say(console, f"removed {what}; a run makes again what it needs")
    else:
        say(console, f"nothing was removed: {what}; --yes removes them")


def _places(config: Path | None, cache: str | None) -> "tuple[LocalStore, LocalStore | None]":
    """The cache, and the configuration's output if that is on this machine.

    Raises:
        ConfigError: neither is given, or the cache is not on this machine.
        InputError: the folder does not exist.
    """
    from ..configfile import load_config
    from ..store.local import LocalStore
    from ..store.open import cache_root, open_store, resolve_place

    out = None
    place = resolve_place(cache, Path.cwd()) if cache is not None else None
    if config is not None:
        loaded, base = load_config(config)
        own = resolve_place(loaded.out, base)
        place = place or cache_root(loaded.cache, own, base)
        out = open_store(own)
    if place is None:
        raise ConfigError("say what to clean: a configuration, or --cache")
    store = open_store(place)
    if not isinstance(store, LocalStore):
        raise ConfigError(
            f"the cache {place} is not on this machine, so no lock shows who uses it; let a lifecycle rule of the "
            "store expire its objects, and clean this machine's copies with --cache and the scratch folder"
        )
    if cache is not None and not store.root.is_dir():
        raise InputError(f"there is no folder {cache}; check the spelling")
    return store, out if isinstance(out, LocalStore) else None


def prep(
    config: Config = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", "--out", help="The file to write: .jsonl or .parquet.")
    ] = None,
    prompt_only: Annotated[bool, typer.Option("--prompt-only", help="Write prompts only, for test sets.")] = False,
    source: Annotated[str | None, typer.Option(help="Which source, if the configuration has several.")] = None,
    format: Format = None,
    input: Input = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Read sources and write examples in the prompt/completion form that other tools read. No tokenizer is needed."""
    from ..report.printing import say
    from ..run.prep_only import prepare_source
    from .console import ConsoleObserver, make_console

    if output is None:
        raise ConfigError(
            "--output is needed: the file to write, such as examples.jsonl; and a configuration file or --input says "
            "what to read"
        )
    loaded, base = load_run(config, settings, format, input)
    chosen = [one for one in loaded.sources if source is None or one.name == source]
    if len(chosen) != 1:
        names = [one.name for one in loaded.sources]
        raise ConfigError(f"--source: choose one of {', '.join(names)}{did_you_mean(source or '', names)}")
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        counts = prepare_source(chosen[0], base, output, prompt_only=prompt_only, observer=observer)
    if as_json:
        print_json({"output": output, **_plain(counts)})
        return
    say(console, f"{output}: {plural(counts.examples, 'example')} from {plural(counts.rows, 'row')}")
    for label in ("rejected", "filtered", "skipped"):
        for reason, number in sorted(getattr(counts, label).items()):
            say(console, f"  {'never made' if label == 'skipped' else label}: {reason} {number:,}")
    for reject in counts.rejects:
        where = f"{reject['file']}, line {reject['line']}: {reject['reason']}: {reject['detail']}"
        say(console, f"  {escape_line(where)}")
    if (hidden := counts.rejected.total() - len(counts.rejects)) > 0:
        say(console, f"  and {hidden:,} more rejected rows")
