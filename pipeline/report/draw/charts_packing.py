"""Draws the charts on packing: rows, balance over ranks, what packing saves; and the tables of batch sizes."""

from collections.abc import Callable, Sequence
from typing import Any

from ....schemas.report import BatchSize, Packing, SplitPacking
from ....schemas.units import duration, exact, flops, large, plural, share
from ..collect.rows.balance import balance_note
from ..collect.saving import beside_time, rows_exactly
from .blocks import Block, Chart, Fold, Grid, Words
from .charts_base import bar_style, bars, category_axis, histogram_chart, panel_title, percent_axis, series_style
from .charts_choice import strategy_words
from .markup import plain_label
from .palette import STRATEGY_STYLES

_PATTERNS = {"padded": "/", "padding_free": "."}


def packing_blocks(packing: Packing) -> list[Block]:
    """Return the charts and tables of the section."""
    # The training split comes first.
    splits = sorted(packing.splits, key=lambda one: one.split != "train")
    blocks: list[Block] = [_splits(packing, splits)] if splits else []
    if len(packing.savings) > 1:
        blocks.append(_savings(packing))
    details = (
        ("Against padding-free batches", _beside(packing)),
        ("How full each row is, and how many documents it holds", _rows(packing, splits)),
        ("Balance over ranks, and the order of rows", _waiting(packing)),
    )
    blocks += [Fold(title, inside) for title, inside in details if inside]
    return blocks


def _beside(packing: Packing) -> list[Block]:
    """Say what packing gains where padding-free batches take about as long."""
    said = beside_time(packing)
    return [Words(said)] if said is not None else []


def _rows(packing: Packing, splits: Sequence[SplitPacking]) -> list[Block]:
    """Draw histograms of fill and of documents per row."""
    fill = "Tokens and padding of a row, of max_length" if padded(packing) else "Fill of a row"
    fills = [(one.split, one.fills) for one in splits]
    documents = [(one.split, one.documents) for one in splits]
    charts = [
        histogram_chart("packing-fill", fill, "rows", fills, "", percent=True),
        histogram_chart("packing-documents", "Documents of a row", "rows", documents, "documents"),
    ]
    return [chart for chart in charts if chart is not None]


def _waiting(packing: Packing) -> list[Block]:
    """Show how long ranks wait for the slowest, and whether document lengths drift over the epoch."""
    blocks: list[Block] = []
    if packing.balance:
        blocks.append(_balance(packing))
        if (said := balance_note(packing)) is not None:
            blocks.append(Words(said))
    if packing.order_after is not None:
        before = f"{packing.order_before:+.3f} as planned, " if packing.order_before is not None else ""
        blocks.append(
            Words(
                f"Rank correlation of a row's position with its longest document: {before}{packing.order_after:+.3f} "
                "as written. 0 means no order; near 1 or −1, lengths drift over the epoch."
            )
        )
    return blocks


def padded(packing: Packing) -> bool:
    """Whether rows contain padding for `pack.align` or `pack.parallel`; fill does not count it."""
    return any(one.padding for one in packing.splits)


def _splits(packing: Packing, splits: Sequence[SplitPacking]) -> Grid:
    windows = any(one.windows > 1 for one in splits)
    tokens = "tokens and padding" if padded(packing) else "tokens"
    head = [
        "split", "rows", "bound", "above the bound", "fill", tokens, "trained", "documents", "documents a row",
        "shards", *(["windows"] if windows else []),
    ]  # fmt: skip
    rows = [
        [
            one.split,
            f"{one.rows:,}",
            f"{one.bound:,}",
            share(one.gap, 3),
            share(one.fill, 2),
            f"{one.tokens:,}",
            share(one.labels / (one.tokens - one.padding)) if one.tokens else "–",
            f"{one.pieces:,}",
            f"{one.pieces / one.rows:,.1f}" if one.rows else "–",
            f"{one.shards:,}",
            *([f"{one.windows:,}"] if windows else []),
        ]
        for one in splits
    ]
    return Grid(f"Rows of {packing.max_length:,} tokens, by {strategy_words(packing.strategy)}", head, rows)


