"""`packtrain loader`: the batches a trainer would get, how fast they come, and how evenly ranks share the work."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import duration, plural, rate
from .arguments import completion
from .arguments.options import Json
from .views.streams import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ...training.loader.loader import PackedLoader
    from ...training.loader.step_documents import StepDocument


def loader(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR", help="Finished datasets, or their URLs; all are mixed.", autocompletion=completion.path
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, help="How many batches to take.")] = 5,
    rows_per_step: Annotated[int, typer.Option(min=1, help="Rows per step, over all ranks.")] = 8,
    start: Annotated[int, typer.Option(help="The first step.")] = 0,
    rank: Annotated[int | None, typer.Option(help="The rank to show.", show_default="from the environment")] = None,
    world_size: Annotated[
        int | None, typer.Option(help="The number of ranks.", show_default="from the environment")
    ] = None,
    order: Annotated[str, typer.Option(help="sequential, full or blocks.", autocompletion=completion.order)] = "full",
    seed: Annotated[int, typer.Option(help="The seed of the order.")] = 0,
    epochs: Annotated[int, typer.Option(help="How often the data is read.")] = 1,
    tail: Annotated[str, typer.Option(help="drop, pad or repeat.", autocompletion=completion.tail)] = "drop",
    split: Annotated[str, typer.Option(help="Which split.", autocompletion=completion.split)] = "train",
    balance: Annotated[bool, typer.Option(help="Group rows by cost where that saves time.")] = True,
    static_shapes: Annotated[bool, typer.Option("--static-shapes", help="Give all batches the same shape.")] = False,
    cache: Annotated[Path | None, typer.Option(help="The folder for downloaded shards.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="List the documents of the first step.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a trainer would get: batches, their fill and balance, and how fast they come."""
    from .views.console import make_console

    view = look(
        folders,
        steps,
        start,
        explain,
        rows_per_step=rows_per_step,
        rank=0 if rank is None and world_size is not None else rank,
        world_size=world_size,
        order=order,
        seed=seed,
        epochs=epochs,
        tail=tail,
        balance="auto" if balance else None,
        static_shapes=static_shapes,
        cache=cache,
        **({"split": split} if len(folders) == 1 else {}),
    )
    if as_json:
        print_json(view.to_json())
    else:
        print_view(make_console(), view)


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of one rank."""

    step: int
    rows: int
    """Rows on this rank."""
    documents: int
    tokens: int
    trained: int
    """Labels that are trained."""
    fill: float
    """See `schemas.layout.fill_of`; padding counts where the rows do not say which of their tokens it is."""
    longest: int
    """Tokens of the longest document."""
    balance: float
    """Model FLOPs of the busiest rank over the mean of all ranks."""
    wait: float
    """Seconds until the batch arrived."""


@dataclass(frozen=True, slots=True)
class TrainerView:
    """What `packtrain loader` shows."""

    where: list[str]
    rank: int
    world_size: int
    place: str
    rows_per_step: int
    steps: int
    """Steps in the whole order."""
    order: str
    balance: str
    opened: float
    """Seconds to open the dataset."""
    first: float
    """Seconds from opening to the first batch."""
    tokens_per_second: float
    """Tokens per second on this rank, the first batch included, with no work between batches."""
    batch: dict[str, str] = field(default_factory=dict)
    """Name → dtype and shape of each tensor in a batch."""
    seen: list[StepView] = field(default_factory=list)
    documents: "list[StepDocument]" = field(default_factory=list)
    """With `--explain`: the documents of the first step, on all ranks."""

    def to_json(self) -> dict[str, Any]:
        """The view as plain data."""
        return asdict(self)


def look(where: Sequence[str], steps: int, start: int, explain: bool, **options: Any) -> TrainerView:
    """Build the loader that a trainer would build, and take some batches.

    Args:
        where: folders or URLs; several are mixed so that all end together.
        options: those of `PackedLoader`.

    Raises:
        ConfigError: torch is not installed, or `start` is beyond the last step.
        PacktrainError: see `PackedLoader`.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise ConfigError("the loader needs torch, which is not installed; pip install 'packtrain[train]'") from None
    from ...training.loader.loader import PackedLoader
    from ...training.order.mixture import Source

    began = time.perf_counter()
    loader = PackedLoader(where[0] if len(where) == 1 else [Source(one) for one in where], **options)
    opened = time.perf_counter() - began
    whole = len(loader)
    if not 0 <= start < whole:
        raise ConfigError(f"--start {start:,}: the order has {whole:,} steps; choose 0 to {whole - 1:,}")
    loader.load_state_dict({**loader.state_dict(), "rows": start * loader.rows_per_step})
    seen: list[tuple[float, dict[str, Any]]] = []
    began = last = time.perf_counter()
    for batch in loader:
        now = time.perf_counter()
        seen.append((now - last, batch))
        last = now
        if len(seen) == steps:
            break
    taken = sum(batch["input_ids"].numel() for _, batch in seen)
    start_state = loader.state_dict()
    return TrainerView(
        where=list(where),
        rank=loader.place.rank,
        world_size=loader.place.world_size,
        place=loader.place.origin,
        rows_per_step=loader.rows_per_step,
        steps=whole,
        order=start_state["order"],
        balance=_balance(loader),
        opened=opened,
        first=seen[0][0],
        tokens_per_second=taken / (last - began),
        batch={
            name: f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
            if isinstance(value, torch.Tensor)
            else f"{type(value).__name__} {value}"
            for name, value in seen[0][1].items()
        },
        seen=[_view(loader, start + number, wait, batch) for number, (wait, batch) in enumerate(seen)],
        documents=loader.explain(start) if explain else [],
    )


