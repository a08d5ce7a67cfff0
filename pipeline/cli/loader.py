"""`packtrain loader`: the batches a trainer would get, how fast they come, and how evenly ranks share the work."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...schemas.errors import ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import duration, plural, rate
from .arguments import completion
from .arguments.options import Json
from .views.streams import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ...training.loader import PackedLoader


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
    order: Annotated[Literal["sequential", "full", "blocks"], typer.Option(help="How rows are ordered.")] = "full",
    seed: Annotated[int, typer.Option(help="The seed of the order.")] = 0,
    epochs: Annotated[int, typer.Option(help="How often the data is read.")] = 1,
    tail: Annotated[Literal["drop", "pad", "repeat"], typer.Option(help="What becomes of the last rows.")] = "drop",
    split: Annotated[str, typer.Option(help="Which split.")] = "train",
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
        print_json(view)
    else:
        print_view(make_console(), view)


def look(where: list[str], steps: int, start: int, explain: bool, **options: Any) -> dict[str, Any]:
    """Build the loader that a trainer would build, and take some batches.

    Args:
        where: folders or URLs; several are mixed so that all end together.
        options: those of `PackedLoader`.

    Returns:
        Plain data: the order, the tensors of a batch, the batches that were `seen`, and the `documents` of the first
        step on all ranks if `explain` asks for them. Times are seconds. `tokens_per_second` includes the first batch.

    Raises:
        ConfigError: torch is not installed, or `start` is beyond the last step.
        PacktrainError: see `PackedLoader`.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise ConfigError("the loader needs torch, which is not installed; pip install 'packtrain[train]'") from None
    from ...training.loader import PackedLoader
    from ...training.order import Source

    began = time.perf_counter()
    loader = PackedLoader(where[0] if len(where) == 1 else [Source(one) for one in where], **options)
    opened = time.perf_counter() - began
    whole = len(loader)
    if not 0 <= start < whole:
        raise ConfigError(f"--start {start:,}: the order has {whole:,} steps; choose 0 to {whole - 1:,}")
    loader.load_state_dict({**loader.state_dict(), "rows": start * loader.rows_per_step})
    taken: list[tuple[float, dict[str, Any]]] = []
    began = last = time.perf_counter()
    for batch in loader:
        now = time.perf_counter()
        taken.append((now - last, batch))
        last = now
        if len(taken) == steps:
            break
    return {
        "where": where,
        "rank": loader.place.rank,
        "world_size": loader.place.world_size,
        "place": loader.place.origin,
        "rows_per_step": loader.rows_per_step,
        "steps": whole,
        "order": loader.state_dict()["order"],
        "balance": loader.balance_note,
        "opened": opened,
        "first": taken[0][0],
        "tokens_per_second": sum(batch["input_ids"].numel() for _, batch in taken) / (last - began),
        "batch": {
            name: f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
            if isinstance(value, torch.Tensor)
            else f"{type(value).__name__} {value}"
            for name, value in taken[0][1].items()
        },
        "seen": [_seen(loader, start + number, wait, batch) for number, (wait, batch) in enumerate(taken)],
        "documents": [asdict(one) for one in loader.explain(start)] if explain else [],
    }


def _seen(loader: "PackedLoader", number: int, wait: float, batch: dict[str, Any]) -> dict[str, Any]:
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
        "wait": wait,
    }


def print_view(console: "Console", view: dict[str, Any]) -> None:
    """Print what `look` returns as tables."""
    from rich.table import Table
    from rich.text import Text

    from ..report.printing import say

    steps = f"{plural(view['steps'], 'step')} of {plural(view['rows_per_step'], 'row')}"
    say(console, f"{', '.join(view['where'])}: {steps}, order {view['order']}")
    say(console, f"rank {view['rank']} of {view['world_size']} ({view['place']})", "dim")
    say(console, view["balance"], "dim")
    say(console)
    table = Table(title="What this rank gets", title_justify="left", show_edge=False, pad_edge=False)
    for name in ("step", "rows", "documents", "tokens", "trained", "fill", "longest", "ranks max/mean", "came in"):
        table.add_column(name, justify="right")
    for one in view["seen"]:
        counts = [f"{one[name]:,}" for name in ("step", "rows", "documents", "tokens")]
        shares = [f"{one['trained'] / max(one['tokens'], 1):.1%}", f"{one['fill']:.2%}"]
        table.add_row(*counts, *shares, f"{one['longest']:,}", f"{one['balance']:.3f}", duration(one["wait"]))
    console.print(table)
    say(console)
    for name, what in view["batch"].items():
        say(console, f"  {name:<14} {what}")
    say(console)
    if view["documents"]:
        documents = Table(title=f"Documents of step {view['seen'][0]['step']:,}", title_justify="left", show_edge=False)
        for name in ("rank", "row", "tokens", "source", "id"):
            documents.add_column(name, justify="left" if name in ("source", "id") else "right", overflow="fold")
        for one in view["documents"]:
            cells = (f"{one['rank']}", f"{one['row']:,}", f"{one['tokens']:,}", one["source"], one["id"])
            documents.add_row(*(Text(escape_line(cell)) for cell in cells))  # no markup: names come from the data
        console.print(documents)
        say(console)
    say(
        console,
        f"opened in {duration(view['opened'])}, first batch after {duration(view['first'])}, "
        f"{rate(view['tokens_per_second'], 'tokens')} over {plural(len(view['seen']), 'step')}",
    )
