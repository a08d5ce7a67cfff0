"""`packtrain run`: the whole pipeline, then commands to look at the result."""

import gc
import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...schemas.errors import ConfigError
from ...schemas.escape import escape_line
from .arguments import completion
from .arguments.options import (
    Config,
    Format,
    Input,
    Json,
    MaxLength,
    Set,
    Tokenizer,
    Workers,
    config_or_options,
    overriding,
)
from .views.streams import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ...schemas.manifest import Manifest
    from ..encode.prepared import Prepared
    from ..run.estimate import RunEstimate

_GARBAGE = 100_000
"""Number of new objects after which Python looks for garbage. By default it is 700, and imports alone make 300,000 that
stay.
"""


def run(
    config: Config = None,
    settings: Set = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The folder to write, or its URL; overrides the configuration.",
            autocompletion=completion.path,
        ),
    ] = None,
    workers: Workers = None,
    executor: Annotated[
        Literal["local", "ray", "static"] | None,
        typer.Option(help="Where tasks run: local, ray or static.", show_default="local"),
    ] = None,
    address: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of a Ray cluster, or auto.")] = None,
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
    for key, value in (("executor", executor), ("address", address), ("shard", shard)):
        if value is not None:
            overrides.append(f"run.{key}={json.dumps(value)}")
    if wait is not None:
        overrides.append(f"run.wait={wait}")
    if no_report:
        overrides.append("run.report=false")
    loaded, folder = load_config(given, base, overrides)
    from ..report.files import HTML as REPORT
    from ..report.printing import say
    from ..run.commit import put_card
    from ..run.driver import find_finished, look_ahead, make_dataset
    from ..run.workers import count_workers
    from ..run.workspace import open_workspace
    from .views.console import ConsoleObserver, make_console
    from .views.run import pipeline_tree, print_summary

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
                console.print(pipeline_tree(loaded, prepared, estimate, target.url, work.cache.url, workers))
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
    print_summary(console, manifest, target.url, time.perf_counter() - began, made.advice, warning)
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
