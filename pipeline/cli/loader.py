"""`packtrain loader`: the batches a trainer would get, how fast they come, and how evenly ranks share the work."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import duration, plural, rate
from .options import Json, no_words
from .streams import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ...training.loader import PackedLoader


def loader(
    folders: Annotated[
        list[str],
        typer.Argument(metavar="DIR", help="Finished datasets, or their URLs; all are mixed.", autocompletion=no_words),
    ],
    steps: Annotated[int, typer.Option(min=1, help="How many batches to take.")] = 5,
    rows_per_step: Annotated[int, typer.Option(min=1, help="Rows per step, over all ranks.")] = 8,
    start: Annotated[int, typer.Option(help="The first step.")] = 0,
    rank: Annotated[int | None, typer.Option(help="The rank to show.", show_default="from the environment")] = None,
    world_size: Annotated[
        int | None, typer.Option(help="The number of ranks.", show_default="from the environment")
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the order.")] = 0,
    split: Annotated[str, typer.Option(help="Which split.")] = "train",
    explain: Annotated[bool, typer.Option("--explain", help="List the documents of the first step.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a trainer would get: batches, their fill and balance, and how fast they come."""
    from .console import make_console

    try:
        import torch
    except ModuleNotFoundError:
        raise ConfigError("the loader needs torch, which is not installed; pip install 'packtrain[train]'") from None
    from ...training.loader import PackedLoader
    from ...training.packed_rows import Source

    options: dict[str, Any] = {"split": split} if len(folders) == 1 else {}
    began = time.perf_counter()
    given = PackedLoader(
        folders[0] if len(folders) == 1 else [Source(one) for one in folders],
        rows_per_step=rows_per_step,
        rank=0 if rank is None and world_size is not None else rank,
        world_size=world_size,
        seed=seed,
        **options,
    )
    opened, whole = time.perf_counter() - began, len(given)
    if not 0 <= start < whole:
        raise ConfigError(f"--start {start:,}: the order has {whole:,} steps; choose 0 to {whole - 1:,}")
    given.load_state_dict({**given.state_dict(), "rows": start * given.rows_per_step})
    seen: list[dict[str, Any]] = []
    tensors: dict[str, str] = {}
    last = time.perf_counter()
    for batch in given:
        wait = time.perf_counter() - last
        if not seen:
            tensors = {
                name: f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
                if isinstance(value, torch.Tensor)
                else f"{type(value).__name__} {value}"
                for name, value in batch.items()
            }
        seen.append({**_seen(given, start + len(seen), batch), "wait": wait})
        last = time.perf_counter()
        if len(seen) == steps:
            break
    view = {
        "where": folders,
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
    if as_json:
        print_json(view)
    else:
        _print_view(make_console(), view)


def _seen(loader: "PackedLoader", number: int, batch: dict[str, Any]) -> dict[str, Any]:
    """One step of one rank. Of padding, `fill` leaves out what the rows say; `balance` is the FLOPs of the busiest rank
    over the mean of all ranks.
    """
    from ...schemas.layout import fill_of
    from ...schemas.rows import IGNORE_INDEX

    step = loader.steps.at(number * loader.rows_per_step)
    hand = step.hands[loader.place.rank]
    costs = loader.steps.costs(step.rows)[step.hands].sum(axis=1)
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


def _print_view(console: "Console", view: dict[str, Any]) -> None:
    from ..report.printing import Grid, print_grids, say

    steps = f"{plural(view['steps'], 'step')} of {plural(view['rows_per_step'], 'row')}"
    say(console, f"{', '.join(view['where'])}: {steps}, order {view['order']}")
    say(console, f"rank {view['rank']} of {view['world_size']} ({view['place']})", "dim")
    say(console, view["balance"], "dim")
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
    grids = [Grid("What this rank gets", head, rows, 0)]
    grids.append(Grid("A batch", ("tensor", "is"), list(view["batch"].items()), 2))
    if view["documents"]:
        documents = [
            (one["source"], one["id"], *(f"{one[name]:,}" for name in ("rank", "row", "tokens")))
            for one in view["documents"]
        ]
        first = f"{view['seen'][0]['step']:,}"
        grids.append(Grid(f"Documents of step {first}", ("source", "id", "rank", "row", "tokens"), documents, 2))
    for grid in grids:
        say(console)
        print_grids(console, [grid])
    say(console)
    say(
        console,
        f"opened in {duration(view['opened'])}, first batch after {duration(view['first'])}, "
        f"{rate(view['tokens_per_second'], 'tokens')} over {plural(len(view['seen']), 'step')}",
    )
