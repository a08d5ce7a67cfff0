"""The charts of a diff."""

from collections.abc import Sequence
from typing import Any

from ....schemas.units import exact, plural, share
from ..draw.blocks import Chart, Grid
from ..draw.charts_base import bar_style, bars, category_axis, legend_under, percent_axis, plain_words
from ..draw.markup import plain_label
from .change_words import signed
from .changes import ALL, Comparison, ExamplesChange, LedgerLine

_GROWS = ("tokens_encoded", "tokens_created")
_SHRINKS = ("tokens_truncated", "tokens_dropped")
_MOST = 12
"""Maximum number of bars of a chart."""
_BAR = 34
"""Height of a bar, in pixels."""


def token_changes(lines: Sequence[LedgerLine]) -> list[tuple[str, float]]:
    """Return the ledger lines that changed the number of packed tokens, largest first. They add up to the total change.

    Args:
        lines: the lines of all sources together.
    """
    counted = [line for line in lines if line.name in (*_GROWS, *_SHRINKS) and line.change]
    changes = [
        (line.label.removeprefix("tokens "), line.change if line.name in _GROWS else -line.change) for line in counted
    ]
    return sorted(changes, key=lambda one: -abs(one[1]))


def plain_change(change: float) -> str:
    """Write a change as `▲ +1,234`, `▼ −5` or `0`."""
    return signed(0, change).partition(" (")[0] if change else "0"


def tokens_chart(lines: Sequence[LedgerLine]) -> Chart | None:
    """Chart the changes in packed tokens, one bar per ledger line. None if nothing changed.

    Args:
        lines: the lines of all sources together.
    """
    changes = token_changes(lines)
    if not changes:
        return None
    total = sum(change for _, change in changes)
    drawn = changes[:_MOST]
    if len(changes) > _MOST:
        drawn = [*drawn, (f"{len(changes) - _MOST} more", total - sum(change for _, change in drawn))]
    drawn = [*drawn, ("packed tokens, in total", total)]
    up, down = (
        [(at, change) for at, (_, change) in enumerate(drawn) if (change > 0) == more] for more in (True, False)
    )
    traces = []
    for some, role, pattern, name in ((up, "created", "", "▲ more"), (down, "lost", "/", "▼ fewer")):
        if some:
            texts = [plain_change(change) for _, change in some]
            tips = [f"{text} tokens" for text in texts]
            trace = bars(name, [change for _, change in some], tips, bar_style(role, pattern), texts)
            traces.append(trace | {"y": [at for at, _ in some]})
    reach = max(abs(change) for _, change in drawn)
    layout = {
        "xaxis": {
            "range": [-reach * 1.9 if down else 0, reach * 1.9 if up else 0],  # leaves room for figures on a phone
            "zeroline": True,
            "nticks": 5,
            "tickangle": 0,
        },
        "yaxis": category_axis([label for label, _ in drawn]),
        "showlegend": False,
        "barmode": "overlay",
    }
    (first, change), *_ = changes
    alt = (
        f"Bars: packed tokens change by {plain_change(total)} from A to B; most of it is {plain_words(first)}, "
        f"{plain_change(change)}."
    )
    rows = [[label, plain_change(change)] for label, change in [*changes, ("packed tokens, in total", total)]]
    table = Grid("What changed the number of packed tokens", ["line", "tokens"], rows)
    title = "What added (▲) and removed (▼) packed tokens"
    return Chart("tokens", title, alt, traces, layout, table, 90 + _BAR * len(drawn))


