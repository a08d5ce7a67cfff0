"""`packtrain loader`: the batches a trainer would get, how fast they come, and how evenly ranks share the work."""

import time
from typing import TYPE_CHECKING, Any

from ...schemas.errors import ConfigError
from ...schemas.units import duration, plural, rate
from .options import Count, Folder
from .output import show

if TYPE_CHECKING:
    from ...training.loader import PackedLoader
    from ..observer import Observer
    from ..report.grid import Lines

_HEAD = ("step", "rows", "documents", "tokens", "trained", "fill", "longest", "ranks max/mean", "came in")


def loader(folder: Folder, steps: Count = 5, rows_per_step: Count = 8, rank: str | None = None) -> None:
    """Show what a trainer would get: batches, their fill and balance, and how fast they come.

    Args:
        steps: how many batches to take.
        rows_per_step: rows per step, over all ranks.
        rank (I/N): rank I, from 0, of N; by default from the environment.
    """
    try:
        from ...training.loader import PackedLoader
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the loader needs {error.name}, which is not installed; pip install 'packtrain[train]'"
        ) from None
    mine, every = _rank(rank) if rank is not None else (None, None)

    def make(_: "Observer") -> "Lines":
        began = time.perf_counter()
        given = PackedLoader(folder, rows_per_step=rows_per_step, rank=mine, world_size=every)
        return _lines(given, steps, time.perf_counter() - began)

    show(make, lambda lines: lines)


def _rank(text: str) -> tuple[int, int]:
    mine, _, every = text.partition("/")
    if not (mine.isdecimal() and every.isdecimal()):
        raise ConfigError(f"--rank {text[:80]}: give a rank and how many there are, such as 0/8")
    return int(mine), int(every)


def _lines(given: "PackedLoader", steps: int, opened: float) -> "Lines":
    from ..report.grid import Grid

    every = f"{plural(len(given), 'step')} of {plural(given.rows_per_step, 'row')}"  # before some are taken
    rows, waits, tokens, batches = [], list[float](), 0, iter(given)
    for number in range(min(steps, len(given))):
        last = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - last)
        tokens += batch["input_ids"].numel()
        rows.append([*_cells(given, number, batch), duration(waits[-1])])
    yield f"{every}, order {given.state_dict()['order']}"
    yield f"rank {given.place.rank} of {given.place.world_size} ({given.place.origin})", "dim"
    yield ""
    yield Grid("What this rank gets", _HEAD, rows, 0)
    yield ""
    yield (
        f"opened in {duration(opened)}, first batch after {duration(waits[0])}, "
        f"{rate(tokens / sum(waits), 'tokens')} over {plural(len(rows), 'step')}"
    )


def _cells(loader: "PackedLoader", number: int, batch: dict[str, Any]) -> list[str]:
    """One step of one rank. Of padding, `fill` leaves out what the rows say; the ranks' figure is the FLOPs of the
    busiest over the mean of all.
    """
    from ...schemas.layout import fill_of
    from ...schemas.rows import IGNORE_INDEX

    step = loader.steps.at(number * loader.rows_per_step)
    hand = step.hands[loader.place.rank]
    costs = loader.corpus.costs(step.rows)[step.hands].sum(axis=1)
    lengths, tokens = batch["cu_seq_lens_q"].diff(), batch["input_ids"].numel()
    own = sum(int(loader.corpus.row(row).own_lengths.sum()) for row in step.rows[hand].tolist())
    counts = (number, len(hand), int((lengths > 0).sum()), tokens)
    return [
        *(f"{count:,}" for count in counts),
        f"{int((batch['labels'] != IGNORE_INDEX).sum()) / max(tokens, 1):.1%}",
        f"{fill_of(own, len(hand), loader.corpus.max_length):.2%}",
        f"{int(lengths.max()):,}",
        f"{float(costs.max() / costs.mean()) if costs.any() else 1.0:.3f}",
    ]
