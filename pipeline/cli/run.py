"""`packtrain run`: the whole pipeline, then commands to look at the result."""

import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import count, duration, plural, size
from .options import (
    Config,
    Format,
    Input,
    Json,
    Mask,
    MaxLength,
    Out,
    Set,
    Tokenizer,
    Workers,
    load_run,
)  # fmt: skip
from .streams import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ...schemas.config.config import RunConfig
    from ...schemas.ledger import SourceLedger
    from ...schemas.manifest import Manifest
    from ..report.files import AtEnd
    from ..run.workers import Workspace

_GARBAGE = 100_000
"""Number of new objects after which Python looks for garbage. By default it is 700, and imports alone make 300,000 that
stay.
"""
_ALWAYS = {"mask": ("policy",), "truncate": ("max_length", "overlong"), "pack": ("strategy",), "output": ("format",)}
"""Section → keys that a dry run shows even if they have their defaults."""
_FIGURES = ("rows", "bound", "tokens", "labels", "pieces", "fill")
"""Figures of a split in JSON; see `schemas.report.SplitFigures`."""


def run(
    config: Config = None,
    settings: Set = None,
    out: Out = None,
    workers: Workers = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="This is run I, from 0, of N runs that share the work.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what the run would do, and stop.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Run the embedded sample.")] = False,
    verify_inputs: Annotated[
        bool,
        typer.Option("--verify-inputs", help="If the run is already finished, also compare its inputs by content."),
    ] = False,
    format: Format = None,
    input: Input = None,
    tokenizer: Tokenizer = None,
    max_length: MaxLength = None,
    mask: Mask = None,
    as_json: Json = False,
) -> None:
    """Prepare, render, tokenize, mask, truncate and pack; write shards, manifest and ledger."""
    gc.set_threshold(_GARBAGE)
    began = time.perf_counter()
    given, base = (config, None) if not demo else _demo(config, out)
    if demo and (format is not None or input or tokenizer is not None):
        raise ConfigError("--demo brings its own data and tokenizer; leave --format, --input and --tokenizer out")
    loaded, folder = load_run(
        given, settings, format, input, tokenizer, None if demo else out, base=base,
        needs=("--input", "--tokenizer", "--out"), workers=workers, shard=shard, max_length=max_length, mask=mask,
        hint="--demo runs the embedded sample; packtrain schema prints all keys of a configuration",
    )  # fmt: skip
    from ..report.files import HTML as REPORT
    from ..report.printing import say
    from ..run.commit import put_card
    from ..run.run import find_finished, make_dataset
    from ..run.workers import open_workspace
    from .console import ConsoleObserver, make_console

    # With --json, standard output carries the JSON only.
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        work = open_workspace(loaded, folder, observer)
        target = work.out
        manifest = find_finished(loaded, work, verify_inputs=verify_inputs)
        if dry_run:
            _dry_run(console, loaded, work, as_json)
            return
        if manifest is not None:
            put_card(target, manifest, observer)
            if as_json:
                print_json(_run_json(manifest, target.url, "unchanged", time.perf_counter() - began))
            else:
                say(console, f"manifest {manifest.hash[:16]}")
                if loaded.run.report and target.exists(REPORT):
                    say(console, f"report: {target.where(REPORT)}")
                    say(console, f"  its tables: {_program()} report {_near(target.url)}")
            return
        made = make_dataset(loaded, work)
    page, seconds = made.report.place if made.report is not None else None, time.perf_counter() - began
    if as_json:
        print_json(_run_json(made.manifest, target.url, "finished", seconds, page))
        return
    _print_summary(console, made.manifest, target.url, seconds, list(made.advice), made.report)
    if demo and loaded.output.format == "arrow":
        _say_next(console, target.url, page)


def _demo(config: Path | None, out: str | None) -> tuple[dict[str, Any], Path]:
    import yaml

    from .. import demo as home
    from ..store.open import beside, resolve_place

    if config is not None:
        raise ConfigError("--demo brings its own configuration; leave the file out")
    base = Path(home.__file__).parent
    data = yaml.safe_load((base / "demo.yaml").read_text(encoding="utf-8"))
    data["out"] = resolve_place(out or "runs/demo", Path.cwd())
    data["cache"] = beside(data["out"], ".packtrain-cache")
    return data, base


