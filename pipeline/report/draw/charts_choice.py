"""Draws the charts on max_length: what each length loses and costs, by strategy."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from ....schemas.report import Choice, Histogram, Point
from ....schemas.units import exact, flops, large, share, times
from ....stages.forecast.sweep import STRATEGIES
from ..collect.lengths.by_source import SOURCES_HEAD, source_cells, source_tables
from .blocks import Block, Chart, Fold, Grid, Markup, Words
from .charts_base import length_axis, note, panel_title, percent_axis, place, spreads
from .choice_notes import own_way
from .markup import escaped, plain_label, sentence
from .palette import STRATEGY_STYLES

_TENFOLD = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000)
"""Multiples of this configuration's work at which the axis has labels."""
_BAND = (0.0, 0.26)
_ABOVE = (0.44, 1.0)
"""How the first chart is divided vertically: document lengths below, losses above, with a common horizontal axis."""


def choice_blocks(choice: Choice) -> list[Block]:
    """Return the charts and tables of the section."""
    if not choice.points:
        return [Words("There are no documents to compare.")]
    blocks: list[Block] = []
    if choice.advice is not None:
        advice = choice.advice
        said = f" {sentence(advice.sentence)}" if advice.sentence != choice.sentence else ""
        advised = f"Advised: {advice.max_length:,} with {escaped(strategy_words(advice.strategy), 80)}."
        reasons = "".join(f"<li>{sentence(reason)}</li>" for reason in advice.reasons)
        why = f"<details><summary>Why</summary><ul>{reasons}</ul></details>" if reasons else ""
        blocks.append(Markup(f'<div class="advice"><p><strong>{advised}</strong>{said}</p>{why}</div>'))
    blocks.append(_lost(choice))
    by_source = [
        Grid(title, SOURCES_HEAD, [source_cells(one) for one in rows]) for title, rows in source_tables(choice)
    ]
    if by_source:
        blocks.append(Fold("What each source loses", by_source))
    costs: list[Block] = [_lengths_grid(choice), *map(Words, choice.notes)]
    costs += [_work(choice), _fill(choice), _cut(choice), _attention(choice), _all_points(choice)]
    blocks.append(Fold("What each length costs: rows, fill, work", costs))
    return blocks


def strategy_words(strategy: str) -> str:
    """Return a strategy's name for legends."""
    return {"padding_free": "padding-free"}.get(strategy, strategy)


def kept(point: Point) -> float:
    """Return the share of trained tokens that is kept."""
    whole = point.labels + point.labels_lost
    return point.labels / whole if whole else 1.0


def _of_strategy(choice: Choice, strategy: str) -> list[Point]:
    return sorted((one for one in choice.points if one.strategy == strategy), key=lambda one: one.max_length)


def _strategies(choice: Choice) -> list[str]:
    seen = dict.fromkeys(point.strategy for point in choice.points)
    return [*(name for name in STRATEGIES if name in seen), *(name for name in seen if name not in STRATEGIES)]


def _configured(choice: Choice) -> Point | None:
    points = _of_strategy(choice, choice.strategy)
    return next((point for point in points if point.max_length == choice.max_length), None)


def _curves(
    choice: Choice, value: Callable[[Point], float], say: Callable[[float], str], what: str, **keys: Any
) -> list[dict[str, Any]]:
    """Draw a line for each strategy. Strategies with identical lines share one."""
    alike: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for strategy in _strategies(choice):
        line = tuple((point.max_length, value(point)) for point in _of_strategy(choice, strategy))
        alike.setdefault(line, []).append(strategy)
    traces = []
    for line, names in alike.items():
        # the configured strategy, if it is among them, decides the style
        first = choice.strategy if choice.strategy in names else names[0]
        role, dash, symbol = STRATEGY_STYLES.get(first, ("quiet", "solid", "circle"))
        name = plain_label(", ".join(map(strategy_words, names)), 60)
        own = choice.strategy in names
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"<b>{name}</b>" if own else name,
                "x": [place(length) for length, _ in line],
                "y": [number for _, number in line],
                "line": {"color": f"@{role}", "dash": dash, "width": 3 if own else 1.8},
                "marker": {"color": f"@{role}", "symbol": symbol, "size": 8 if own else 7},
                "hovertext": [f"{name}<br>at {length:,}: {say(number)} {what}" for length, number in line],
                "hoverinfo": "text",
                **keys,
            }
        )
    return traces


