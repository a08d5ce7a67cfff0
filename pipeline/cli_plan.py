"""The command that looks ahead of a run."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..schemas.errors import ConfigError
from . import completion
from .cli_options import Config, Format, Input, Json, Set, Tokenizer, print_json
from .cli_report_options import (
    All,
    Batch,
    Hidden,
    Layers,
    Lengths,
    MaxLengthLimit,
    Model,
    Output,
    Parameters,
    WorldSize,
    check_page,
    report_options,
)


def plan(
    config: Config = None,
    settings: Set = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Look at about N rows, taken evenly from all inputs, to answer in seconds.",
            show_default="all",
        ),
    ] = None,
    output: Output = None,
    lengths: Lengths = None,
    max_length_limit: MaxLengthLimit = None,
    batch: Batch = 8,
    model: Model = None,
    parameters: Parameters = None,
    layers: Layers = None,
    hidden: Hidden = None,
    world_size: WorldSize = 8,
    everything: All = False,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="The folder that the run will write, or its URL.", autocompletion=completion.path
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes.", show_default="one a core")] = None,
    format: Format = None,
    input: Input = None,
    tokenizer: Tokenizer = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens a packed row holds; overrules the configuration.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a run would do, and which length would suit the data, before anything is packed.

    Encodes into the cache, where the run finds it, and stops; --rows encodes a sample only, and keeps nothing. Writes
    OUT-plan.html and OUT-plan.json, or --output. With --json, it prints the numbers, and writes files only where
    --output names them.
    """
    from .ahead import plan as look_ahead
    from .cli_run import without_file
    from .configfile import Typed, load_config
    from .console import ConsoleObserver, make_console, say
    from .report.files import write_beside
    from .report.terminal import print_report
    from .stores import resolve_place

    check_page(output)
    options = report_options(
        lengths, max_length_limit, batch, model, parameters, layers, hidden, world_size, everything
    )
    given: Path | dict[str, Any]
    base: Path | None = None
    if config is not None:
        if format is not None or input or tokenizer is not None:
            raise ConfigError("give either a configuration file, or --format, --input and --tokenizer; not both")
        given = config
    else:
        given, base = without_file(format, input, tokenizer, out or "packed"), Path.cwd()
    overrides = list(settings or [])
    if out is not None:
        overrides.append(f"out={json.dumps(resolve_place(out, Path.cwd()))}")
    if workers is not None:
        overrides.append(Typed(f"run.workers={workers}", f"--workers {workers}"))
    if max_length is not None:
        overrides.append(Typed(f"truncate.max_length={max_length}", f"--max-length {max_length}"))
    loaded, folder = load_config(given, base, overrides, typed=config is None)
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        report = look_ahead(loaded, options, rows=rows, observer=observer, base=folder)
    if as_json:
        if output is not None:
            write_beside(report, output)
        print_json(report)
        return
    places = write_beside(report, output or beside_out(resolve_place(loaded.out, folder)))
    print_report(console, report)
    console.print()
    say(console, f"page: {places[0]}")
    say(console, f"numbers: {places[1]}")


def beside_out(out: str) -> Path:
    """Where the page goes: beside the output folder, or here where that is a URL."""
    from .stores import is_url

    name = f"{out.rstrip('/').rpartition('/')[2] or 'packtrain'}-plan.html"
    return Path.cwd() / name if is_url(out) else Path(out).parent / name