def _savings(packing: Packing) -> Chart:
    first = packing.savings[0]
    measures: list[tuple[str, float, list[float], Callable[[float], str]]] = [
        ("tokens computed", first.slots, [one.slots for one in packing.savings], large),
        ("steps", first.steps, [one.steps for one in packing.savings], lambda value: f"{value:,.0f}"),
        ("work", first.flops, [one.flops for one in packing.savings], flops),
        ("estimated time", first.seconds, [one.seconds for one in packing.savings], duration),
    ]
    against = plain_label(strategy_words(first.strategy))
    traces: list[dict[str, Any]] = []
    for at, saving in enumerate(packing.savings):
        role = STRATEGY_STYLES.get(saving.strategy, ("quiet", "", ""))[0]
        own = at == len(packing.savings) - 1
        name = strategy_words(saving.strategy) + (" (this dataset)" if own else "")
        parts = [values[at] / base * 100 if base else 0.0 for _, base, values, _ in measures]
        said = [say(values[at]) for _, _, values, say in measures]
        tips = [
            f"{plain_label(name)}<br>{what}: {words}, {share(part / 100)} of {against}"
            for (what, *_), words, part in zip(measures, said, parts, strict=True)
        ]
        style = bar_style(role, _PATTERNS.get(saving.strategy, ""))
        traces.append(bars(plain_label(name), parts, tips, style, said))
    most = max((max(trace["x"]) for trace in traces), default=100.0)
    layout = {
        "barmode": "group",
        "bargap": 0.28,
        "xaxis": {"range": [0, most * 1.32], "ticksuffix": " %", "nticks": 6},
        "yaxis": category_axis([what for what, *_ in measures]),
        "annotations": [panel_title(f"of {against} batches")],
        "margin": {"t": 30},
        "legend": {"y": -0.1},
    }
    last = packing.savings[-1]
    alt = (
        f"Bars against {strategy_words(first.strategy)} batches, {large(first.slots)} tokens computed in an epoch: "
        f"this dataset computes {large(last.slots)}, {share(last.slots / first.slots if first.slots else 0)}, in about "
        f"{duration(last.seconds)} rather than {duration(first.seconds)}."
    )
    rows = [
        [strategy_words(one.strategy), f"{one.slots:,}", f"{one.steps:,}", flops(one.flops), duration(one.seconds)]
        for one in packing.savings
    ]
    assumed = f"assuming {packing.shape.name} and {flops(packing.device_flops)}/s"
    grid = Grid("An epoch by way to batch", ["batches", "tokens computed", "steps", "work", "estimated time"], rows)
    return Chart("packing-savings", f"What packing saves in an epoch, {assumed}", alt, traces, layout, grid, 270)


def _balance(packing: Packing) -> Chart:
    labels = [f"{plural(one.ranks, 'rank')}, {plural(one.rows_each, 'row')} each" for one in packing.balance]
    kinds = (
        ("rows in written order", [one.plain for one in packing.balance], "/"),
        ("as the loader assigns them", [one.balanced for one in packing.balance], ""),
        ("its worst step", [one.worst for one in packing.balance], "x"),
    )
    traces = []
    for at, (name, values, pattern) in enumerate(kinds):
        role, _ = series_style((1, 0, 5)[at])
        tips = [f"{label}<br>{name}: {value:.4f} × the mean" for label, value in zip(labels, values, strict=True)]
        more = [max(value - 1, 0) for value in values]
        traces.append(bars(name, [100 * part for part in more], tips, bar_style(role, pattern), list(map(share, more))))
    most = max(max(one.plain, one.balanced, one.worst) - 1 for one in packing.balance)
    axis = percent_axis(max(most, 0.0), nticks=5)
    axis["range"] = [0, max(most * 118, 0.1)]
    layout = {
        "barmode": "group",
        "bargap": 0.28,
        "xaxis": axis,
        "yaxis": category_axis(labels),
        "annotations": [panel_title("longer than the ranks' mean")],
        "margin": {"t": 30},
        "legend": {"y": -0.16},
    }
    best = packing.balance[-1]
    alt = (
        f"Bars: the slowest rank against the mean, in model FLOPs. With {labels[-1]} it takes "
        f"{share(max(best.plain - 1, 0))} longer in plain order, {share(max(best.balanced - 1, 0))} as the loader "
        "assigns rows."
    )
    rows = [
        [label, f"{one.plain:.4f}", f"{one.balanced:.4f}", f"{one.worst:.4f}"]
        for label, one in zip(labels, packing.balance, strict=True)
    ]
    grid = Grid("The slowest rank over the mean of the ranks", ["", *(name for name, *_ in kinds)], rows)
    title = f"How much longer the slowest rank takes, with {packing.shape.name}"
    return Chart("packing-balance", title, alt, traces, layout, grid, 190 + 90 * len(labels))


# Batches


def batch_blocks(batch: BatchSize) -> list[Block]:
    """Return the tables of the section on batch sizes."""
    labels = batch.labels_a_row / batch.examples_a_row if batch.examples_a_row else 0.0
    facts = Grid(
        "On average",
        ["", "tokens", "trained tokens", "examples"],
        [
            ["a packed row", exact(batch.tokens_a_row), exact(batch.labels_a_row), f"{batch.examples_a_row:,.2f}"],
            ["an example", exact(batch.tokens_an_example), exact(labels), "1"],
        ],
        folded=bool(batch.recipes),
    )  # fmt: skip
    if not batch.recipes:
        return [facts]
    rows = [
        [
            f"{one.examples:,}",
            exact(one.tokens),
            exact(one.labels),
            f"{one.rows:,}",
            rows_exactly(one, batch.tokens_a_row),
            exact(one.examples_then),
            f"{one.steps:,}",
        ]
        for one in batch.recipes
    ]
    head = [
        "unpacked examples per step",
        "tokens per step",
        "trained tokens",
        "packed rows",
        "exactly",
        "examples in them",
        "steps per epoch",
    ]
    return [Grid("The same tokens in a step, packed", head, rows, folded=True, text_columns=0), facts]
