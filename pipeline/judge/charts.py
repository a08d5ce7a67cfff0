"""The charts of an evaluation."""

from collections.abc import Sequence
from typing import Any

from ...schemas.units import plural, share
from ...stages.judge.scores import ALL, GroupScore
from ...stages.judge.verdicts import Verdict
from ..report.draw.blocks import Chart, Grid
from ..report.draw.charts_base import (
    bar_style,
    bars,
    category_axis,
    legend_under,
    percent_axis,
    plain_words,
    series_style,
)
from ..report.draw.markup import plain_label
from .sections import interval, percent, score_grid
from .summary import Results, Summary

_BAR = 30
"""Height of a bar in pixels."""
_STYLES = {
    Verdict.passed: ("trained", ""),
    Verdict.wrong: ("lost", "/"),
    Verdict.runtime_error: ("created", "x"),
    Verdict.timeout: ("five", "."),
    Verdict.memory: ("six", "+"),
    Verdict.output_limit: ("two", "-"),
    Verdict.no_code: ("untrained", "."),
    Verdict.machine_failure: ("quiet", "x"),
}
"""Verdict → (role of its colour, pattern)."""
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper limits of the classes of run times; the last class has none."""


def pass_chart(name: str, title: str, scores: Sequence[GroupScore], ks: Sequence[int]) -> Chart | None:
    """pass@k by difficulty, with intervals. None if nothing was estimated."""
    shown = [one for one in scores if one.estimates]
    if not shown:
        return None
    traces: list[dict[str, Any]] = []
    drawn = [one for score in shown for one in score.estimates.values()]
    # bars of nothing say so only on the whole scale
    reach = max(one.high for one in drawn) if any(one.value for one in drawn) else 1.0
    for at, k in enumerate(ks):
        found = [(place, score.estimates[k]) for place, score in enumerate(shown) if k in score.estimates]
        tips = [f"pass@{k}: {percent(one.value)}<br>95 % interval {interval(one)}" for _, one in found]
        trace = bars(f"pass@{k}", [100 * one.value for _, one in found], tips, bar_style(*series_style(at)))
        error = {
            "type": "data",
            "symmetric": False,
            "array": [100 * (one.high - one.value) for _, one in found],
            "arrayminus": [100 * (one.value - one.low) for _, one in found],
            "color": "@ink",
            "thickness": 1.5,
            "width": 4,
        }
        traces.append(trace | {"y": [place for place, _ in found], "error_x": error})
    height = 110 + _BAR * max(len(ks), 1) * len(shown)
    layout = {
        "barmode": "group",
        "xaxis": percent_axis(reach),
        "yaxis": category_axis([one.name for one in shown]),
        "showlegend": len(ks) > 1,
        "legend": {"traceorder": "normal", **legend_under(height)},
    }
    first = ks[0]
    alt = f"Bars with intervals: pass@{first} " + "; ".join(
        f"{plain_words(one.name)} {percent(one.estimates[first].value)}" for one in shown if first in one.estimates
    )
    return Chart(name, title, alt, traces, layout, score_grid(title, scores, ks), height)


def verdicts_chart(summary: Summary) -> Chart:
    """The share of each verdict by difficulty, stacked."""
    groups = list(summary.verdicts)
    traces = []
    for verdict, (role, pattern) in _STYLES.items():
        counts = [summary.verdicts[group][verdict] for group in groups]
        if not any(counts):
            continue
        shares = [count / max(summary.verdicts[group].total(), 1) for group, count in zip(groups, counts, strict=True)]
        tips = [
            f"{plain_label(group)}<br>{verdict.value}: {count:,} ({share(part)})"
            for group, count, part in zip(groups, counts, shares, strict=True)
        ]
        traces.append(bars(verdict.value, [100 * part for part in shares], tips, bar_style(role, pattern)))
    height = 130 + _BAR * len(groups)
    layout = {
        "barmode": "stack",
        "xaxis": {"range": [0, 101], "ticksuffix": " %"},
        "yaxis": category_axis(groups),
        "showlegend": True,
        "legend": {"traceorder": "normal", **legend_under(height)},
    }
    names = [one for one in Verdict if summary.verdicts[ALL][one]]
    alt = "Bars: " + "; ".join(f"{one.value} {summary.verdicts[ALL][one]:,}" for one in names)
    rows = [[group, *(f"{summary.verdicts[group][one]:,}" for one in names)] for group in groups]
    table = Grid("Verdicts by difficulty", ["", *names], rows)
    return Chart("verdicts-chart", "Verdicts by difficulty", alt, traces, layout, table, height)


def time_chart(results: Results) -> Chart | None:
    """How long the slowest test of a program took, for programs that passed and for others. None if nothing ran."""
    ran = [one.outcome for one in results.values() if one.outcome.tests_run]
    if not ran:
        return None
    labels = [*(f"up to {limit:g} s" for limit in _SECONDS), f"more than {_SECONDS[-1]:g} s"]
    parts = {"passed": [0] * len(labels), "did not pass": [0] * len(labels)}
    for one in ran:
        at = next((at for at, limit in enumerate(_SECONDS) if one.slowest_seconds <= limit), len(_SECONDS))
        parts["passed" if one.verdict is Verdict.passed else "did not pass"][at] += 1
    styles = {"passed": bar_style("trained"), "did not pass": bar_style("lost", "/")}
    traces = []
    for name, counts in parts.items():
        tips = [f"{label}<br>{name}: {count:,}" for label, count in zip(labels, counts, strict=True)]
        traces.append(bars(name, counts, tips, styles[name]))
    height = 120 + _BAR * len(labels)
    layout = {
        "barmode": "stack",
        "xaxis": {"nticks": 6, "rangemode": "tozero"},
        "yaxis": category_axis(labels),
        "showlegend": True,
        "legend": {"traceorder": "normal", **legend_under(height)},
    }
    most = max(range(len(labels)), key=lambda at: sum(counts[at] for counts in parts.values()))
    alt = f"Bars: slowest tests of {plural(len(ran), 'sample')}; most took {labels[most]}"
    rows = [[label, *(f"{counts[at]:,}" for counts in parts.values())] for at, label in enumerate(labels)]
    table = Grid("Seconds of the slowest test", ["slowest test", *parts], rows)
    return Chart("time-chart", "Slowest test of each program", alt, traces, layout, table, height)
