"""`packtrain report` and `packtrain diff`: the report of a finished dataset, and a comparison of two."""

from pathlib import Path
from typing import Annotated

import typer

from ...schemas.errors import OutputError, PacktrainError
from .arguments.completion import path
from .arguments.options import (
    Folder,
    Json,
    Lengths,
    MaxLengthLimit,
    Model,
    Output,
    check_page,
    report_options,
)
from .views.streams import print_json


def report(
    folder: Folder,
    output: Output = None,
    lengths: Lengths = None,
    max_length_limit: MaxLengthLimit = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Report what happened to the data, what is trained, how good the packing is, and which length would fit.

    Writes DIR/report.html and DIR/report.json, or --output. With --json, it prints the numbers and writes files only
    with --output.
    """
    from ..dataset.open import open_dataset
    from ..report.collect import report_of_dataset
    from ..report.files import write_beside, write_report
    from ..report.printing import say
    from ..report.sections import print_report
    from .views.console import make_console

    check_page(output)
    options = report_options(lengths, max_length_limit, model)
    dataset = open_dataset(folder)
    made = report_of_dataset(dataset, options)
    if as_json:
        if output is not None:
            write_beside(made, output)
        print_json(made)
        return
    places = write_beside(made, output) if output is not None else write_report(made, dataset.store)
    console = make_console()
    print_report(console, made)
    console.print()
    say(console, f"page: {places[0]}")
    say(console, f"numbers: {places[1]}")


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A finished dataset, or its URL.", autocompletion=path)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=path)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.html", help="Also write a page. Missing folders are created."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all changes instead of about a screen.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Also show what did not change, and more examples.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Open no shard: compare examples by id and length only.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 unless the datasets are identical byte for byte.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare two datasets: configurations, inputs, ledgers, packing, lengths and examples."""
    from ..observer import Silent
    from ..report.diff.comparison import compare
    from ..report.diff.terminal import print_brief, print_comparison
    from ..report.printing import say
    from .views.console import ConsoleObserver, make_console

    check_page(output)
    console = make_console()
    if as_json:
        found = compare(a, b, quick=quick, observer=Silent())
    else:
        with ConsoleObserver(console) as observer:
            found = compare(a, b, quick=quick, observer=observer)
    if output is not None:
        from ..report.diff.page import diff_page
        from ..report.draw.shell import render
        from ..store.local import LocalStore

        content = render(diff_page(found))
        try:
            LocalStore(output.absolute().parent).replace_bytes(output.name, content)
        except (PacktrainError, OSError) as error:
            raise OutputError(f"--output: {output} cannot be written ({error}); choose another file") from error
    if as_json:
        print_json(found)
    else:
        page = "--output diff.html writes it as a page" if output is None else f"{output} shows it as a page"
        if everything or full:
            print_comparison(console, found, full=full)
            say(console, f"\n{page}{'' if full else ', --full also shows what did not change'}")
        else:
            print_brief(console, found, page=page)
    if exit_code and not found.identical:
        raise typer.Exit(1)