def _run_json(manifest: "Manifest", out: str, state: str, seconds: float, page: str | None = None) -> dict[str, Any]:
    """A finished run as plain data.

    Args:
        state: `finished` now, or `unchanged` because it was finished before.
        page: the report's page, if this run wrote one.
    """
    from ..report.collect import packing_of

    engine = manifest.plan["encode"]
    return {
        "state": state,
        "out": out,
        "manifest": manifest.hash,
        "seconds": seconds,
        "preference": manifest.preference,
        "max_length": manifest.max_length,
        "engine": {"name": engine["engine"], "version": engine["engine_version"]},
        "splits": {
            one.split: {name: getattr(one, name) for name in _FIGURES} for one in packing_of(manifest, {}).splits
        },
        "ledger": manifest.ledger.to_json(),
        "total": asdict(manifest.ledger.total()),
        "report": page,
    }


def _near(path: str | Path) -> str:
    """A path relative to the current folder if it is below it; a URL as it is."""
    from ..store.open import is_url

    if is_url(str(path)):
        return str(path)
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _program() -> str:
    """The command that starts packtrain, whether or not its environment is active."""
    return "packtrain" if shutil.which("packtrain") else _near(Path(sys.executable).with_name("packtrain"))


def _say_next(console: "Console", out: str, page: str | None) -> None:
    """Print commands to look at the result, which work from the current folder.

    Args:
        page: the report's page, if there is one.
    """
    from ..report.printing import say

    command, here = _program(), _near(out)
    python = "python" if command == "packtrain" else _near(sys.executable)
    data = "" if here == str(Path("runs/demo")) else f" --set data={here}"
    for line in (
        "",
        "Look at it:",
        *([f"  in a browser: open {_near(page)}"] if page is not None else []),
        f"  {command} report {here}      # the report as tables",
        f"  {command} inspect {here} --row 0",
        f"  {command} verify {here} --deep",
        f"  {python} -c \"import datasets; print(datasets.load_from_disk('{here}'))\"",
        f"  {command} train --demo{data}      # a tiny model; needs torch:",
        "    pip install 'packtrain[fast,train]'; without a GPU, first torch's CPU build, as pytorch.org says",
    ):
        say(console, line)


def _dry_run(console: "Console", config: "RunConfig", work: "Workspace", as_json: bool) -> None:
    """Print what the run would do, with counts, sizes and what is already cached."""
    from ..report.printing import say
    from ..run.run import look_ahead
    from ..run.workers import count_workers

    prepared, estimate = look_ahead(config, work)
    files: list[dict[str, Any]] = [
        {"source": one.source, "path": str(one.origin or one.path), "rows": one.lines, "bytes": one.size,
         "hash": one.hash}
        for one in prepared.files
    ]  # fmt: skip
    engine, workers = (prepared.spec.engine, prepared.spec.engine_version), count_workers(config.run)
    if as_json:
        print_json({
            "out": work.out.url, "cache": work.cache.url, "workers": workers, "files": files,
            "formats": {name: form.name for name, form in prepared.formats.items()}, "preference": prepared.pairs,
            "blocks": estimate.blocks, "blocks_cached": estimate.cached, "bytes_to_encode": estimate.missing_bytes,
            "engine": dict(zip(("name", "version"), engine, strict=True)), "tokens_estimated": estimate.tokens,
            "room_needed": estimate.room_needed, "room_free": estimate.room_free,
        })  # fmt: skip
        return
    say(console, f"packtrain → {work.out.url}")
    for source in config.sources:
        say(console, f"source {source.name}: format {prepared.formats[source.name].name}")
        for one in files:
            if one["source"] == source.name:
                rows, held = plural(one["rows"], "row"), size(one["bytes"])
                say(console, f"  {one['path']} ({rows}, {held}, {one['hash'][:12]})")
    left = f"{estimate.blocks - estimate.cached:,} to do ({size(estimate.missing_bytes)})"
    say(console, f"encode: {plural(estimate.blocks, 'block')}, {estimate.cached:,} cached, {left}")
    say(console, f"  tokenizer {config.tokenizer.path}, engine {' '.join(engine)} ({plural(workers, 'worker')})")
    say(console, f"  cache {work.cache.url}")
    for line in _settings(config):
        say(console, line)
    say(
        console,
        f"write: about {count(estimate.tokens)} tokens, {size(estimate.room_needed)} of disk space needed, "
        f"{size(estimate.room_free)} free",
    )


