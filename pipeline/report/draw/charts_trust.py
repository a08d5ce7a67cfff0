"""Draws the charts and tables on trust: what the dataset was made from, by which versions, and how to reproduce it."""

from ....schemas.report import Stage, Trust
from ....schemas.units import duration, plural, rate, size
from .blocks import Block, Chart, Fold, Grid, Markup, Words
from .charts_base import bar_style, category_axis, panel_title
from .markup import escaped, plain_label, table_of

MOST_STAGES = 24
HASH = 12
"""Number of characters of a hash in a table: enough to distinguish files, and few enough for a phone."""


def trust_blocks(trust: Trust) -> list[Block]:
    """Return fingerprints, a chart of stages, tables, and the configuration."""
    facts = [
        ("manifest", trust.manifest),
        ("plan", trust.plan),
        ("tokenizer", trust.tokenizer),
        ("chat template", trust.template),
        ("engine", trust.engine),
        ("inputs", f"{plural(trust.inputs_in_all, 'file')}, {size(trust.bytes_in_all)}"),
    ]
    blocks: list[Block] = [
        Grid(
            "Fingerprints",
            ["what", "of this dataset"],
            [[what, value] for what, value in facts if value],
            folded=True,
            text_columns=2,
        )
    ]
    if trust.configuration:
        blocks.append(Fold("The configuration to reproduce it", [Words(trust.configuration, code=True)]))
    stages = [stage for stage in trust.stages if stage.seconds >= 0]
    if stages:
        blocks.append(Fold("How long it took", [_stages(stages)]))
    if trust.versions:
        rows = [list(pair) for pair in trust.versions.items()]
        blocks.append(Grid("Versions", ["package", "version"], rows, folded=True, text_columns=2))
    if trust.inputs:
        inputs = [
            [escaped(one.source), escaped(one.file), _short(one.hash), escaped(size(one.bytes))] for one in trust.inputs
        ]
        rest = trust.inputs_in_all - len(inputs)
        caption = "Inputs" + (f": the first {len(inputs):,} of {trust.inputs_in_all:,}" if rest > 0 else "")
        grid = Grid(caption, ["source", "file", "hash", "bytes"], (), True, 3)
        blocks.append(Markup(table_of(grid, inputs)))
    return blocks


def _short(value: str) -> str:
    """Write the start of a hash, with the whole hash as its tooltip."""
    if len(value) <= HASH:
        return escaped(value)
    return f'<code class="whole" title="{escaped(value)}">{escaped(value[:HASH])}…</code>'


def _rate(stage: Stage) -> str:
    if not stage.amount or stage.seconds <= 0:
        return ""
    return rate(stage.amount / stage.seconds, stage.unit)


def _stages(stages: list[Stage]) -> Chart:
    drawn = sorted(stages, key=lambda one: -one.seconds)[:MOST_STAGES]
    drawn.sort(key=stages.index)
    said = [plain_label(duration(one.seconds) + (f" · {_rate(one)}" if _rate(one) else ""), 60) for one in drawn]
    most = max(one.seconds for one in drawn) or 1.0
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(drawn))),
        "x": [one.seconds for one in drawn],
        "marker": bar_style("one"),
        "text": said,
        # inside a long bar, because a phone has no room after its end
        "textposition": "auto",
        "insidetextanchor": "end",
        "insidetextfont": {"color": "@card"},
        "textangle": 0,
        "constraintext": "none",
        "cliponaxis": False,
        "hovertext": [f"{plain_label(one.name)}<br>{words}" for one, words in zip(drawn, said, strict=True)],
        "hoverinfo": "text",
        "showlegend": False,
    }
    layout = {
        "bargap": 0.35,
        "xaxis": {"range": [0, most * 1.45], "ticksuffix": " s", "nticks": 5, "rangemode": "tozero"},
        "yaxis": category_axis([one.name for one in drawn]),
        "annotations": [panel_title("seconds, and the rate")],
        "margin": {"t": 30},
    }
    slowest = max(drawn, key=lambda one: one.seconds)
    alt = f"Bars: how long each stage took. The longest is {slowest.name}, {duration(slowest.seconds)}."
    rows = [
        [one.name, duration(one.seconds), f"{one.amount:,.0f} {one.unit}" if one.amount else "", _rate(one)]
        for one in stages
    ]
    grid = Grid("Stages", ["stage", "time", "amount", "rate"], rows)
    return Chart("trust-stages", "How long it took", alt, [trace], layout, grid, 90 + 34 * len(drawn))
