"""What a trainer would get from a packed dataset: its steps, how fast they come and how alike its ranks' work is."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..schemas.errors import ConfigError
from ..schemas.escape import escape_line
from ..schemas.rows import IGNORE_INDEX
from .console import say
from .units import duration, plural, rate

if TYPE_CHECKING:
    from ..training.loader import PackedLoader, Placed


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of one rank."""

    step: int
    rows: int
    """Of this rank."""
    documents: int
    tokens: int
    trained: int
    """Labels that count."""
    fill: float
    """Tokens over what the rows could hold."""
    longest: int
    """Tokens of the longest document."""
    balance: float
    """Model FLOPs of the dearest rank over the mean of all ranks."""
    wait: float
    """Seconds until the batch was there."""


@dataclass(frozen=True, slots=True)
class TrainerView:
    """What was seen."""

    where: list[str]
    rank: int
    world_size: int
    place: str
    rows_per_step: int
    steps: int
    """That the whole order has."""
    order: str
    balance: str
    opened: float
    """Seconds to open the dataset."""
    first: float
    """Seconds from then until the first batch."""
    tokens_per_second: float
    """Of this rank, the first batch included, with nothing done in between."""
    batch: dict[str, str] = field(default_factory=dict)
    """What a batch holds: dtype and shape."""
    seen: list[StepView] = field(default_factory=list)
    documents: "list[Placed]" = field(default_factory=list)
    """Of the first step, on all ranks, if they were asked for."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def look(where: Sequence[str], steps: int, start: int, explain: bool, **options: Any) -> TrainerView:
    """Make the loader that a trainer would make, and take some batches.

    Args:
        where: folders or URLs; several are mixed, so that all end together.
        options: of `PackedLoader`.

    Raises:
        ConfigError: torch is not installed, or the order has no such step.
        PacktrainError: see `PackedLoader`.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise ConfigError("the loader needs torch, which is not installed; pip install 'packtrain[train]'") from None
    from ..training.loader import PackedLoader
    from ..training.mixture import Source

    began = time.perf_counter()
    loader = PackedLoader(where[0] if len(where) == 1 else [Source(one) for one in where], **options)
    opened = time.perf_counter() - began
    whole = len(loader)
    if not 0 <= start < whole:
        raise ConfigError(f"--start {start:,}: the order has {whole:,} steps; give 0 to {whole - 1:,}")
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
    step = loader.steps.at(number * loader.rows_per_step)
    rows = len(step.hands[loader.place.rank])
    bounds = batch["cu_seq_lens_q"]
    costs = loader.schedule.stream.costs(step.rows)[np.array(step.hands)].sum(axis=1)
    real = loader.corpus.tokens(step.rows[step.hands[loader.place.rank]].tolist())
    return StepView(
        step=number,
        rows=rows,
        documents=int((bounds[1:] > bounds[:-1]).sum()),
        tokens=int(batch["input_ids"].numel()),
        trained=int((batch["labels"] != IGNORE_INDEX).sum()),
        fill=real / (rows * loader.corpus.max_length),
        longest=int((bounds[1:] - bounds[:-1]).max()),
        balance=float(costs.max() / costs.mean()) if costs.any() else 1.0,
        wait=wait,
    )


def _balance(loader: "PackedLoader") -> str:
    if loader.schedule.choice is not None:
        return str(loader.schedule.choice)
    balance = loader.schedule.stream.balance
    if balance is None:
        return "rows are not grouped by cost"
    return f"rows grouped by cost: blocks of {balance.block:,}, groups of {balance.group:,}"


def print_view(console: Console, view: TrainerView) -> None:
    """The view as a person reads it."""
    say(console, f"{', '.join(view.where)}: {view.steps:,} steps of {view.rows_per_step:,} rows, order {view.order}")
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
