"""The command that compares two finished datasets."""

from pathlib import Path
from typing import Annotated

import typer

from ..schemas.errors import OutputError, PacktrainError
from .cli_options import Json, print_json
from .cli_report_options import check_page
from .completion import path


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A finished dataset, or its URL.", autocompletion=path)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=path)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.html", help="The page to write, too; folders are made."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all that changed, and not a screen of it.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Show what did not change, too, and more examples.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Open no shard: compare examples by id and length alone.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if the datasets are not the same, byte for byte.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare two datasets: configurations, inputs, ledgers, packing, lengths and examples."""
    from .console import ConsoleObserver, make_console, say
    from .observer import Silent
    from .report.comparison import compare
    from .report.diff_brief import print_brief
    from .report.diff_terminal import print_comparison

    check_page(output)
    console = make_console()
    if as_json:
        found = compare(a, b, quick=quick, observer=Silent())
    else:
        with ConsoleObserver(console) as observer:
            found = compare(a, b, quick=quick, observer=observer)
    if output is not None:
        from .report.diff_page import diff_page
        from .report.shell import render
        from .store import LocalStore

        content = render(diff_page(found))
        try:
            LocalStore(output.absolute().parent).replace_bytes(output.name, content)
        except (PacktrainError, OSError) as error:
            raise OutputError(f"--output: {output} cannot be written ({error}); name another file") from error
    if as_json:
        print_json(found)
    else:
        page = "--output diff.html makes a page of it" if output is None else f"{output} shows it as a page"
        if everything or full:
            print_comparison(console, found, full=full)
            say(console, f"\n{page}{'' if full else ', --full shows what did not change, too'}")
        else:
            print_brief(console, found, page=page)
    if exit_code and not found.identical:
        raise typer.Exit(1)