def shares_chart(found: Comparison) -> Chart | None:
    """Chart the trained share of packed tokens by source. None for preference pairs, or if the shares are equal."""
    names = list(dict.fromkeys(line.source for line in found.ledger))[:_MOST]
    if found.a.preference or not names:
        return None
    held = {
        (line.source, line.name): (line.a, line.b)
        for line in found.ledger
        if line.reason is None or (line.name, line.reason) == ("tokens_created", "alignment")
    }
    values: list[list[float]] = [[], []]
    rows = []
    for name in names:
        trained, rows_hold, padding = (
            held.get((name, key), (0, 0)) for key in ("labels_trained", "tokens_packed", "tokens_created")
        )
        packed = [rows_hold[at] - padding[at] for at in (0, 1)]
        cells = [name]
        for at in (0, 1):
            values[at].append(trained[at] / max(packed[at], 1) * 100)
            cells += [share(trained[at] / max(packed[at], 1)) if packed[at] else "–", exact(packed[at])]
        rows.append(cells)
    if all(abs(one - other) < 0.05 for one, other in zip(*values, strict=True)):
        return None
    traces = [
        bars(
            side,
            values[at],
            [f"{plain_label(row[0])}<br>{side}: {row[1 + 2 * at]}" for row in rows],
            bar_style(role, pattern),
            [f"{side} {row[1 + 2 * at]}" for row in rows],
        )
        for at, side, role, pattern in ((0, "A", "one", ""), (1, "B", "two", "/"))
    ]
    axis = percent_axis(max(max(each) for each in values) / 100)
    axis["range"] = [0, axis["range"][1] * 1.12]
    height = 110 + 2 * _BAR * len(names)
    layout = {
        "barmode": "group",
        "xaxis": axis,
        "yaxis": category_axis(names),
        "showlegend": True,
        "legend": legend_under(height),
    }
    alt = "Bars: trained share of packed tokens by source. " + "; ".join(
        f"{plain_words(row[0])}: A {row[1]}, B {row[3]}" for row in rows[:4]
    )
    table = Grid("Trained share of packed tokens", ["source", "A", "A's tokens", "B", "B's tokens"], rows)
    title = "Trained share of packed tokens by source"
    return Chart("shares", title, alt, traces, layout, table, height)


_STACK = (
    ("same", "the same", "kept", ""),
    ("labels", "other tokens trained", "trained", "."),
    ("tokens", "other tokens", "created", "x"),
    ("only_a", "− only in A", "lost", "/"),
    ("only_b", "+ only in B", "three", "+"),
)


def examples_chart(found: ExamplesChange) -> Chart | None:
    """Chart the examples of each source: same, changed, gone and new. None if all are the same."""
    sources = found.sources[: _MOST + 1]
    if not found.shown:
        return None
    names = [one.source for one in sources]
    traces: list[dict[str, Any]] = []
    for key, what, role, pattern in _STACK:
        numbers = [getattr(one, key) for one in sources]
        if not any(numbers):
            continue
        wholes = [max(one.same + one.labels + one.tokens + one.only_a + one.only_b, 1) for one in sources]
        shares = [number / whole for number, whole in zip(numbers, wholes, strict=True)]
        tips = [
            f"{plain_label(name)}<br>{what}: {exact(number)} ({share(value)})"
            for name, number, value in zip(names, numbers, shares, strict=True)
        ]
        traces.append(bars(what, [value * 100 for value in shares], tips, bar_style(role, pattern)))
    height = 120 + _BAR * len(names)
    layout = {
        "barmode": "stack",
        "xaxis": {"range": [0, 101], "ticksuffix": " %"},
        "yaxis": category_axis(names),
        "showlegend": True,
        "legend": {"traceorder": "normal", **legend_under(height)},
    }
    total = found.sources[0]
    both = total.same + total.labels + total.tokens
    alt = (
        f"Bars: of the examples, {plural(both, 'is', 'are')} in both, {exact(total.same)} of them the same, "
        f"{exact(total.only_a)} only in A and {exact(total.only_b)} only in B."
    )
    rows = [[one.source, *(exact(getattr(one, key)) for key, *_ in _STACK)] for one in sources]
    table = Grid("Examples by source", ["source", *(what for _, what, _, _ in _STACK)], rows)
    what = "all sources" if names[0] == ALL else "the source"
    title = f"Same, changed, removed and added examples of {what}"
    return Chart("examples-by-source", title, alt, traces, layout, table, height)
