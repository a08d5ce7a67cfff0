"""The commands that make something: run, prep."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..schemas.errors import ConfigError
from ..schemas.escape import escape_line
from ..schemas.formats import AUTO, default_name
from ..schemas.hints import did_you_mean
from . import completion
from .cli_options import Config, Format, Input, Json, Set, print_json


def run(
    config: Config = None,
    settings: Set = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The folder to write, or its URL; overrules the configuration.",
            autocompletion=completion.path,
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes.", show_default="one a core")] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            help="Who runs the tasks: local, ray or static.",
            show_default="local",
            autocompletion=completion.executor,
        ),
    ] = None,
    address: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Of a Ray cluster; or auto.")] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Which of N runs that share the work this is, from 0.")
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(metavar="[DURATION]", help="Wait for another run on the same folder to end, such as 15min."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and stop.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Run the embedded sample.")] = False,
    verify_inputs: Annotated[
        bool, typer.Option("--verify-inputs", help="Of a finished run, compare the inputs by content, too.")
    ] = False,
    format: Format = None,
    input: Input = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Without a file: the tokenizer's folder, or its name on the hub where the Hugging Face cache has it."
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens a packed row holds; overrules the configuration.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.html and report.json.")] = False,
    as_json: Json = False,
) -> None:
    """Prepare, render, tokenize, mask, truncate and pack; write shards, manifest and ledger."""
    from .configfile import Typed, load_config
    from .console import ConsoleObserver, make_console, pipeline_tree, print_summary, say
    from .json_views import prospect_json, run_json
    from .next_steps import say_finished, say_next
    from .report.files import HTML as REPORT
    from .run import Driver
    from .stores import resolve_place

    began = time.perf_counter()
    given: Path | dict[str, Any]
    base: Path | None = None
    if demo:
        if format is not None or input or tokenizer is not None:
            raise ConfigError("--demo brings its own data and tokenizer; leave --format, --input and --tokenizer out")
        given, base = _demo(config, out)
    elif config is not None:
        if format is not None or input or tokenizer is not None:
            raise ConfigError("give either a configuration file, or --format, --input and --tokenizer; not both")
        given = config
    else:
        hint = "--demo runs the embedded sample; packtrain schema prints what a configuration holds"
        given, base = without_file(format, input, tokenizer, out, hint), Path.cwd()
    overrides = list(settings or [])
    if out is not None and not demo:
        overrides.append(f"out={json.dumps(resolve_place(out, Path.cwd()))}")
    if workers is not None:
        overrides.append(Typed(f"run.workers={workers}", f"--workers {workers}"))
    for key, value in (("executor", executor), ("address", address), ("shard", shard)):
        if value is not None:
            overrides.append(Typed(f"run.{key}={json.dumps(value)}", f"--{key} {value}"))
    if wait is not None:
        overrides.append(Typed(f"run.wait={wait}", f"--wait {wait}"))
    if max_length is not None:
        overrides.append(Typed(f"truncate.max_length={max_length}", f"--max-length {max_length}"))
    if no_report:
        overrides.append("run.report=false")
    loaded, folder = load_config(given, base, overrides, typed=config is None)
    # With --json nothing else may stand on the standard output.
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        driver = Driver(loaded, folder, observer)
        manifest = driver.finished(verify_inputs=verify_inputs)
        if dry_run:
            prospect = driver.prospect()
            if as_json:
                print_json(prospect_json(prospect, driver.out.url, driver.cache.url, driver.workers()))
            else:
                console.print(pipeline_tree(loaded, prospect, driver.out.url, driver.cache.url, driver.workers()))
            return
        if manifest is not None:
            if as_json:
                print_json(run_json(manifest, driver.out.url, "unchanged", time.perf_counter() - began))
            else:
                say(console, f"manifest {manifest.hash[:16]}")
                if loaded.run.report and driver.out.exists(REPORT):
                    say_finished(console, driver.out.url, driver.out.where(REPORT))
            return
        manifest = driver.run()
    made = driver.report
    if as_json:
        print_json(
            run_json(manifest, driver.out.url, "finished", time.perf_counter() - began, made.place if made else None)
        )
        return
    print_summary(console, manifest, driver.out.url, time.perf_counter() - began, driver.advice)
    if made is not None:
        say(console, f"report: {made.place}")
        if made.warning is not None:
            say(console, f"  {escape_line(made.warning)}")
        if made.advice is not None:
            say(console, f"  {escape_line(made.advice)}")
    if demo and loaded.output.format == "arrow":
        say_next(console, driver.out.url, made.place if made is not None else None)


def prep(
    config: Config = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write, .jsonl or .parquet.")
    ] = None,
    prompt_only: Annotated[bool, typer.Option("--prompt-only", help="Prompts alone, for test sets.")] = False,
    source: Annotated[str | None, typer.Option(help="Which source, when the configuration has several.")] = None,
    format: Format = None,
    input: Input = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Read sources and write examples in the prompt/completion form that other tools read. No tokenizer is needed."""
    from .configfile import load_config
    from .console import ConsoleObserver, make_console, say
    from .prepare import prepare_source

    if output is None and (config is not None or input):
        raise ConfigError("--output is needed: the file to write, such as examples.jsonl")
    if config is not None:
        if format is not None or input:
            raise ConfigError("give either a configuration file, or --format and --input; not both")
        loaded, base = load_config(config, None, settings or [])
    else:
        data = without_file(format, input, Path("unused"), "unused", output=output)
        loaded, base = load_config(data, Path.cwd(), settings or [], typed=True)
    assert output is not None
    chosen = [one for one in loaded.sources if source is None or one.name == source]
    if len(chosen) != 1:
        names = [one.name for one in loaded.sources]
        raise ConfigError(f"--source: choose one of {', '.join(names)}{did_you_mean(source or '', names)}")
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        counts = prepare_source(chosen[0], base, output, prompt_only=prompt_only, observer=observer)
    if as_json:
        by_reason = {"rejected": counts.rejected, "filtered": counts.filtered, "skipped": counts.skipped}
        numbers = {name: dict(sorted(found.items())) for name, found in by_reason.items()}
        print_json({"output": str(output), "rows": counts.rows, "examples": counts.examples, **numbers,
                    "rejects": counts.rejects})  # fmt: skip
        return
    say(console, f"{output}: {counts.examples:,} examples from {counts.rows:,} rows")
    for label, reasons in (
        ("rejected", counts.rejected), ("filtered", counts.filtered), ("never made", counts.skipped)
    ):  # fmt: skip
        for reason, number in sorted(reasons.items()):
            say(console, f"  {label}: {reason} {number:,}")
    for reject in counts.rejects:
        told = f"{reject['file']}, line {reject['line']}: {reject['reason']}: {reject['detail']}"
        say(console, f"  {escape_line(told)}")
    if (hidden := counts.rejected.total() - len(counts.rejects)) > 0:
        say(console, f"  and {hidden:,} rejected rows more")


