"""`packtrain loader`: the batches a trainer would get, how fast they come, and how evenly ranks share the work."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...schemas.errors import ConfigError
from ...schemas.units import duration, plural, rate
from .options import Count, Folder, Json
from .output import show

if TYPE_CHECKING:
    from ...training.loader import PackedLoader
    from ..report.grid import Lines


def loader(
    folder: Folder,
    steps: Count = 5,
    rows_per_step: Count = 8,
    start: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    explain: bool = False,
    as_json: Json = False,
) -> None:
    """Show what a trainer would get: batches, their fill and balance, and how fast they come.

    Args:
        steps: how many batches to take.
        rows_per_step: rows per step, over all ranks.
        start: the first step.
        rank: the rank to show; by default from the environment.
        world_size: the number of ranks; by default from the environment.
        explain: list the documents of the first step.
    """
    try:
        from ...training.loader import PackedLoader
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the loader needs {error.name}, which is not installed; pip install 'packtrain[train]'"
        ) from None
    began = time.perf_counter()
    given = PackedLoader(
        folder,
        rows_per_step=rows_per_step,
        rank=0 if rank is None and world_size is not None else rank,
        world_size=world_size,
    )
    opened, whole = time.perf_counter() - began, len(given)
    if not 0 <= start < whole:
        raise ConfigError(f"--start {start:,}: the order has {whole:,} steps; choose 0 to {whole - 1:,}")
    given.load_state_dict({**given.state_dict(), "rows": start * given.rows_per_step})
    seen, batches, tensors = list[dict[str, Any]](), iter(given), dict[str, str]()
    for number in range(start, min(start + steps, whole)):
        last = time.perf_counter()
        batch = next(batches)
        wait = time.perf_counter() - last
        tensors = tensors or {name: _is(value) for name, value in batch.items()}
        seen.append({**_seen(given, number, batch), "wait": wait})
    view = {
        "where": folder,
        "rank": given.place.rank,
        "world_size": given.place.world_size,
        "place": given.place.origin,
        "rows_per_step": given.rows_per_step,
        "steps": whole,
        "order": given.state_dict()["order"],
        "balance": given.balance_note,
        "opened": opened,
        "first": seen[0]["wait"],
        "tokens_per_second": sum(one["tokens"] for one in seen) / sum(one["wait"] for one in seen),
        "batch": tensors,
        "seen": seen,
        "documents": [asdict(one) for one in given.explain(start)] if explain else [],
    }
    show(as_json, lambda _: view, _lines)


def _is(value: Any) -> str:
    if hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{type(value).__name__} {value}"


def _seen(loader: "PackedLoader", number: int, batch: dict[str, Any]) -> dict[str, Any]:
    """One step of one rank. Of padding, `fill` leaves out what the rows say; `balance` is the FLOPs of the busiest rank
    over the mean of all ranks.
    """
    from ...schemas.layout import fill_of
    from ...schemas.rows import IGNORE_INDEX

    step = loader.steps.at(number * loader.rows_per_step)
    hand = step.hands[loader.place.rank]
    costs = loader.corpus.costs(step.rows)[step.hands].sum(axis=1)
    lengths = batch["cu_seq_lens_q"].diff()
    own = sum(int(loader.corpus.row(row).own_lengths.sum()) for row in step.rows[hand].tolist())
    return {
        "step": number,
        "rows": len(hand),
        "documents": int((lengths > 0).sum()),
        "tokens": batch["input_ids"].numel(),
        "trained": int((batch["labels"] != IGNORE_INDEX).sum()),
        "fill": fill_of(own, len(hand), loader.corpus.max_length),
        "longest": int(lengths.max()),
        "balance": float(costs.max() / costs.mean()) if costs.any() else 1.0,
    }


def _lines(view: dict[str, Any]) -> "Lines":
    from ..report.grid import Grid

    steps = f"{plural(view['steps'], 'step')} of {plural(view['rows_per_step'], 'row')}"
    yield f"{view['where']}: {steps}, order {view['order']}"
    yield f"rank {view['rank']} of {view['world_size']} ({view['place']})", "dim"
    yield view["balance"], "dim"
    head = ("step", "rows", "documents", "tokens", "trained", "fill", "longest", "ranks max/mean", "came in")
    rows = [
        [
            *(f"{one[name]:,}" for name in ("step", "rows", "documents", "tokens")),
            f"{one['trained'] / max(one['tokens'], 1):.1%}",
            f"{one['fill']:.2%}",
            f"{one['longest']:,}",
            f"{one['balance']:.3f}",
            duration(one["wait"]),
        ]
        for one in view["seen"]
    ]
    yield ""
    yield Grid("What this rank gets", head, rows, 0)
    yield ""
    yield Grid("A batch", ("tensor", "is"), list(view["batch"].items()), 2)
    if view["documents"]:
        documents = [
            (one["source"], one["id"], *(f"{one[name]:,}" for name in ("rank", "row", "tokens")))
            for one in view["documents"]
        ]
        first = f"{view['seen'][0]['step']:,}"
        yield ""
        yield Grid(f"Documents of step {first}", ("source", "id", "rank", "row", "tokens"), documents, 2)
    yield ""
    yield (
        f"opened in {duration(view['opened'])}, first batch after {duration(view['first'])}, "
        f"{rate(view['tokens_per_second'], 'tokens')} over {plural(len(view['seen']), 'step')}"
    )
