"""Writes a page as one HTML file: no network access, a strict content policy, and all data shown as text."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .blocks import Block, Chart, Fold, Grid, Heading, Markup, Page, PageSection, Switch, Words, walk
from .markup import escaped, sentence, table
from .palette import scheme, variables
from .plotly_script import plotly_script

_AXIS = {
    "automargin": True,
    "fixedrange": True,
    "gridcolor": "@line",
    "linecolor": "@line",
    "tickcolor": "@line",
    "zeroline": False,
    "ticks": "outside",
    "ticklen": 4,
}
BASE: dict[str, Any] = {
    "font": {"family": 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif', "size": 13, "color": "@ink"},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "margin": {"t": 24, "l": 62, "r": 34, "b": 36},
    "hoverlabel": {"bgcolor": "@card", "bordercolor": "@quiet", "font": {"color": "@ink", "size": 13}, "align": "left"},
    "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.16, "yanchor": "top", "bgcolor": "rgba(0,0,0,0)"},
    "dragmode": False,
    "hovermode": "closest",
    "bargap": 0.06,
}
"""Defaults of every figure's layout, as `_AXIS` has those of every axis; a figure's own keys take precedence. plotly
widens the margins if labels or a legend need more.
"""
_EMPTY = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
"""SHA-256 of an empty text: plotly adds an empty style element and inserts rules into it."""


def render(page: Page) -> bytes:
    """Return the bytes of the HTML file.

    Raises:
        PacktrainError: plotly's script was not found.
    """
    charts = {
        block.name: _figure(block)
        for section in page.sections
        for block in walk(section.blocks)
        if isinstance(block, Chart)
    }
    style = variables() + _beside("page.css")
    plotly = plotly_script() if charts else ""
    scripts = [*([plotly] if plotly else []), _beside("page.js")]
    data = {"schemes": {"light": scheme(dark=False), "dark": scheme(dark=True)}, "charts": charts}
    body = "\n".join([_head(page), _contents(page), _main(page), _FOOT])
    before = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, scripts)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{escaped(page.title, 200)}</title>\n<style>{style}</style>{_placeholders(plotly)}\n</head>\n"
        f"<body>\n{body}\n"
        f'<script type="application/json" id="figures">{_data(data)}</script>\n'
    )
    parts = [before.encode("utf-8", "backslashreplace")]
    for script in scripts:
        parts += [b"<script>", _encoded(script), b"</script>\n"]
    return b"".join([*parts, b"</body>\n</html>\n"])


@cache
def _encoded(script: str) -> bytes:
    """Encode a script; cached, because plotly's has five million bytes."""
    return script.encode()


# The policy


def _policy(style: str, scripts: Sequence[str]) -> str:
    """Return a policy that allows exactly these scripts and style sheets, and forbids loading anything.

    Style attributes are allowed because plotly sets them. They cannot load anything, because all sources are forbidden.
    """
    allowed = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src-elem 'sha256-{_hash(style)}' 'sha256-{_EMPTY}'; "
        "style-src-attr 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )


@cache
def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def _placeholders(script: str) -> str:
    """Return empty style elements with the ids of plotly's map styles, so that plotly does not add its own."""
    ids = re.findall(r'if\(!document\.getElementById\("([0-9a-f]{32,})"\)\)', script)
    return "".join(f'<style id="{one}"></style>' for one in ids)


def _data(value: Any) -> str:
    """Write JSON that cannot close its script element, whatever the data."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# Figures


def _figure(chart: Chart) -> dict[str, Any]:
    layout = _under(BASE, chart.layout)
    for axis in {"xaxis", "yaxis", *(key for key in layout if key.startswith(("xaxis", "yaxis")))}:
        layout[axis] = _under(_AXIS, layout.get(axis, {}))
    layout["height"] = chart.height
    return {"data": list(chart.traces), "layout": layout}


def _under(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Merge `own` over `base`, nested dictionaries included."""
    merged = dict(base)
    for key, value in own.items():
        merged[key] = (
            _under(merged[key], value) if isinstance(merged.get(key), dict) and isinstance(value, dict) else value
        )
    return merged


# HTML


