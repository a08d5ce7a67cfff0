"""Draws the charts on what is trained: shares and lengths by source, and rows as text."""

from collections.abc import Sequence
from typing import Any

from ....schemas.report import SourceShare, Training
from ....schemas.units import large, plural, share
from .blocks import Block, Chart, Fold, Grid, Heading, Markup, Words
from .charts_base import (
    bar_style,
    category_axis,
    histogram_chart,
    only_value,
    panel_title,
    plain_words,
    quantile_grid,
    some,
)
from .markup import plain_label
from .text_rows import pairs_markup, rows_markup

MOST_BARS = 20
READABLE = 0.15
"""On a phone, a number does not fit into its bar if the bar is shorter than this share of the longest one."""
_KINDS = (
    "The tokens of packed examples before any cut, and how many of them the mask trains. The tag that closes a thought "
    "counts as an answer."
)
"""Text that explains the table of kinds."""
_COUNTED = (
    "A turn without an end token does not teach the model to stop. A turn is cut if its example's length limit "
    "falls inside it. Boundaries separate trained from untrained text; a token that lies across one is trained."
)
"""Text that explains the columns of the table of counts."""


def training_blocks(training: Training) -> list[Block]:
    """Return the charts and tables of the section, then rows as text."""
    sources = sorted(training.sources, key=lambda one: -one.tokens)
    blocks: list[Block] = []
    if sources:
        blocks.append(_shares(sources))
        blocks += [*_kinds(sources), *_lengths(sources)]
        blocks.append(Fold("Turns and boundaries", [_counts(sources), Words(_COUNTED)]))
    blocks.append(Heading("Packed rows as text" if not training.pairs else "Pairs as text"))
    if training.rows or training.pairs:
        blocks.append(Markup(rows_markup(training.rows) if training.rows else pairs_markup(training.pairs)))
    else:
        blocks.append(Words(training.rows_absent or "No rows are shown."))
    return blocks


def _part(one: SourceShare) -> float:
    return one.labels / one.tokens if one.tokens else 0.0


def _shares(sources: Sequence[SourceShare]) -> Chart:
    drawn = sources[:MOST_BARS]
    places = list(range(len(drawn)))
    whole = max(sum(one.tokens for one in sources), 1)
    weight = sum(one.weight or 0 for one in sources)
    tips = [
        f"{plain_label(one.source)}<br>{one.tokens:,} tokens, {share(one.tokens / whole)} of all<br>"
        f"{one.labels:,} trained ({share(_part(one))})"
        + (f"<br>{share((one.weight or 0) / weight)} of the loss, by loss weights" if weight else "")
        for one in drawn
    ]
    most = max(one.tokens for one in drawn) or 1
    common: dict[str, Any] = {"type": "bar", "orientation": "h", "y": places, "hovertext": tips, "hoverinfo": "text"}
    text = {"textposition": "auto", "insidetextanchor": "middle", "textangle": 0, "cliponaxis": False}
    traces = [
        {
            **common,
            "name": "✓ trained",
            "x": [one.labels for one in drawn],
            "marker": bar_style("trained"),
            "text": [share(_part(one)) if one.labels >= READABLE * most else "" for one in drawn],
            "insidetextfont": {"color": "@card"},
            **text,
        },
        {
            **common,
            "name": "packed, not trained",
            "x": [max(one.tokens - one.labels, 0) for one in drawn],
            "marker": bar_style("untrained", "/"),
        },
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.3,
        # with only a few tokens, ticks are whole numbers
        "xaxis": {"tickformat": "~s", "range": [0, most * 1.03], "nticks": 6, **({"dtick": 1} if most < 6 else {})},
        "yaxis": category_axis([one.source for one in drawn]),
        "annotations": [panel_title("tokens, and the share that is trained")],
        "margin": {"t": 30},
        "legend": {"y": -0.12 - 0.35 / len(drawn), "traceorder": "normal"},
    }
    largest = drawn[0]
    alt = (
        f"Bars: packed tokens by source, the trained part first. The largest source, {plain_words(largest.source)}, "
        f"has {large(largest.tokens)} tokens, of which {share(_part(largest))} are trained."
    )
    rows = [
        [one.source, f"{one.tokens:,}", share(one.tokens / whole), f"{one.labels:,}", share(_part(one))]
        + ([f"{one.weight or 0:,.6g}", share((one.weight or 0) / weight)] if weight else [])
        for one in sources
    ]
    head = ["source", "packed", "of all packed", "trained", "of its own"]
    head += ["loss weights", "of the loss"] if weight else []
    grid = Grid("Tokens by source", head, rows)
    title = "Trained share by source"
    if len(sources) > len(drawn):
        title += f": the {len(drawn)} largest of {len(sources):,}"
    return Chart("training-shares", title, alt, traces, layout, grid, 118 + 36 * len(drawn))


def _lengths(sources: Sequence[SourceShare]) -> list[Block]:
    wanted = (
        ("lengths", "Whole examples", "tokens"),
        ("prompts", "Prompts: the untrained part of an example", "tokens"),
        ("completions", "Completions: the trained part of an example", "tokens"),
        ("turns_each", "Trained turns of an example", "turns"),
    )
    blocks: list[Block] = []
    for field, title, unit in wanted:
        series = [(one.source, getattr(one, field)) for one in sources if getattr(one, field) is not None]
        plain = [label for label, one in series if field == "prompts" and one.quantiles.get("max", 2) <= 1]
        if len(plain) == len(series):
            plain = []
        named = f"training-{field.replace('_', '-')}"
        chart = histogram_chart(named, title, "examples", series, unit, sort="sources", undrawn=plain)
        if (same := only_value([one for _, one in series])) is not None:
            blocks.append(Words(f"{title}: always {plural(same, unit.removesuffix('s'))}."))
        elif chart is not None:
            blocks.append(chart)
        elif series:
            blocks.append(quantile_grid(title, series, unit))
        if plain:
            blocks.append(Words(f"Not drawn: prompts of {some(plain)}. Plain text has none; all of it is trained."))
    return [Fold("How long examples are", blocks)] if blocks else []


def _kinds(sources: Sequence[SourceShare]) -> list[Block]:
    grid = kind_grid(sources)
    return [Fold("Thoughts, tool calls and answers", [grid, Words(_KINDS)])] if grid is not None else []


def kind_grid(sources: Sequence[SourceShare]) -> Grid | None:
    """The tokens of all sources by kind; None without conversations."""
    counts: dict[str, list[int]] = {}
    for source in sources:
        for one in source.kinds:
            both = counts.setdefault(one.kind, [0, 0])
            both[0] += one.tokens
            both[1] += one.selected
    if not {"answers", "thoughts", "tool calls"} & counts.keys():
        return None
    rows = [[kind, *(f"{n:,}" for n in (whole, chosen, whole - chosen))] for kind, (whole, chosen) in counts.items()]
    return Grid("Tokens by kind, before any cut", ["kind", "tokens", "trained", "masked"], rows)


def _counts(sources: Sequence[SourceShare]) -> Grid:
    head = [
        "source", "examples", "examples truncated", "turns trained", "turns without end token",
        "turns cut", "boundaries", "tokens across a boundary", "nothing trained, kept", "nothing trained, dropped",
    ]  # fmt: skip
    rows = [
        [
            one.source,
            *(
                f"{number:,}"
                for number in (
                    one.examples, one.truncated, one.turns, one.turns_without_end,
                    one.turns_cut, one.boundaries, one.straddles, one.without_labels, one.untrained,
                )
            ),
        ]
        for one in sources
    ]  # fmt: skip
    return Grid("Examples, turns and boundaries by source", head, rows)
