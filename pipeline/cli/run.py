"""`packtrain run`: the whole pipeline, then commands to look at the result."""

import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
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
    MaxLength,
    Set,
    Tokenizer,
    Workers,
    config_or_options,
    no_words,
    overriding,
)  # fmt: skip
from .streams import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ...schemas.config.config import RunConfig
    from ...schemas.ledger import SourceLedger
    from ...schemas.manifest import Manifest
    from ..encode.prepared import Prepared
    from ..run.prepare import RunEstimate

_GARBAGE = 100_000
"""Number of new objects after which Python looks for garbage. By default it is 700, and imports alone make 300,000 that
stay.
"""


_ALWAYS = {"mask": ("policy",), "truncate": ("max_length", "overlong"), "pack": ("strategy",), "output": ("format",)}
"""Section → keys that a dry run shows even if they have their defaults."""


def run(
    config: Config = None,
    settings: Set = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The folder to write, or its URL; overrides the configuration.",
            autocompletion=no_words,
        ),
    ] = None,
    workers: Workers = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="This is run I, from 0, of N runs that share the work.")
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Wait for another run on the same folder to end, at most this long, such as 15min.",
        ),
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
    no_report: Annotated[bool, typer.Option("--no-report", help="Do not write report.html and report.json.")] = False,
    as_json: Json = False,
) -> None:
    """Prepare, render, tokenize, mask, truncate and pack; write shards, manifest and ledger."""
    gc.set_threshold(_GARBAGE)
    from ..configfile import load_config

    began = time.perf_counter()
    given: Path | dict[str, Any]
    base: Path | None = None
    if demo:
        if format is not None or input or tokenizer is not None:
            raise ConfigError("--demo brings its own data and tokenizer; leave --format, --input and --tokenizer out")
        given, base = _demo(config, out)
    else:
        hint = "--demo runs the embedded sample; packtrain schema prints all keys of a configuration"
        given, base = config_or_options(config, format, input, tokenizer, out, hint)
    overrides = overriding(settings, None if demo else out, workers, max_length)
    if shard is not None:
        overrides.append(f"run.shard={json.dumps(shard)}")
    if wait is not None:
        overrides.append(f"run.wait={wait}")
    if no_report:
        overrides.append("run.report=false")
    loaded, folder = load_config(given, base, overrides)
    from ..report.files import HTML as REPORT
    from ..report.printing import say
    from ..run.commit import put_card
    from ..run.run import find_finished, look_ahead, make_dataset
    from ..run.workers import count_workers, open_workspace
    from .console import ConsoleObserver, make_console

    # With --json, standard output carries the JSON only.
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        work = open_workspace(loaded, folder, observer)
        target = work.out
        manifest = find_finished(loaded, work, verify_inputs=verify_inputs)
        if dry_run:
            prepared, estimate = look_ahead(loaded, work)
            workers = count_workers(loaded.run)
            if as_json:
                print_json(_estimate_json(prepared, estimate, target.url, work.cache.url, workers))
            else:
                for line in _dry_run(loaded, prepared, estimate, target.url, work.cache.url, workers):
                    say(console, line)
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
    manifest, report = made.manifest, made.report
    if as_json:
        print_json(
            _run_json(manifest, target.url, "finished", time.perf_counter() - began, report.place if report else None)
        )
        return
    warning = report.warning if report is not None else None
    _print_summary(console, manifest, target.url, time.perf_counter() - began, made.advice, warning)
    if report is not None:
        say(console, f"report: {report.place}")
        if report.advice is not None:
            say(console, f"  {escape_line(report.advice)}")
    if demo and loaded.output.format == "arrow":
        _say_next(console, target.url, report.place if report is not None else None)


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
    splits = {}
    for name, split in manifest.splits.items():
        splits[name] = {
            "rows": split.rows,
            "bound": sum(window.bound for window in split.windows),
            "tokens": split.tokens,
            "trained": split.trained,
            "pieces": sum(window.pieces for window in split.windows),
            "shards": len(split.shards),
            "fill": None if manifest.preference else split.fill(manifest.max_length),
        }
    engine = manifest.plan["encode"]
    return {
        "state": state,
        "out": out,
        "manifest": manifest.hash,
        "seconds": seconds,
        "preference": manifest.preference,
        "max_length": manifest.max_length,
        "engine": {"name": engine["engine"], "version": engine["engine_version"]},
        "splits": splits,
        "ledger": manifest.ledger.to_json(),
        "total": asdict(manifest.ledger.total()),
        "report": page,
    }