def _view(loader: "PackedLoader", number: int, wait: float, batch: dict[str, Any]) -> StepView:
    import numpy as np

    from ...schemas.layout import fill_of
    from ...schemas.rows import IGNORE_INDEX

    step = loader.steps.at(number * loader.rows_per_step)
    rows = len(step.rank_rows[loader.place.rank])
    bounds = batch["cu_seq_lens_q"]
    costs = loader.schedule.global_order.costs(step.rows)[np.array(step.rank_rows)].sum(axis=1)
    mine = step.rows[step.rank_rows[loader.place.rank]].tolist()
    spans = [
        span.seq_lengths if span.seq_lengths_unpadded is None else span.seq_lengths_unpadded
        for span in loader.corpus.row_spans(mine)
    ]
    real = sum(int(lengths.sum()) for lengths in spans)
    return StepView(
        step=number,
        rows=rows,
        documents=int((bounds[1:] > bounds[:-1]).sum()),
        tokens=int(batch["input_ids"].numel()),
        trained=int((batch["labels"] != IGNORE_INDEX).sum()),
        fill=fill_of(real, rows, loader.corpus.max_length),
        longest=int((bounds[1:] - bounds[:-1]).max()),
        balance=float(costs.max() / costs.mean()) if costs.any() else 1.0,
        wait=wait,
    )


def _balance(loader: "PackedLoader") -> str:
    if loader.schedule.choice is not None:
        return str(loader.schedule.choice)
    balance = loader.schedule.global_order.balance
    if balance is None:
        return "rows are not grouped by cost"
    return f"rows grouped by cost: blocks of {balance.block:,}, groups of {balance.group:,}"


def print_view(console: "Console", view: TrainerView) -> None:
    """Print the view as tables."""
    from rich.table import Table

    from ..report.draw.printing import say

    steps = f"{plural(view.steps, 'step')} of {plural(view.rows_per_step, 'row')}"
    say(console, f"{', '.join(view.where)}: {steps}, order {view.order}")
    say(console, f"rank {view.rank} of {view.world_size} ({view.place})", "dim")
    say(console, view.balance, "dim")
    say(console)
    table = Table(title="What this rank gets", title_justify="left", show_edge=False, pad_edge=False)
    for name in ("step", "rows", "documents", "tokens", "trained", "fill", "longest", "ranks max/mean", "came in"):
        table.add_column(name, justify="right")
    for one in view.seen:
        table.add_row(
            f"{one.step:,}",
            f"{one.rows:,}",
            f"{one.documents:,}",
            f"{one.tokens:,}",
            f"{one.trained / max(one.tokens, 1):.1%}",
            f"{one.fill:.2%}",
            f"{one.longest:,}",
            f"{one.balance:.3f}",
            duration(one.wait),
        )
    console.print(table)
    say(console)
    for name, what in view.batch.items():
        say(console, f"  {name:<14} {what}")
    say(console)
    if view.documents:
        documents = Table(title=f"Documents of step {view.seen[0].step:,}", title_justify="left", show_edge=False)
        for name in ("rank", "row", "tokens", "source", "document"):
            documents.add_column(name, justify="left" if name in ("source", "document") else "right", overflow="fold")
        for placed in view.documents:
            cells = (f"{placed.rank}", f"{placed.row:,}", f"{placed.tokens:,}", placed.source, placed.id)
            documents.add_row(*map(_plain, cells))
        console.print(documents)
        say(console)
    say(
        console,
        f"opened in {duration(view.opened)}, first batch after {duration(view.first)}, "
        f"{rate(view.tokens_per_second, 'tokens')} over {plural(len(view.seen), 'step')}",
    )


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(escape_line(text))  # no markup: ids come from the data