_FOOT = "<footer><p>Made by packtrain. This page loads nothing from the network.</p></footer>"


def _head(page: Page) -> str:
    facts = "".join(f"<div><dt>{escaped(what)}</dt><dd>{escaped(value, 200)}</dd></div>" for what, value in page.facts)
    return (
        '<a class="skip" href="#main">Skip to the answers</a>\n<header class="top">\n<div class="bar">'
        f"<h1>{escaped(page.title, 300)}</h1>"
        '<button type="button" id="scheme">Dark colours</button></div>\n'
        f'<p class="lead">{sentence(page.lead)}</p>\n'
        + (f'<dl class="facts">{facts}</dl>\n' if facts else "")
        + "</header>"
    )


def _contents(page: Page) -> str:
    """Return all questions with their answers. The sections below show the details and do not repeat the answers."""
    return f'<nav aria-label="Answers"><ol>\n{"".join(map(_answer, page.sections))}</ol></nav>'


def _answer(section: PageSection) -> str:
    title = escaped(section.title)
    if section.blocks:
        title = f'<a href="#{escaped(section.name)}">{title}</a>'
    return f"<li><strong>{title}</strong> <span>{sentence(section.sentence)}</span></li>\n"


def _main(page: Page) -> str:
    return (
        '<main id="main" tabindex="-1">\n'
        + "\n".join(_section(one) for one in page.sections if one.blocks)
        + "\n</main>"
    )


def _section(section: PageSection) -> str:
    name = escaped(section.name)
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">{escaped(section.title)}</h2>\n'
        f"{_blocks(section.blocks)}</section>"
    )


def _blocks(blocks: Sequence[Block]) -> str:
    """Return the blocks' HTML. Consecutive narrow charts share a row."""
    out: list[str] = []
    beside = False
    for block in blocks:
        narrow = isinstance(block, Chart) and not block.wide
        if narrow != beside:
            out.append('<div class="beside">\n' if narrow else "</div>\n")
            beside = narrow
        out.append(_block(block) + "\n")
    return "".join(out) + ("</div>\n" if beside else "")


def _block(block: Block) -> str:
    match block:
        case Grid():
            return table(block)
        case Chart():
            return _chart(block)
        case Words():
            return _code(block.text) if block.code else f"<p>{sentence(block.text)}</p>"
        case Markup():
            return block.html
        case Heading():
            return f"<h3>{escaped(block.text, 300)}</h3>"
        case Switch():
            return _switch(block)
        case Fold():
            title = escaped(block.title, 300)
            return f'<details class="fold"><summary>{title}</summary>\n{_blocks(block.blocks)}</details>'


def _chart(chart: Chart) -> str:
    name = escaped(chart.name)
    shown = table(chart.table)
    if not chart.table.folded:
        shown = f"<details><summary>The numbers: {escaped(chart.table.caption)}</summary>{shown}</details>"
    return (
        f'<figure aria-labelledby="{name}-title"><figcaption id="{name}-title">{escaped(chart.title)}</figcaption>\n'
        f'<div class="chart" id="{name}" data-height="{chart.height}" role="img" '
        f'aria-label="{escaped(chart.alt)}"></div>\n'
        f"<noscript><p>{escaped(chart.alt)}</p></noscript>\n{shown}</figure>"
    )


def _code(text: str) -> str:
    return (
        '<div class="code"><button type="button" class="copy" hidden>Copy</button>'
        f'<pre tabindex="0" role="region" aria-label="To be copied">{escaped(text, 100_000)}</pre></div>'
    )


def _switch(switch: Switch) -> str:
    name = escaped(switch.name)
    options = "".join(
        f'<option value="{at}">{escaped(choice, 80)}</option>' for at, (choice, _) in enumerate(switch.panels)
    )
    panels = "".join(
        f'<div class="panel"><h3>{escaped(choice, 300)}</h3>\n{_blocks(blocks)}</div>\n'
        for choice, blocks in switch.panels
    )
    return (
        f'<div class="switch" id="{name}"><p class="choose" hidden>'
        f'<label for="{name}-choice">{escaped(switch.label)}</label> '
        f'<select id="{name}-choice">{options}</select></p>\n{panels}</div>'
    )