def _settings(config: "RunConfig") -> Iterator[str]:
    """Settings that are not defaults, and a few that everybody should know, by section."""
    skipped = {"out", "cache", "tokenizer", "sources", "run"}
    every = config.model_dump(mode="json", exclude=skipped)
    changed = config.model_dump(mode="json", exclude=skipped, exclude_defaults=True)
    for key, value in every.items():
        if isinstance(value, dict):
            usual = {name: value[name] for name in _ALWAYS.get(key, ())}
            if shown := usual | changed.get(key, {}):
                yield f"{key}: {', '.join(f'{name} {_plainly(one)}' for name, one in shown.items())}"
        elif key in changed:
            yield f"{key}: {_plainly(value)}"


def _plainly(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print_summary(
    console: "Console", manifest: "Manifest", out: str, seconds: float, advice: list[str], report: "AtEnd | None"
) -> None:
    """The result of a finished run, about a screen: what matters most, packing, ledger and what to do.

    Args:
        advice: see `run.run.Made`.
    """
    from ..report.collect import packing_of, rejected_of
    from ..report.ledger_table import ledger_grid
    from ..report.printing import print_grids, rich_table, say
    from ..report.sections import packing_grid
    from ..run.advice import on_rejects

    total: SourceLedger = manifest.ledger.total()
    rejects = on_rejects(total, f"{out}/rejects.jsonl")
    urgent = [*advice, *([escape_line(report.warning)] if report is not None and report.warning is not None else [])]
    if rejects is not None:
        urgent.insert(0 if 2 * sum(rejected_of(total).values()) > total.rows_read else len(urgent), rejects)
    if manifest.weighted:
        urgent.append("it has loss_weights: a trainer that ignores them trains another objective")
    if cut := total.examples_dropped.get("cut_empty", 0) + total.examples_dropped.get("cut_equal", 0):
        urgent.append(
            f"of {plural(total.examples_made, 'pair')}, {plural(cut, 'was', 'were')} dropped because truncation "
            "left a completion empty, or both completions the same; raise truncate.max_length or "
            "truncate.max_completion_length, or set truncate.max_prompt_length"
        )
    if urgent:
        say(console, urgent[0], "bold yellow")
    else:
        kept = "all " if not total.examples_dropped else ""
        say(console, f"packed {kept}{plural(sum(total.examples_packed.values()), 'example')}", "bold green")
    print_grids(console, [packing_grid(packing_of(manifest, {}))])
    console.print()
    grid = ledger_grid(manifest.ledger)
    unbounded = console.options.update(max_width=1 << 20)
    if console.measure(rich_table(grid), options=unbounded).maximum > console.width:
        grid = ledger_grid(manifest.ledger, most=0)  # truncated numbers would be useless
    print_grids(console, [grid])
    if len(manifest.ledger.sources) > 1 and len(grid.head) == 2:
        say(console, f"{plural(len(manifest.ledger.sources), 'source')}: the report shows each one", "dim")
    console.print()
    for line in urgent[1:]:
        say(console, line, "yellow")
    engine = manifest.plan["encode"]
    made_by = f"tokens by {engine['engine']} {engine['engine_version']}"
    say(console, f"{out} is finished: {manifest.hash[:16]}, in {duration(seconds)}, {made_by}")
    if report is not None:
        say(console, f"report: {report.place}")
        if report.advice is not None:
            say(console, f"  {escape_line(report.advice)}")
