"""The command that compares two finished datasets."""

from pathlib import Path
from typing import Annotated

import typer

from ..schemas.errors import ConfigError, OutputError, PacktrainError
from .cli_options import Json, print_json
from .completion import path


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A finished dataset, or its URL.", autocompletion=path)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=path)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it as a page, too: a file that ends in .html.")
    ] = None,
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
    from .report.diff_terminal import print_comparison

    if output is not None and output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--output: {output} is no page; name a file that ends in .html, or use --json > {output}")
    if output is not None and not output.absolute().parent.is_dir():
        raise ConfigError(f"--output: there is no folder {output.absolute().parent}; make it first")
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

        page = render(diff_page(found))
        try:
            LocalStore(output.absolute().parent).replace_bytes(output.name, page)
        except (PacktrainError, OSError) as error:
            raise OutputError(f"--output: {output} cannot be written ({error}); name another file") from error
    if as_json:
        print_json(found)
    else:
        print_comparison(console, found, full=full)
        if output is not None:
            say(console, f"\n{output} shows it as a page")
        elif not found.identical:
            say(console, "\n--output diff.html shows it as a page, --full what did not change, too")
    if exit_code and not found.identical:
        raise typer.Exit(1)
