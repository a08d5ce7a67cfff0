"""`packtrain plan`: what a run would do, before it packs anything."""

from pathlib import Path
from typing import Annotated

import typer

from .arguments import completion
from .arguments.options import (
    Config,
    Format,
    Input,
    Json,
    Lengths,
    MaxLength,
    MaxLengthLimit,
    Model,
    Output,
    Set,
    Tokenizer,
    Workers,
    check_page,
    config_or_options,
    overriding,
    report_options,
)
from .views.streams import print_json


def plan(
    config: Config = None,
    settings: Set = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Sample about N rows, spread evenly over all inputs, for an answer in seconds.",
            show_default="all",
        ),
    ] = None,
    output: Output = None,
    lengths: Lengths = None,
    max_length_limit: MaxLengthLimit = None,
    model: Model = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="The folder that the run will write, or its URL.", autocompletion=completion.path
        ),
    ] = None,
    workers: Workers = None,
    format: Format = None,
    input: Input = None,
    tokenizer: Tokenizer = None,
    max_length: MaxLength = None,
    as_json: Json = False,
) -> None:
    """Report what a run would do, and which length would fit the data, before anything is packed.

    Encodes into the cache, where the run finds the result, and stops; --rows encodes a sample only and keeps nothing.
    Writes OUT-plan.html and OUT-plan.json, or --output. With --json, it prints the numbers and writes files only with
    --output.
    """
    from ..configfile import load_config
    from ..report.files import write_beside
    from ..report.printing import say
    from ..report.sections import print_report
    from ..run.forecast import plan as look_ahead
    from ..store.open import resolve_place
    from .views.console import ConsoleObserver, make_console

    check_page(output)
    options = report_options(lengths, max_length_limit, model)
    given, base = config_or_options(config, format, input, tokenizer, out or "packed")
    overrides = overriding(settings, out, workers, max_length)
    loaded, folder = load_config(given, base, overrides)
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
    """Where the page goes: beside the output folder, or into the current one if the output is a URL."""
    from ..store.open import is_url

    name = f"{out.rstrip('/').rpartition('/')[2] or 'packtrain'}-plan.html"
    return Path.cwd() / name if is_url(out) else Path(out).parent / name