def _lines(choice: Choice) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (shapes, annotations above the plot) that mark this configuration and the advised one."""
    marks = [(choice.max_length, "┃", "this configuration", "solid", "@ink")]
    advice = choice.advice
    if advice is not None and advice.max_length == choice.max_length:
        marks = [(choice.max_length, "┃", "this configuration, as advised", "solid", "@ink")]
    elif advice is not None:
        marks.append((advice.max_length, "┇", "advised", "dash", "@accent"))
    low, high = _span(choice)
    shapes, notes = [], []
    for at, (length, sign, what, dash, colour) in enumerate(marks):
        x = place(length)
        line = {"color": colour, "width": 1.5, "dash": dash}
        shapes.append(
            {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line, "layer": "between"}
        )
        left = 2 * x > place(low) + place(high)
        words = f"{what} <b>{length:,}</b> {sign}" if left else f"{sign} <b>{length:,}</b> {what}"
        side = {"xanchor": "right", "xshift": 5} if left else {"xanchor": "left", "xshift": -5}
        font = {"size": 12, "color": colour}
        notes.append(note(words, x=x, y=1, yref="paper", yanchor="bottom", yshift=1 + 17 * at, font=font, **side))
    return shapes, notes


def _span(choice: Choice) -> tuple[int, int]:
    lengths = [point.max_length for point in choice.points]
    return min(lengths), max(lengths)


def _lost(choice: Choice) -> Chart:
    shapes, notes = _lines(choice)
    traces = _curves(
        choice, lambda one: (1 - kept(one)) * 100, lambda number: share(number / 100, 2), "of trained tokens lost"
    )
    most = max((1 - kept(point) for point in choice.points), default=0.0)
    low, high = _span(choice)
    one = choice.lengths
    layout: dict[str, Any] = {
        "xaxis": {**length_axis(low, high), "anchor": "y2", "title": _title("max_length, and tokens of a document")},
        "yaxis": percent_axis(most, domain=list(_ABOVE)),
        "shapes": shapes,
        "annotations": [panel_title("trained tokens lost", 1.0, 6 + 17 * len(notes)), *notes],
        "margin": {"t": 32 + 17 * len(notes)},
        "legend": {"y": -0.26},
    }
    if one.count and len(one.edges) == len(one.counts) + 1:
        whole = max(sum(one.counts), 1)
        # On this logarithmic axis bins differ in width, so heights are counts per width.
        heights = [number / whole * 100 for number in one.counts]
        if not spreads(one):
            heights = [
                height / (place(upper) - place(lower)) if place(upper) > place(lower) else 0.0
                for height, (lower, upper) in zip(heights, pairwise(one.edges), strict=True)
            ]
        pairs = list(pairwise(one.edges))
        traces.append(
            {
                "type": "bar",
                "name": "lengths of documents",
                "showlegend": False,
                "x": [(place(lower) + place(upper)) / 2 for lower, upper in pairs],
                "width": [place(upper) - place(lower) for lower, upper in pairs],
                "y": heights,
                "yaxis": "y2",
                "marker": {"color": "@untrained/60", "line": {"color": "@card", "width": 0.6}},
                "hovertext": [
                    f"{exact(lower)} to {exact(max(upper - 1, lower))} tokens<br>{large(number)} documents"
                    for (lower, upper), number in zip(pairs, one.counts, strict=False)
                ],
                "hoverinfo": "text",
            }
        )
        layout["yaxis2"] = {"domain": list(_BAND), "showticklabels": False, "ticks": "", "showgrid": False}
        layout["annotations"].append(panel_title(f"documents by their length{_outside(one, low, high)}", _BAND[1], 0))
    own = _configured(choice)
    alt = "Lines: the share of trained tokens lost falls as max_length grows."
    if own is not None:
        alt += f" {own.strategy} at {own.max_length:,}, this configuration, loses {share(1 - kept(own), 2)}."
    if choice.advice is not None:
        alt += f" Advised is {choice.advice.max_length:,}."
    return Chart(
        "choice-lost",
        "What is lost at each length",
        alt,
        traces,
        layout,
        _matrix(choice, "Trained tokens lost", lambda point: share(1 - kept(point), 2)),
        310,
    )


def _outside(lengths: Histogram, low: int, high: int) -> str:
    """Return a note if no document length lies between two lengths; else ""."""
    full = [pair for pair, number in zip(pairwise(lengths.edges), lengths.counts, strict=True) if number]
    if any(upper > low and lower < high for lower, upper in full) or not full:
        return ""
    return f": all are {'shorter' if full[0][0] < low else 'longer'} than any of these"


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "standoff": 6, "font": {"size": 12, "color": "@quiet"}}


def _panel(
    choice: Choice,
    name: str,
    title: str,
    what: str,
    traces: Sequence[dict[str, Any]],
    axis: dict[str, Any],
    alt: str,
    grid: Grid,
) -> Chart:
    shapes, _ = _lines(choice)
    low, high = _span(choice)
    layout = {
        "xaxis": {**length_axis(low, high), "title": _title("max_length")},
        "yaxis": axis,
        "shapes": shapes,
        "annotations": [panel_title(what)],
        "margin": {"t": 30},
        "legend": {"y": -0.24},
    }
    return Chart(name, title, alt, traces, layout, grid, 360, wide=False)


def _work(choice: Choice) -> Chart:
    own = _configured(choice)
    unit = (
        own.flops
        if own is not None and own.flops > 0
        else max((point.flops for point in choice.points), default=1.0) or 1.0
    )
    traces = _curves(choice, lambda point: point.flops / unit, times, "the work")
    values = [point.flops / unit for point in choice.points if point.flops > 0] or [1.0]
    ladder = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5) if max(values) < 8 * min(values) else _TENFOLD
    ticks = [tick for tick in ladder if min(values) / 2 <= tick <= max(values) * 2]
    # A logarithmic axis cannot show zero.
    for trace in traces:
        trace["y"] = [value if value > 0 else None for value in trace["y"]]
    axis = {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g} ×" for tick in ticks]}
    against = "this configuration" if own is not None and own.flops > 0 else "the most"
    best = min(choice.points, key=lambda point: point.flops / max(point.labels, 1))
    alt = (
        f"Lines: the work of an epoch against {against}, by length and strategy. The least work per trained token is "
        f"with {strategy_words(best.strategy)} at {best.max_length:,}."
    )
    grid = _matrix(
        choice, f"Floating-point operations of an epoch, with {choice.shape.name}", lambda point: flops(point.flops)
    )
    title = f"Work of an epoch, with {choice.shape.name}"
    return _panel(choice, "choice-work", title, f"times {against}, logarithmic", traces, axis, alt, grid)


def _attention(choice: Choice) -> Chart:
    def part(point: Point) -> float:
        return point.attention_flops / point.flops if point.flops else 0.0

    traces = _curves(
        choice, lambda point: part(point) * 100, lambda number: share(number / 100), "of the work is attention"
    )
    most = max(map(part, choice.points))
    longest = max(choice.points, key=part)
    alt = (
        f"Lines: attention's share of the work by length and strategy. It is at most {share(part(longest))}, with "
        f"{strategy_words(longest.strategy)} at {longest.max_length:,}."
    )
    grid = _matrix(
        choice,
        "Attention, of the work of an epoch",
        lambda point: f"{flops(point.attention_flops)} ({share(part(point))})",
    )
    axis = percent_axis(most)
    title = f"Attention's share of the work, with {choice.shape.name}"
    return _panel(choice, "choice-attention", title, "of the work", traces, axis, alt, grid)


def _fill(choice: Choice) -> Chart:
    traces = _curves(
        choice, lambda point: point.fill * 100, lambda number: share(number / 100, 2), "of what is computed are tokens"
    )
    own = _configured(choice)
    alt = "Lines: tokens as a share of what is computed, the rest being padding, by length and strategy."
    if own is not None:
        alt += f" This configuration fills {share(own.fill, 2)}."
    grid = _matrix(choice, "Tokens of what is computed", lambda point: share(point.fill, 2))
    return _panel(choice, "choice-fill", "Fill", "tokens of what is computed", traces, percent_axis(1.0), alt, grid)


def _cut(choice: Choice) -> Chart:
    def part(point: Point) -> float:
        whole = point.documents + point.documents_lost
        return (point.documents_cut + point.documents_lost) / whole if whole else 0.0

    traces = _curves(choice, lambda point: part(point) * 100, lambda number: share(number / 100, 2), "of documents cut")
    most = max(map(part, choice.points))
    own = _configured(choice)
    alt = "Lines: the share of documents that are cut or left out, by length and strategy."
    if own is not None:
        alt += f" This configuration cuts {own.documents_cut:,} and leaves out {own.documents_lost:,}."
    grid = _matrix(
        choice,
        "Documents cut, and left out",
        lambda point: f"{point.documents_cut:,}" + (f" + {point.documents_lost:,}" if point.documents_lost else ""),
    )
    axis = percent_axis(most)
    return _panel(choice, "choice-cut", "Documents cut or left out", "of documents", traces, axis, alt, grid)


# Tables


def _matrix(choice: Choice, caption: str, cell: Callable[[Point], str]) -> Grid:
    """Make a table with a row per length and a column per strategy."""
    names = _strategies(choice)
    cells = {(point.max_length, point.strategy): cell(point) for point in choice.points}
    lengths = sorted({point.max_length for point in choice.points})
    rows = [[f"{length:,}", *(cells.get((length, name), "–") for name in names)] for length in lengths]
    return Grid(caption, ["max_length", *map(strategy_words, names)], rows)


def _lengths_grid(choice: Choice) -> Grid:
    """Make a table of the configured strategy at each length."""
    head = [
        "max_length",
        "trained tokens kept",
        "documents cut",
        "left out",
        "rows",
        "fill",
        "above the bound",
        "attention",
        f"work, with {choice.shape.name}",
    ]
    own = _configured(choice)
    rows = []
    for point in _of_strategy(choice, own_way(choice).partition(" ")[0]):
        marks = []
        if point.max_length == choice.max_length:
            marks.append("now")
        if choice.advice is not None and point.max_length == choice.advice.max_length:
            marks.append(
                "advised" if choice.advice.strategy == point.strategy else f"advised, with {choice.advice.strategy}"
            )
        rows.append(
            [
                f"{point.max_length:,}" + (f" ← {', '.join(marks)}" if marks else ""),
                share(kept(point), 2),
                f"{point.documents_cut:,}",
                f"{point.documents_lost:,}",
                f"{point.rows:,}",
                share(point.fill, 2),
                share(point.gap, 2),
                flops(point.attention_flops),
                times(point.flops / own.flops) if own is not None and own.flops else flops(point.flops),
            ]
        )
    return Grid(f"{own_way(choice)}, at each length", head, rows)


def _all_points(choice: Choice) -> Grid:
    head = [
        "max_length", "strategy", "documents", "cut", "left out", "pieces", "rows or batches", "bound", "tokens",
        "tokens lost", "trained", "trained lost", "computed", "fill", "above the bound", "attention", "all work",
    ]  # fmt: skip
    rows = [
        [
            f"{point.max_length:,}",
            strategy_words(point.strategy),
            *(
                f"{number:,}"
                for number in (
                    point.documents, point.documents_cut, point.documents_lost, point.pieces, point.rows, point.bound,
                    point.tokens, point.tokens_lost, point.labels, point.labels_lost, point.slots,
                )
            ),
            share(point.fill, 2),
            share(point.gap, 2),
            flops(point.attention_flops),
            flops(point.flops),
        ]
        for point in choice.points
    ]  # fmt: skip
    return Grid(
        f"Every length and strategy, with padded batches of {choice.batch}", head, rows, folded=True, text_columns=2
    )