def _estimate_json(prepared: "Prepared", estimate: "RunEstimate", out: str, cache: str, workers: int) -> dict[str, Any]:
    """What a run would do, as plain data."""
    files = [
        {
            "source": file.source,
            "path": str(file.origin or file.path),
            "rows": file.lines,
            "bytes": file.size,
            "hash": file.hash,
        }
        for file in prepared.files
    ]
    return {
        "out": out,
        "cache": cache,
        "workers": workers,
        "files": files,
        "formats": {name: form.name for name, form in prepared.formats.items()},
        "preference": prepared.pairs,
        "blocks": estimate.blocks,
        "blocks_cached": estimate.cached,
        "bytes_to_encode": estimate.missing_bytes,
        "engine": {"name": prepared.spec.engine, "version": prepared.spec.engine_version},
        "tokens_estimated": estimate.tokens,
        "room_needed": estimate.room_needed,
        "room_free": estimate.room_free,
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

    command = _program()
    say(console)
    say(console, "Look at it:")
    if page is not None:
        say(console, f"  in a browser: open {_near(page)}")
    say(console, f"  {command} report {_near(out)}      # the report as tables")
    say(console, f"  {command} inspect {_near(out)} --row 0")
    say(console, f"  {command} verify {_near(out)} --deep")
    python = "python" if command == "packtrain" else _near(sys.executable)
    say(console, f"  {python} -c \"import datasets; print(datasets.load_from_disk('{_near(out)}'))\"")
    data = "" if _near(out) == str(Path("runs/demo")) else f" --set data={_near(out)}"
    say(console, f"  {command} train --demo{data}      # a tiny model; needs torch:")
    say(console, "    pip install 'packtrain[fast,train]'; without a GPU, first torch's CPU build, as pytorch.org says")


def _dry_run(
    config: "RunConfig", prepared: "Prepared", estimate: "RunEstimate", out: str, cache: str, workers: int
) -> Iterator[str]:
    """What would be done, line by line, with counts, sizes and what is already cached."""
    yield f"packtrain → {out}"
    for source in config.sources:
        files = [file for file in prepared.files if file.source == source.name]
        lines, held = sum(file.lines for file in files), sum(file.size for file in files)
        form = prepared.formats[source.name].name
        yield f"source {source.name}: format {form}, {plural(lines, 'line')}, {size(held)}"
        for file in files:
            yield f"  {file.origin or file.path} ({plural(file.lines, 'row')}, {size(file.size)}, {file.hash[:12]})"
    missing = estimate.blocks - estimate.cached
    yield (
        f"encode: {plural(estimate.blocks, 'block')}, {estimate.cached:,} cached, {missing:,} to do "
        f"({size(estimate.missing_bytes)})"
    )
    yield f"  tokenizer {config.tokenizer.path}"
    yield f"  engine {prepared.spec.engine} {prepared.spec.engine_version} ({plural(workers, 'worker')})"
    yield f"  cache {cache}"
    for key, value in config.model_dump(mode="json", exclude={"out", "cache", "tokenizer", "sources", "run"}).items():
        usual = _ALWAYS.get(key, ())
        shown = {name: one for name, one in value.items() if name in usual} if isinstance(value, dict) else {}
        section = getattr(config, key)
        changed = section.model_dump(mode="json", exclude_defaults=True) if isinstance(value, dict) else value
        if isinstance(changed, dict):
            shown |= changed
            if shown:
                yield f"{key}: {', '.join(f'{name} {_plainly(one)}' for name, one in shown.items())}"
        elif changed != type(config).model_fields[key].default:
            yield f"{key}: {_plainly(changed)}"
    if prepared.pairs:
        yield "not packed: preference pairs"
    yield (
        f"write: about {count(estimate.tokens)} tokens, {size(estimate.room_needed)} of disk space needed, "
        f"{size(estimate.room_free)} free"
    )


def _plainly(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print_summary(
    console: "Console", manifest: "Manifest", out: str, seconds: float, advice: Sequence[str], warning: str | None
) -> None:
    """The result of a finished run, about a screen: what matters most, packing, ledger and what to do.

    Args:
        advice: see `run.run.Made`.
        warning: that of the report.
    """
    from ..report.collect import packing_of, rejected_of
    from ..report.printing import print_grids, rich_table, say
    from ..report.sections import ledger_grid, packing_grid
    from ..run.advice import on_rejects

    total: SourceLedger = manifest.ledger.total()
    rejects = on_rejects(total, f"{out}/rejects.jsonl")
    mostly = [rejects] if rejects is not None and 2 * sum(rejected_of(total).values()) > total.rows_read else []
    urgent = [*mostly, *advice, *([escape_line(warning)] if warning is not None else [])]
    if urgent:
        say(console, urgent[0], "bold yellow")
    else:
        kept = f"all {plural(sum(total.examples_packed.values()), 'example')}" if not total.examples_dropped else ""
        say(console, f"packed {kept or plural(sum(total.examples_packed.values()), 'example')}", "bold green")
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
    if rejects is not None and not mostly:
        say(console, rejects, "yellow")
    if manifest.weighted:
        say(console, "it has loss_weights: a trainer that ignores them trains another objective", "yellow")
    if cut := total.examples_dropped.get("cut_empty", 0) + total.examples_dropped.get("cut_equal", 0):
        say(
            console,
            f"of {plural(total.examples_made, 'pair')}, {plural(cut, 'was', 'were')} dropped because truncation "
            "left a completion empty, or both completions the same; raise truncate.max_length or "
            "truncate.max_completion_length, or set truncate.max_prompt_length",
            "yellow",
        )
    engine = manifest.plan["encode"]
    made_by = f"tokens by {engine['engine']} {engine['engine_version']}"
    say(console, f"{out} is finished: {manifest.hash[:16]}, in {duration(seconds)}, {made_by}")
