"""Axes, histograms and labels that several charts share."""

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any

from ...schemas.report import Histogram
from .blocks import Chart, Grid
from .markup import plain_label
from .palette import DASHES, PATTERNS, SERIES
from .spoken import count, large, share

MOST_SERIES = 6
"""Lines that one chart tells apart."""
FEW = 20
"""Values below which a series has no shape, and is drawn only where there is room; then it may reach over the top."""
LEAST_SERIES = 4
"""That are drawn, if there are as many, however few values they have."""
QUANTILES = ("min", "p5", "p25", "p50", "p75", "p95", "p99", "max")


def place(length: float) -> float:
    """Where a length stands on a logarithmic axis. The axis is linear in it, for bars need widths."""
    return math.log2(max(length, 0.5))


def length_axis(low: float, high: float, ticks: int = 12) -> dict[str, Any]:
    """An axis whose ticks are powers of two, from one length to another, and not many more than `ticks`."""
    first, last = math.floor(place(low)), math.ceil(place(high))
    step = max(1, -(-(last - first) // ticks))
    powers = [power for power in range(first, last + 1, step) if power >= 0]
    return {
        "tickvals": powers,
        "ticktext": [_tick(1 << power) for power in powers],
        "tickangle": 0,
        "showgrid": False,
        "range": [place(low) - 0.15, place(high) + 0.15],
    }


def _tick(length: int) -> str:
    return f"{length:,}" if length < 16_384 else f"{length // 1024}k"


def note(text: str, **keys: Any) -> dict[str, Any]:
    """An annotation without an arrow; its text is ours."""
    return {"text": text, "showarrow": False, "font": {"size": 12}, **keys}


def panel_title(text: str, top: float = 1.0, shift: int = 6) -> dict[str, Any]:
    """Over the left end of a panel, where an axis title would lie on its side."""
    font = {"size": 12, "color": "@quiet"}
    return note(text, xref="paper", yref="paper", x=0, xanchor="left", y=top, yanchor="bottom", yshift=shift, font=font)


def legend_under(height: int, top: int = 24) -> dict[str, float]:
    """A legend of one row right below the labels of an axis, in a figure whose height in pixels depends on its bars."""
    plot = max(height - top - 72, 24)
    return {"y": -30 / plot}


def percent_axis(most: float, **keys: Any) -> dict[str, Any]:
    """From 0 to a share, which traces give in percent."""
    top = min(max(most * 108, 1e-3), 103.0) if most <= 1 else most * 108
    return {"range": [0, top], "ticksuffix": " %", "nticks": 6, **keys}


def histogram_chart(
    name: str,
    title: str,
    what: str,
    series: Sequence[tuple[str, Histogram]],
    unit: str,
    percent: bool = False,
    sort: str = "shown",
    undrawn: Collection[str] = (),
) -> Chart | None:
    """Shares of values by bin: bars of one series, steps of several. None where there is no value.

    Args:
        what: what is counted, such as `documents`.
        unit: of the values; with `percent` they are shares.
        sort: of the series, such as `sources`, where some are left out.
        undrawn: series that stand in the table only; the others keep their colours.
    """
    filled = [(label, one) for label, one in series if one.count and len(one.edges) == len(one.counts) + 1]
    if all(label in undrawn for label, _ in filled):
        return None
    shown = [pair for pair in filled if pair[0] not in undrawn]
    shaped = [pair for pair in shown if pair[1].count >= FEW]
    few = [pair for pair in shown if pair[1].count < FEW]
    drawn = [*shaped[:MOST_SERIES], *few[: max(LEAST_SERIES - len(shaped), 0)]]
    logarithmic = not percent and any(spreads(one) for _, one in drawn)
    traces: list[dict[str, Any]] = []
    colours = filled if len(filled) <= MOST_SERIES else drawn
    for label, one in drawn:
        at = next(place for place, pair in enumerate(colours) if pair[1] is one)
        make = _bars if len(drawn) == 1 else _steps
        traces.append(make(at, label, one, logarithmic, percent, unit, what))
    low, high = _span([one for _, one in drawn], logarithmic)
    axis: dict[str, Any] = (
        length_axis(low, high, 8) if logarithmic else _even_axis([one for _, one in drawn], low, high)
    )
    if percent:
        axis = {"range": [low * 100, high * 100], "ticksuffix": " %", "nticks": 7}
    axis["title"] = {"text": unit if not percent else "", "standoff": 6, "font": {"size": 12, "color": "@quiet"}}
    axis["showgrid"] = False
    most = max(max(one.counts) / max(sum(one.counts), 1) for _, one in shaped[:MOST_SERIES] or drawn)
    layout = {
        "xaxis": axis,
        "yaxis": percent_axis(most),
        "showlegend": len(drawn) > 1,
        "annotations": [panel_title(f"share of {what}")],
        "margin": {"t": 30},
        "legend": {"y": -0.16 if percent else -0.27},
    }
    drawn_names = {label for label, _ in drawn}
    without = [label for label, _ in shown if label not in drawn_names]
    left = f" {len(drawn)} of {len(shown)} {sort} are drawn, without {some(without)}." if without else ""
    if left:
        title += f" ({len(drawn)} of {len(shown)} {sort}, without {some(without)})"
    middles = "; ".join(
        f"{plain_words(label)}: half are at most {_value(one.quantiles['p50'], percent)}, "
        f"95 % at most {_value(one.quantiles['p95'], percent)}"
        for label, one in drawn[:3]
        if "p50" in one.quantiles and "p95" in one.quantiles
    )
    alt = f"Histogram: {title}. {middles}.{left}"
    return Chart(name, title, alt, traces, layout, quantile_grid(title, filled, unit, percent), 290, wide=False)


def only_value(series: Sequence[Histogram]) -> float | None:
    """The value that all of them have; None where they differ, or there is none."""
    ends = {one.quantiles.get(name) for one in series if one.count for name in ("min", "max")}
    return ends.pop() if len(ends) == 1 else None


def quantile_grid(title: str, series: Sequence[tuple[str, Histogram]], unit: str, percent: bool = False) -> Grid:
    """What is known of all values, by series."""
    rows = [
        [
            label + ("" if one.exact else " (about)"),
            count(one.count),
            _value(one.mean, percent),
            *(_value(one.quantiles[name], percent) if name in one.quantiles else "–" for name in QUANTILES),
        ]
        for label, one in series
    ]
    return Grid(f"{title}: {unit or 'shares'}", ["", "count", "mean", *QUANTILES], rows)


def some(names: Sequence[str], most: int = 3) -> str:
    """Data's names within a sentence: the first, and how many more."""
    said = ", ".join(map(plain_words, names[:most]))
    return said if len(names) <= most else f"{said} and {len(names) - most:,} more"


def plain_words(text: str) -> str:
    """Data's text within a sentence."""
    return text if len(text) <= 40 else f"{text[:39]}…"


def bar_style(role: str, pattern: str = "") -> dict[str, Any]:
    """Filled with a role's colour, and hatched where a pattern is given."""
    marker: dict[str, Any] = {"color": f"@{role}", "line": {"color": "@card", "width": 1}}
    if pattern:
        marker["pattern"] = {"shape": pattern, "bgcolor": f"@{role}", "fgcolor": "@card", "size": 7, "solidity": 0.25}
    return marker


def category_axis(labels: Sequence[str]) -> dict[str, Any]:
    """Of horizontal bars at 0, 1, 2, …, the first on top. Labels are data's, and two may read the same."""
    names = ["<br>".join(map(plain_label, _lines(label))) for label in labels]
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": names,
        "range": [len(labels) - 0.5, -0.5],
        "showgrid": False,
        "ticks": "",
    }


def _lines(label: str) -> list[str]:
    """Two lines at most, so that a phone has room for the bars."""
    lines = wrap(label[:200], 19) or [""]
    return [*lines[:1], *([lines[1] if len(lines) == 2 else f"{lines[1][:18]}…"] if len(lines) > 1 else [])]


def _value(value: float, percent: bool) -> str:
    return share(value) if percent else (count(value) if value >= 100 or value == int(value) else f"{value:.1f}")


def spreads(one: Histogram) -> bool:
    """Whether bins grow."""
    widths = [high - low for low, high in pairwise(one.edges)]
    return bool(widths) and max(widths) > 4 * min(widths)


def _span(drawn: Sequence[Histogram], logarithmic: bool) -> tuple[float, float]:
    """From the first to the last bin that holds something."""
    lows, highs = [], []
    for one in drawn:
        full = [at for at, number in enumerate(one.counts) if number]
        if full:
            lows.append(one.edges[full[0]])
            highs.append(one.edges[full[-1] + 1])
    low, high = (min(lows), max(highs)) if lows else (0.0, 1.0)
    return (max(low, 1.0), max(high, 2.0)) if logarithmic else (low, high)


def _even_axis(drawn: Sequence[Histogram], low: float, high: float) -> dict[str, Any]:
    if all(upper - lower == 1 for one in drawn for lower, upper in pairwise(one.edges)):
        return {"range": [low - 0.5, high - 0.5], "dtick": max(1, round((high - low) / 10))}
    return {"range": [low, high], "nticks": 7}


def _axis_values(one: Histogram, logarithmic: bool, percent: bool) -> list[float]:
    if logarithmic:
        return [place(edge) for edge in one.edges]
    # A whole number stands in the middle of its bar.
    shift = 0.5 if not percent and all(high - low == 1 for low, high in pairwise(one.edges)) else 0.0
    return [edge * (100 if percent else 1) - shift for edge in one.edges]


def _tips(one: Histogram, percent: bool, unit: str, what: str) -> list[str]:
    whole = max(sum(one.counts), 1)
    tips = []
    for at, number in enumerate(one.counts):
        low, high = one.edges[at], one.edges[at + 1]
        if percent:
            span = f"{share(low)} to {share(high)}"
        elif high - low <= 1 and low == int(low):
            span = f"{count(low)} {unit}"
        else:
            top = high - 1 if high == int(high) and low == int(low) and at < len(one.counts) - 1 else high
            span = f"{count(low)} to {count(top)} {unit}"
        tips.append(f"{span}<br>{share(number / whole)} of {what} ({large(number)})")
    return tips


def _bars(
    at: int, label: str, one: Histogram, logarithmic: bool, percent: bool, unit: str, what: str
) -> dict[str, Any]:
    edges, whole = _axis_values(one, logarithmic, percent), max(sum(one.counts), 1)
    return {
        "type": "bar",
        "name": plain_label(label),
        "x": [(low + high) / 2 for low, high in pairwise(edges)],
        "y": [number / whole * 100 for number in one.counts],
        "width": [high - low for low, high in pairwise(edges)],
        "marker": {"color": f"@{SERIES[at]}", "line": {"color": "@card", "width": 0.6}},
        "hovertext": _tips(one, percent, unit, what),
        "hoverinfo": "text",
    }


def _steps(
    at: int, label: str, one: Histogram, logarithmic: bool, percent: bool, unit: str, what: str
) -> dict[str, Any]:
    edges, whole = _axis_values(one, logarithmic, percent), max(sum(one.counts), 1)
    heights = [number / whole * 100 for number in one.counts]
    tips = [f"{plain_label(label)}<br>{tip}" for tip in _tips(one, percent, unit, what)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain_label(label, 28),
        "x": edges,
        "y": [*heights, heights[-1]],
        "line": {"shape": "hv", "color": f"@{SERIES[at]}", "dash": DASHES[at], "width": 2},
        "hovertext": [*tips, tips[-1]],
        "hoverinfo": "text",
        "hoveron": "points",
    }


def series_style(at: int) -> tuple[str, str]:
    """(role, pattern) of bars of a series without a meaning of its own."""
    return SERIES[at % len(SERIES)], PATTERNS[at % len(PATTERNS)]
