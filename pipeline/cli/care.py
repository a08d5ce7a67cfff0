"""Around a run: `prep` writes examples alone, `wait`, `verify` and `clean` look after datasets and caches."""

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError, InputError, did_you_mean
from ...schemas.escape import escape_line
from ...schemas.units import plural, size
from .options import Config, Folder, Input, Json, Set, load_run, measured
from .output import print_json, print_line, show

if TYPE_CHECKING:
    from ..dataset.clean import Item
    from ..dataset.verify import Verification
    from ..report.grid import Lines
    from ..run.prep_only import PrepCounts
    from ..run.repair import Repair
    from ..store.local import LocalStore

_SHOWN = 3


def wait(
    folder: str,
    timeout: Annotated[float, measured("DURATION", default="1h")] = 3600.0,
    as_json: Json = False,
) -> None:
    """Wait until a dataset is finished. Fails if its run fails or dies, or if the time runs out.

    Args:
        folder (DIR): the folder that a run is writing, or its URL.
        timeout: longest wait: seconds, or a time such as 90min.
    """
    from ...schemas.errors import RunDiedError, StalledError
    from ..dataset.wait import wait as wait_for

    try:
        manifest = wait_for(folder, timeout)
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
    folder: Folder, deep: bool = False, repair: bool = False, config: Path | None = None, as_json: Json = False
) -> None:
    """Check a dataset against its manifest, and every row's invariants; with --repair, rebuild what is damaged.

    Args:
        deep: also check every byte against its hash.
        repair: rebuild damaged and missing files, byte for byte; leave the rest alone.
        config: with --repair: the run's configuration, if its inputs have moved; by default the one in the dataset.
    """
    if config is not None and not repair:
        raise ConfigError("--config: is for --repair; add that, or leave it out")
    from ..dataset.verify import verify as check
    from ..run.repair import repair as rebuild

    def plain(done: "Verification | Repair") -> dict[str, Any]:
        return {"folder": folder, "sound": done.sound, "deep": deep, **_plain(done)}

    if repair:
        rebuilt = show(
            as_json,
            lambda observer: rebuild(folder, config=config, observer=observer),
            partial(_repaired, folder),
            plain,
        )
        sound = rebuilt.sound
    else:
        checked = show(
            as_json,
            lambda observer: check(folder, deep=deep, observer=observer),
            partial(_checked, folder, deep),
            plain,
        )
        sound = checked.sound
    if not sound:
        raise typer.Exit(1)


def _checked(folder: str, deep: bool, outcome: "Verification") -> "Lines":
    yield from map(str, outcome.findings)
    counts = ((outcome.files, "file"), (outcome.rows, "row"), (outcome.tokens, "token"))
    checked = ", ".join(plural(number, what) for number, what in counts)
    if not outcome.sound:
        yield f"{folder} does NOT match its manifest: {plural(len(outcome.findings), 'finding')} in {checked}"
        yield f"packtrain verify {folder} --repair rebuilds the files named above, and leaves the rest alone"
        return
    how = "every byte matches its hash" if deep else "sizes and rows agree; --deep checks every byte against its hash"
    yield f"{folder} is sound: {checked}; {how}"


def _repaired(folder: str, done: "Repair") -> "Lines":
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
    config: Config = None,
    cache: str | None = None,
    older_than: Annotated[float, measured("DAYS", default="7")] = 7.0,
    yes: bool = False,
    as_json: Json = False,
) -> None:
    """Remove old encoded parts and copies, and what killed runs left behind. Lists the files first, and asks.

    Args:
        config: clean the cache of this YAML configuration.
        cache (DIR): the cache to clean; by default the configuration's.
        older_than: keep files used within this many days, or a time such as 12h; 0 keeps none.
        yes: do not ask.
    """
    import sys

    from ..dataset.clean import old_files, remove_files

    folder, out = _places(config, cache)
    items = old_files(folder, days=older_than)
    total = sum(item.bytes for item in items)
    what = f"{plural(len(items), 'file')}, {size(total)}"
    agreed = yes
    if items and not as_json:
        _list(items, f"older than {plural(older_than, 'day')}: {what}")
        agreed = yes or (sys.stdin.isatty() and typer.confirm(f"Remove {what}?"))
    if agreed:
        remove_files(folder, items)
        if out is not None:
            out.sweep()
    if as_json:
        listed = [{"path": str(item.path), "bytes": item.bytes} for item in items]
        print_json({"removed": agreed, "bytes": total, "files": listed})
    elif not items:
        print_line("nothing to remove")
    elif agreed:
        print_line(f"removed {what}; a run makes again what it needs")
    else:
        print_line(f"nothing was removed: {what}; --yes removes them")


def _list(items: "list[Item]", what: str) -> None:
    print_line(what)
    for item in items[:_SHOWN]:
        print_line(f"  {item.path} ({size(item.bytes)})")
    if len(items) > _SHOWN:
        print_line(f"  and {len(items) - _SHOWN:,} more")


def _places(config: Path | None, cache: str | None) -> "tuple[LocalStore, LocalStore | None]":
    """The cache, and the configuration's output if that is on this machine.

    Raises:
        ConfigError: neither is given, or the cache is not on this machine.
        InputError: the folder does not exist.
    """
    from ..configfile import load_config
    from ..store.local import LocalStore
    from ..store.open_store import cache_root, open_store, resolve_place

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
            f"the cache {place} is not on this machine; let a lifecycle rule of the store expire its objects, and "
            "clean this machine's copies with --cache and the scratch folder"
        )
    if cache is not None and not store.root.is_dir():
        raise InputError(f"there is no folder {cache}; check the spelling")
    return store, out if isinstance(out, LocalStore) else None


def prep(
    config: Config = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", "--out")] = None,
    prompt_only: bool = False,
    source: str | None = None,
    input: Input = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Read sources and write examples in the prompt/completion form that other tools read. No tokenizer is needed.

    Args:
        output: the file to write, .jsonl.
        prompt_only: write prompts only, for test sets.
        source: which source, if the configuration has several.
    """
    from ..run.prep_only import prepare_source

    if output is None:
        raise ConfigError(
            "--output is needed: the file to write, such as examples.jsonl; and a configuration file or --input says "
            "what to read"
        )
    loaded, base = load_run(config, settings, input)
    chosen = [one for one in loaded.sources if source is None or one.name == source]
    if len(chosen) != 1:
        names = [one.name for one in loaded.sources]
        raise ConfigError(f"--source: choose one of {', '.join(names)}{did_you_mean(source or '', names)}")
    show(
        as_json,
        lambda observer: prepare_source(chosen[0], base, output, prompt_only=prompt_only, observer=observer),
        partial(_prepared, output),
        lambda counts: {"output": output, **_plain(counts)},
    )


def _prepared(output: Path, counts: "PrepCounts") -> "Lines":
    yield f"{output}: {plural(counts.examples, 'example')} from {plural(counts.rows, 'row')}"
    for label in ("rejected", "filtered", "skipped"):
        for reason, number in sorted(getattr(counts, label).items()):
            yield f"  {'never made' if label == 'skipped' else label}: {reason} {number:,}"
    for reject in counts.rejects:
        where = f"{reject['file']}, line {reject['line']}: {reject['reason']}: {reject['detail']}"
        yield f"  {escape_line(where)}"
    if (hidden := counts.rejected.total() - len(counts.rejects)) > 0:
        yield f"  and {hidden:,} more rejected rows"
