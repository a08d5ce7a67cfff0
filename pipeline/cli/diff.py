"""`packtrain diff`: what differs between two finished datasets."""

from typing import Annotated

import typer

from .arguments.completion import path
from .arguments.options import Json
from .views.streams import print_json


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A finished dataset, or its URL.", autocompletion=path)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=path)],
    everything: Annotated[bool, typer.Option("--all", help="Show all changes instead of about a screen.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Open no shard: compare examples by id and length only.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 unless the datasets are identical byte for byte.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare two datasets: settings, inputs, ledgers, rows, lengths and examples."""
    from ..observer import Silent
    from ..report.diff import compare
    from .views.console import ConsoleObserver, make_console
    from .views.difference import print_difference

    console = make_console()
    if as_json:
        found = compare(a, b, quick=quick, observer=Silent())
        print_json(found)
    else:
        with ConsoleObserver(console) as observer:
            found = compare(a, b, quick=quick, observer=observer)
        print_difference(console, found, everything=everything)
    if exit_code and not found.identical:
        raise typer.Exit(1)