def without_file(
    format: str | None,
    inputs: list[str] | None,
    tokenizer: Path | None,
    out: str | None,
    hint: str = "packtrain schema prints what a configuration holds",
    output: Path | None = Path("unused"),
) -> dict[str, Any]:
    """A configuration of what stands on the command line.

    Raises:
        ConfigError: something is missing; ends with the hint.
    """
    needed = {"--input": inputs, "--tokenizer": tokenizer, "--out": out, "--output": output}
    missing = [name for name, value in needed.items() if not value]
    if missing:
        also = missing.pop() if missing[-1] == "--output" else ""  # which a configuration does not bring
        ways = f"give a configuration file, or {', '.join(missing)} as well"
        raise ConfigError(f"{ways}{f'; and {also}, the file to write' if also else ''} ({hint})")
    return {
        "out": out,
        "tokenizer": {"path": str(tokenizer)},
        "sources": [{"name": default_name(format or AUTO), "format": format or AUTO, "path": list(inputs or [])}],
    }


def _demo(config: Path | None, out: str | None) -> tuple[dict[str, Any], Path]:
    import yaml

    from . import demo as home
    from .stores import beside, resolve_place

    if config is not None:
        raise ConfigError("--demo brings its own configuration; leave the file out")
    base = Path(home.__file__).parent
    data = yaml.safe_load((base / "demo.yaml").read_text(encoding="utf-8"))
    data["out"] = resolve_place(out or "runs/demo", Path.cwd())
    data["cache"] = beside(data["out"], ".packtrain-cache")
    return data, base
