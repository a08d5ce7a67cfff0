"""Draws the charts on what happened to the data: the ledger as a flow, reasons, and rejected rows."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from ....schemas.report import Flow, LedgerFlow, Link, Reject
from ....schemas.units import large, plural, share
from .blocks import Block, Chart, Fold, Grid, Heading, Markup, Switch, Words
from .charts_base import plain_words
from .markup import escaped, plain_label, table_of
from .palette import KINDS

MOST_SOURCES = 24
"""Maximum number of sources that get a separate chart; the tables show all."""
MOST_FLOWING = 16
"""Maximum number of sources drawn separately in the chart of all sources; the smaller ones are drawn as one."""
_ROLES = set(KINDS)


def flow_blocks(flow: Flow) -> list[Block]:
    """Return the charts and tables of the section."""
    # The sum of all sources is recognised by its position, because a source may have the same name.
    several = len(flow.fates) > 1
    panels: list[tuple[str, Sequence[Block]]] = [
        ("all sources" if several and not at else fate.source, _fate(at, fate, whole=several and not at))
        for at, fate in enumerate(flow.fates[: MOST_SOURCES + 1])
    ]
    blocks: list[Block] = []
    if panels:
        blocks += [Markup(_key()), Switch("flow-source", "Source", panels)]
    if len(flow.fates) > MOST_SOURCES + 1:
        blocks.append(Words(f"Charts show the first {MOST_SOURCES} of {len(flow.fates) - 1:,} sources."))
    if flow.rejected or flow.rejects:
        blocks += [Heading("What could not be used"), *_rejects(flow)]
    if flow.reasons:
        rows = [[reason, meaning] for reason, meaning in flow.reasons.items()]
        blocks.append(Grid("What the reasons mean", ["reason", "what it means, and what to do"], rows, True, 2))
    return blocks


def _fate(at: int, fate: LedgerFlow, *, whole: bool) -> list[Block]:
    chart = _sankey(f"flow-{at}", fate, fate.tokens, every=whole)
    blocks: list[Block] = [chart] if chart is not None else []
    grids = [_grid(links, what) for links, what in ((fate.rows, "rows"), (fate.examples, "examples")) if links]
    if grids:
        blocks.append(Fold("What happened to rows and examples", grids))
    return blocks or [Words("Nothing was read from this source.")]


def _sankey(name: str, fate: LedgerFlow, links: Sequence[Link], *, every: bool) -> Chart | None:
    counted = [link for link in links if link.count > 0 and link.source != link.target]
    if not counted:
        return None
    real = _gathered(counted) if every else counted
    nodes = list(dict.fromkeys(place for link in real for place in (link.source, link.target)))
    number = {node: at for at, node in enumerate(nodes)}
    into, out = [0] * len(nodes), [0] * len(nodes)
    kinds = ["kept"] * len(nodes)
    for link in real:
        into[number[link.target]] += link.count
        out[number[link.source]] += link.count
        if link.kind == "created":
            kinds[number[link.source]] = "created"
        else:
            kinds[number[link.target]] = _kind(link.kind)
    held = [max(pair) for pair in zip(into, out, strict=True)]
    marks = {"lost": "✕ ", "trained": "✓ ", "created": "+ "}
    label = [f"{marks.get(kinds[at], '')}{plain_label(node, 34)} · {large(held[at])}" for at, node in enumerate(nodes)]
    whole = max(held)
    trace: dict[str, Any] = {
        "type": "sankey",
        "orientation": "h",
        "arrangement": "snap",
        "node": {
            "label": label,
            "color": [f"@{kind}" for kind in kinds],
            "pad": 22,
            "thickness": 14,
            "line": {"width": 0},
            "customdata": [
                f"{plain_label(node)}<br>{plural(count, 'token')}" for node, count in zip(nodes, held, strict=True)
            ],
            "hovertemplate": "%{customdata}<extra></extra>",
        },
        "link": {
            "source": [number[link.source] for link in real],
            "target": [number[link.target] for link in real],
            "value": [link.count for link in real],
            "color": [f"@{_kind(link.kind)}/32" for link in real],
            "customdata": [
                f"{plain_label(link.source)} → {plain_label(link.target)}<br>{plural(link.count, 'token')}, "
                f"{share(link.count / max(out[number[link.source]], 1), 2)} of {plain_label(link.source)}"
                for link in real
            ],
            "hovertemplate": "%{customdata}<extra></extra>",
        },
        "textfont": {"size": 12.5, "color": "@ink", "shadow": "none"},
    }
    lost = sum(link.count for link in real if link.kind == "lost")
    trained = sum(link.count for link in real if link.kind == "trained")
    of = "all sources" if every else plain_words(fate.source)
    alt = (
        f"Flow of the tokens of {of}: {large(whole)} at the widest place, {large(trained)} trained, {large(lost)} lost."
    )
    height = min(640, 130 + 18 * len(nodes))
    layout = {"margin": {"l": 4, "r": 4, "t": 10, "b": 14}}
    return Chart(name, f"Where the tokens of {of} went", alt, [trace], layout, _grid(counted, "tokens"), height)


def _gathered(links: Sequence[Link]) -> list[Link]:
    """Join the smaller of many sources into one, because their labels would overlap."""
    reached = {link.target for link in links}
    sizes: Counter[str] = Counter()
    for link in links:
        if link.source not in reached and link.kind != "created":
            sizes[link.source] += link.count
    small = {name for name, _ in sizes.most_common()[MOST_FLOWING - 1 :]} if len(sizes) > MOST_FLOWING else set()
    together: Counter[tuple[str, str, str]] = Counter()
    for link in links:
        source = f"{len(small):,} smaller sources" if link.source in small else link.source
        together[source, link.target, link.kind] += link.count
    return [Link(source, target, count, kind) for (source, target, kind), count in together.items()]


def _kind(word: str) -> str:
    return word if word in _ROLES else "kept"


def _grid(links: Sequence[Link], what: str) -> Grid:
    out: dict[str, int] = {}
    for link in links:
        out[link.source] = out.get(link.source, 0) + link.count
    rows = [
        [
            link.source,
            link.target,
            KINDS.get(link.kind, link.kind),
            f"{link.count:,}",
            share(link.count / max(out[link.source], 1), 2),
        ]
        for link in links
    ]
    return Grid(f"What happened to {what}", ["from", "to", "", what, "share"], rows, text_columns=3)


def _key() -> str:
    items = "".join(
        '<li><svg viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect width="10" height="10" rx="2" fill="var(--{kind})"/></svg>{escaped(words)}</li>'
        for kind, words in KINDS.items()
    )
    return f'<ul class="key" aria-label="Colours and signs">{items}</ul>'


# Rejects


def _rejects(flow: Flow) -> list[Block]:
    blocks: list[Block] = []
    if flow.rejected:
        rows = [
            [reason, flow.reasons.get(reason, ""), f"{number:,}"]
            for reason, number in sorted(flow.rejected.items(), key=lambda item: -item[1])
        ]
        grid = Grid(
            "Rows and examples that could not be used, by reason",
            ["reason", "what it means", "how many"],
            rows,
            False,
            2,
        )
        blocks.append(grid)
    if flow.rejects:
        head = ["where", "source", "reason", "what was found"]
        grid = Grid("Examples of them", head, (), folded=True, text_columns=4)
        blocks.append(Markup(table_of(grid, list(_reject_rows(flow.rejects)))))
    if flow.rejects_file:
        blocks.append(Words(f"All of them are listed in {flow.rejects_file}."))
    return blocks


def _reject_rows(rejects: Iterable[Reject]) -> Iterable[list[str]]:
    for reject in rejects:
        where = escaped(reject.file, 300) + (f":{reject.line:,}" if reject.line is not None else "")
        link = file_link(reject.path)
        if link is not None:
            where = f'<a href="{link}" rel="noreferrer">{where}</a>'
        yield [
            where,
            escaped(reject.source, 200),
            escaped(reject.reason, 200),
            f"<code>{escaped(reject.detail, 500)}</code>",
        ]


def file_link(path: str | None) -> str | None:
    """Return a link to a local file, safe as an attribute; None if the path is not absolute."""
    if path is None or not path.startswith("/") or "\0" in path or not PurePosixPath(path).is_absolute():
        return None
    return "file:///" + quote(path.lstrip("/").encode("utf-8", "surrogatepass"), safe="/")
