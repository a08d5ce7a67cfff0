"""`packtrain report`: the report of a finished dataset."""

from typing import Annotated

import typer

from .arguments.options import (
    All,
    Batch,
    Folder,
    Hidden,
    Json,
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
from .views.streams import print_json


def report(
    folder: Folder,
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
    rows: Annotated[int, typer.Option(min=0, max=100, help="Packed rows to show as text.")] = 6,
    as_json: Json = False,
) -> None:
    """Report what happened to the data, what is trained, how good the packing is, and which length would fit.

    Writes DIR/report.html and DIR/report.json, or --output. With --json, it prints the numbers and writes files only
    with --output.
    """
    from ..dataset.open import open_dataset
    from ..report.collect.gather import report_of_dataset
    from ..report.draw.printing import say
    from ..report.draw.terminal import print_report
    from ..report.files import write_beside, write_report
    from .views.console import make_console

    check_page(output)
    options = report_options(
        lengths, max_length_limit, batch, model, parameters, layers, hidden, world_size, everything, rows=rows
    )
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
