"""`packtrain explain-loss`: whose loss a training step had, and which steps stand out."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...schemas.errors import ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import plural
from .arguments import completion
from .arguments.options import Json
from .views.streams import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ...training.losses.explain import DocumentLoss, StepLoss


def explain_loss(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder that a training wrote.", autocompletion=completion.path)
    ],
    step: Annotated[
        int | None, typer.Option(min=1, help="Which step, from 1.", show_default="list the steps instead")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many documents, or steps, to show.")] = 20,
    by: Annotated[
        str | None,
        typer.Option(
            help="With --step: loss orders by the mean over a document's tokens, share by their sum.",
            show_default="loss",
            autocompletion=completion.rank_by,
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="With --step: where a dataset lies now, if it was moved. May be repeated.",
            autocompletion=completion.path,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the documents of a training step by their losses, or the steps whose loss stands out."""
    from ...training.losses.explain import explain_step, list_steps
    from ...training.losses.loss_file import read_losses
    from .views.console import make_console

    if step is None and (by is not None or data):
        raise ConfigError(
            f"{'--data' if by is None else '--by'} is about the documents of one step; name the step with --step"
        )
    record = read_losses(run)
    if step is None:
        steps = list_steps(record)
        if as_json:
            print_json({"run": str(run), "recorded": len(steps), "steps": steps[:top]})
        else:
            _print_steps(make_console(), run, steps, top)
        return
    found, documents = explain_step(record, step, data or (), by or "loss", top)
    if as_json:
        print_json({"run": str(run), "step": found, "documents": documents})
    else:
        _print_documents(make_console(), found, documents)


def _print_steps(console: "Console", run: Path, steps: "list[StepLoss]", top: int) -> None:
    from rich.table import Table

    from ..report.draw.printing import say

    say(console, f"{plural(len(steps), 'step')}, sorted by how far the loss rises above the median of the ten before")
    table = Table(show_edge=False, pad_edge=False)
    for name in ("step", "loss", "rise", "highest document", "documents", "trained tokens"):
        table.add_column(name, justify="right")
    for one in steps[:top]:
        rise = "–" if one.rise is None else f"{one.rise:+.4f}"
        cells = (f"{one.step:,}", f"{one.loss:.4f}", rise, f"{one.highest:.4f}")
        table.add_row(*cells, f"{one.documents:,}", f"{one.tokens:,}")
    console.print(table)
    if steps:
        line = ["packtrain", "explain-loss", str(run), "--step", str(steps[0].step)]
        _print_command(console, "the documents of the first", shlex.join(line))


def _print_documents(console: "Console", step: "StepLoss", documents: "list[DocumentLoss]") -> None:
    from rich.table import Table
    from rich.text import Text

    from ..report.draw.printing import say

    rise = "with no step before it" if step.rise is None else f"{step.rise:+.4f} against the steps before"
    say(
        console,
        f"step {step.step:,}: loss {step.loss:.4f}, {rise}; "
        f"{plural(step.documents, 'document')} with {plural(step.tokens, 'trained token')}",
    )
    places = list(dict.fromkeys((one.dataset, one.split) for one in documents))
    table = Table(show_edge=False, pad_edge=False)
    for name in ("loss", "tokens", "share", "row", "place", "rank"):
        table.add_column(name, justify="right")
    for name in ("source", "id", *(["dataset"] if len(places) > 1 else [])):
        table.add_column(name, overflow="fold")
    for one in documents:
        numbers = (
            f"{one.loss:.4f}",
            f"{one.tokens:,}",
            f"{one.share:.1%}",
            f"{one.row}",
            f"{one.place}",
            f"{one.rank}",
        )
        words = [one.source, one.id, *([one.dataset] if len(places) > 1 else [])]
        table.add_row(*numbers, *(Text(escape_line(word)) for word in words))
    console.print(table)
    for dataset, split in places:
        say(console, f"rows are of {split} in {escape_line(dataset)}")
    _print_command(console, "the first", documents[0].inspect)


def _print_command(console: "Console", what: str, command: str) -> None:
    from rich.text import Text

    # One line however narrow the terminal, so that it can be copied.
    console.print(Text(f"{what}: {escape_line(command)}"), soft_wrap=True)
