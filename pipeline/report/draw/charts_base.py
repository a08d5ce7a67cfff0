"""Axes, histograms and labels for several charts."""

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any

from ....schemas.report import Histogram
from ....schemas.units import exact, large, share
from .blocks import Chart, Grid
from .markup import plain_label
from .palette import DASHES, PATTERNS, SERIES

MOST_SERIES = 6
"""Maximum number of lines that a reader can tell apart in one chart."""
FEW = 20
"""A series with fewer values than this has no shape. It is drawn only if there is room, and may exceed the axis."""
LEAST_SERIES = 4
"""Number of the largest series that are drawn even if they have few values."""
QUANTILES = ("min", "p5", "p25", "p50", "p75", "p95", "p99", "max")


def place(length: float) -> float:
    """Return a length's position on a logarithmic axis. The axis that plotly gets is linear, because bars need
    widths.
    """
    return math.log2(max(length, 0.5))


def length_axis(low: float, high: float, ticks: int = 12) -> dict[str, Any]:
    """Make a logarithmic axis from one length to another, with about `ticks` ticks at powers of two."""
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
    """Make an annotation without an arrow. Its text must not come from data."""
    return {"text": text, "showarrow": False, "font": {"size": 12}, **keys}


def panel_title(text: str, top: float = 1.0, shift: int = 6) -> dict[str, Any]:
    """Put a panel's title above its left end, where it is easier to read than a rotated axis title."""
    font = {"size": 12, "color": "@quiet"}
    return note(text, xref="paper", yref="paper", x=0, xanchor="left", y=top, yanchor="bottom", yshift=shift, font=font)


def legend_under(height: int) -> dict[str, float]:
    """Place a one-line legend right below the axis labels, for a figure of the given height in pixels."""
    plot = max(height - 24 - 72, 24)
    return {"y": -30 / plot}


def percent_axis(most: float, **keys: Any) -> dict[str, Any]:
    """Make an axis from 0 to a share, for traces in percent."""
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
    """Draw a histogram: bars for one series, steps for several. None if there are no values.

    Args:
        what: what is counted, such as `documents`.
        unit: the values' unit; with `percent`, values are shares.
        sort: the word for the series, such as `sources`, for the sentence on those that are left out. series that only
        the table shows; the others keep their colours.
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
    """Return the value that all series have; None if values differ, or there are none."""
    ends = {one.quantiles.get(name) for one in series if one.count for name in ("min", "max")}
    return ends.pop() if len(ends) == 1 else None


def quantile_grid(title: str, series: Sequence[tuple[str, Histogram]], unit: str, percent: bool = False) -> Grid:
    """Make a table with the count, mean and quantiles of each series."""
    rows = [
        [
            label + ("" if one.exact else " (about)"),
            exact(one.count),
            _value(one.mean, percent),
            *(_value(one.quantiles[name], percent) if name in one.quantiles else "–" for name in QUANTILES),
        ]
        for label, one in series
    ]
    return Grid(f"{title}: {unit or 'shares'}", ["", "count", "mean", *QUANTILES], rows)


def some(names: Sequence[str], most: int = 3) -> str:
    """Write names from data for a sentence: the first few, and how many more there are."""
    said = ", ".join(map(plain_words, names[:most]))
    return said if len(names) <= most else f"{said} and {len(names) - most:,} more"


def plain_words(text: str) -> str:
    """Write text from data for a sentence, shortened if it is long."""
    return text if len(text) <= 40 else f"{text[:39]}…"


def bars(
    name: str, values: Sequence[float], tips: Sequence[str], style: dict[str, Any], texts: Sequence[str] | None = None
) -> dict[str, Any]:
    """Draw horizontal bars, one per axis label.

    Args:
        tips: the bars' hover texts.
        style: the result of `bar_style`.
        texts: labels after the ends of the bars.
    """
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(range(len(values))),
        "x": list(values),
        "marker": style,
        "hoverinfo": "text",
        "hovertext": list(tips),
    }
    return trace if texts is None else trace | {"text": list(texts), "textposition": "outside", "cliponaxis": False}


def bar_style(role: str, pattern: str = "") -> dict[str, Any]:
    """Return the style of a bar: a role's colour, hatched if a pattern is given."""
    marker: dict[str, Any] = {"color": f"@{role}", "line": {"color": "@card", "width": 1}}
    if pattern:
        marker["pattern"] = {"shape": pattern, "bgcolor": f"@{role}", "fgcolor": "@card", "size": 7, "solidity": 0.25}
    return marker


def category_axis(labels: Sequence[str]) -> dict[str, Any]:
    """Make the axis of horizontal bars at 0, 1, 2, …, the first on top. Labels come from data, so two may be equal."""
    names = ["<br>".join(map(plain_label, _lines(label))) for label in labels]
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": names,
        "range": [len(labels) - 0.5, -0.5],
        "showgrid": False,
        "ticks": "",
    }


def _lines(label: str) -> list[str]:
    """Break a label into at most two lines, so that a phone has room for the bars."""
    lines = wrap(label[:200], 19) or [""]
    return [*lines[:1], *([lines[1] if len(lines) == 2 else f"{lines[1][:18]}…"] if len(lines) > 1 else [])]


def _value(value: float, percent: bool) -> str:
    return share(value) if percent else (exact(value) if value >= 100 or value == int(value) else f"{value:.1f}")


def spreads(one: Histogram) -> bool:
    """Whether the bins grow with the values."""
    widths = [high - low for low, high in pairwise(one.edges)]
    return bool(widths) and max(widths) > 4 * min(widths)


def _span(drawn: Sequence[Histogram], logarithmic: bool) -> tuple[float, float]:
    """Return the range from the first to the last bin that is not empty."""
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
    # Center a bar on its whole number.
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
            span = f"{exact(low)} {unit}"
        else:
            top = high - 1 if high == int(high) and low == int(low) and at < len(one.counts) - 1 else high
            span = f"{exact(low)} to {exact(top)} {unit}"
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
    """Return (role, pattern) for the bars of a series that has no fixed colour."""
    return SERIES[at % len(SERIES)], PATTERNS[at % len(PATTERNS)]
