"""`packtrain explain-loss`: whose loss a training step had."""

from typing import TYPE_CHECKING, Annotated

import typer

from ...schemas.errors import ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import plural
from .arguments.options import Config, Json, TrainSet
from .views.streams import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ...training.trainer.explain import StepLoss


def explain_loss(
    step: Annotated[int, typer.Option(min=1, help="Which step, from 1.")],
    config: Config = None,
    settings: TrainSet = None,
    demo: Annotated[bool, typer.Option("--demo", help="The training of packtrain train --demo.")] = False,
    top: Annotated[int, typer.Option(min=1, help="How many documents to show.")] = 20,
    as_json: Json = False,
) -> None:
    """Show the documents of a training step by their losses, computed from the last checkpoint before it."""
    try:
        from ...training.trainer.explain import explain_step
    except ModuleNotFoundError as error:
        raise ConfigError(f"explain-loss needs {error.name}; pip install 'packtrain[train]'") from None
    from .train import load_training
    from .views.console import make_console

    loaded, base = load_training(config, demo, settings or [])
    found = explain_step(loaded, base, step)
    if as_json:
        print_json({**vars_of(found), "documents": found.documents[:top]})
    else:
        _print_documents(make_console(), found, top)


def vars_of(step: "StepLoss") -> dict[str, object]:
    """The figures of a step, without its documents."""
    return {"step": step.step, "checkpoint": step.checkpoint, "loss": step.loss, "tokens": step.tokens}


def _print_documents(console: "Console", step: "StepLoss", top: int) -> None:
    from rich.table import Table
    from rich.text import Text

    from ..report.printing import say

    weights = step.checkpoint or "the weights that training starts from"
    pieces = f"{plural(len(step.documents), 'document')} with {plural(step.tokens, 'trained token')}"
    say(console, f"step {step.step:,} by {weights}: loss {step.loss:.4f}; {pieces}")
    table = Table(show_edge=False, pad_edge=False)
    for name in ("loss", "tokens", "share", "row"):
        table.add_column(name, justify="right")
    for name in ("source", "id", "dataset"):
        table.add_column(name, overflow="fold")
    for one in step.documents[:top]:
        numbers = (f"{one.loss:.4f}", f"{one.tokens:,}", f"{one.share:.1%}", f"{one.row}")
        table.add_row(*numbers, *(Text(escape_line(word)) for word in (one.source, one.id, one.dataset)))
    console.print(table)
    if step.documents:
        # One line however narrow the terminal, so that it can be copied.
        console.print(Text(f"the first: {escape_line(step.documents[0].inspect)}"), soft_wrap=True)
