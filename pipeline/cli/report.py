"""`packtrain report`: the report of a finished dataset."""

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
