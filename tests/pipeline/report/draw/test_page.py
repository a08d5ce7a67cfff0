"""The page of a report, before a browser sees it."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.report.draw.blocks import Chart, Grid, Page, PageSection, Words, walk
from packtrain.pipeline.report.draw.charts_flow import file_link
from packtrain.pipeline.report.draw.markup import escaped, plain_label
from packtrain.pipeline.report.draw.page import report_page
from packtrain.pipeline.report.draw.palette import KINDS, ROLES, STRATEGY_STYLES, scheme
from packtrain.pipeline.report.draw.shell import render
from packtrain.schemas.report import Flow, Histogram, Report, Training
from packtrain.stages.forecast.sweep import STRATEGIES


class Outline(HTMLParser):
    """Elements, ids, headings, and what scripts and styles hold."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.held: list[tuple[str, dict[str, str | None], str]] = []
        self._open: tuple[str, dict[str, str | None]] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._open = (tag, dict(attrs))
            self.held.append((*self._open, ""))

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            tag, attrs, text = self.held[-1]
            self.held[-1] = (tag, attrs, text + data)

    def attribute(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]


def charts(page: Page) -> list[Chart]:
    return [block for section in page.sections for block in walk(section.blocks) if isinstance(block, Chart)]


# What it holds


def test_a_report_of_nothing_is_drawn(report: Report) -> None:
    none = Histogram([0.0, 1.0], [0], 0, 0.0)
    assert report.choice is not None
    assert report.training is not None
    assert report.packing is not None
    assert report.trust is not None
    assert report.batch is not None
    share_of = replace(
        report.training.sources[0],
        tokens=0,
        labels=0,
        examples=0,
        lengths=none,
        prompts=none,
        completions=None,
        turns_each=none,
    )
    split = replace(report.packing.splits[0], rows=0, bound=0, tokens=0, labels=0, fills=none, documents=none)
    bare = replace(
        report,
        choice=replace(report.choice, points=[], advice=None, lengths=none),
        flow=Flow("Nothing.", [], {}, [], {}, None),
        training=Training("Nothing.", [share_of], [], "There is no row."),
        packing=replace(report.packing, splits=[split], balance=[], savings=[], order_after=None),
        batch=replace(report.batch, recipes=[], examples_a_row=0.0),
        trust=replace(report.trust, stages=[], inputs=[], versions={}, configuration=""),
    )
    render(report_page(bare)).decode()
    nothing = replace(report.choice, points=[replace(point, flops=0.0, attention_flops=0.0, labels=0, labels_lost=0)
                                           for point in report.choice.points[:5]])  # fmt: skip
    assert render(report_page(replace(bare, choice=nothing)))


def test_every_figure_follows_plotlys_schema(report: Report) -> None:
    figures = pytest.importorskip("plotly.graph_objects")
    page = report_page(report)
    drawn = charts(page)
    kinds = {trace["type"] for chart in drawn for trace in chart.traces}
    assert kinds == {"scatter", "bar", "sankey"}
    assert len(drawn) > 12
    text = Outline(render(page).decode())
    data = json.loads(next(held for _, attrs, held in text.held if attrs.get("id") == "figures"))
    for chart in drawn:
        figure = in_colour(data["charts"][chart.name], data["schemes"]["dark"])
        # Raises on a name or a value that plotly does not know.
        figures.Figure(data=figure["data"], layout=figure["layout"], skip_invalid=False)


def in_colour(value: Any, colours: dict[str, str], key: str = "") -> Any:
    """As the page's script puts colours in."""
    if isinstance(value, dict):
        return {name: in_colour(one, colours, name) for name, one in value.items()}
    if isinstance(value, list):
        return [in_colour(one, colours, key) for one in value]
    if isinstance(value, str) and value.startswith("@") and re.search("colou?r$|^color", key, re.I):
        role, _, percent = value[1:].partition("/")
        red, green, blue = (int(colours[role][at : at + 2], 16) for at in (1, 3, 5))
        return f"rgba({red},{green},{blue},{float(percent or 100) / 100})"
    return value


def test_each_chart_says_in_words_and_in_a_table_what_it_shows(report: Report) -> None:
    for chart in charts(report_page(report)):
        assert len(chart.alt) > 40, chart.name
        assert chart.table.rows, chart.name
        assert all(len(row) == len(chart.table.head) for row in chart.table.rows), chart.name


def test_strategies_differ_in_more_than_colour(report: Report) -> None:
    assert set(STRATEGY_STYLES) == {*STRATEGIES, "tight"}
    styles = list(STRATEGY_STYLES.values())
    assert len({dash for _, dash, _ in styles}) == len({symbol for *_, symbol in styles}) == len(styles)
    assert len(set(KINDS.values())) == len(KINDS)
    for chart in charts(report_page(report)):
        bars = [trace for trace in chart.traces if trace["type"] == "bar" and trace.get("showlegend") is not False]
        looks = [(trace["marker"].get("pattern") or {}).get("shape", "") for trace in bars]
        assert len(set(looks)) == len(looks), chart.name


# Colours


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2 defines it, from 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    values = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in values)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_in_both_schemes(dark: bool) -> None:
    colours = scheme(dark)
    pairs = [(text, ground) for text in ("ink", "quiet", "accent") for ground in ("page", "card", "sunken")]
    pairs += [("ink", "mark"), ("ink", "hit"), ("page", "ink"), ("card", "trained")]
    for text, ground in pairs:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    drawn = set(ROLES) - {"page", "card", "sunken", "line", "mark", "hit"}
    for role in drawn:
        assert contrast(colours[role], colours["card"]) >= 3, role


# Safety


def test_scripts_and_styles_are_allowed_by_their_bytes_alone(report: Report) -> None:
    text = render(report_page(report)).decode()
    outline = Outline(text)
    policy = next(attrs["content"] or "" for tag, attrs in outline.tags if attrs.get("http-equiv"))
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in policy.partition("style-src-attr")[0]
    allowed = set(re.findall("'sha256-(.*?)'", policy))
    used = {
        base64.b64encode(hashlib.sha256(held.encode()).digest()).decode()
        for tag, attrs, held in outline.held
        if attrs.get("type") != "application/json"
    }
    assert used == allowed
    assert not {"form", "base", "iframe", "object", "embed", "img", "link"} & {tag for tag, _ in outline.tags}
    assert not [name for _, attrs in outline.tags for name in attrs if name.startswith("on")]
    assert not outline.attribute("src")


def test_it_is_small(report: Report) -> None:
    assert len(render(report_page(report))) < 6_000_000
    assert len(render(Page("No chart", "", [PageSection("a", "A?", "B.", [Words("c")])]))) < 60_000


HOSTILE = "</script><script>window.__pwned=1</script><img src=x onerror='__pwned=1'>\u202e\x1b[31m{{7*7}}%{x}\"'&<b>"


def test_text_of_data_makes_no_element(report: Report, fill: Any) -> None:
    plain = Outline(render(report_page(report)).decode())
    text = render(report_page(fill(report, HOSTILE))).decode()
    hostile = Outline(text)
    assert "__pwned" in text
    assert {tag for tag, _ in hostile.tags} <= {tag for tag, _ in plain.tags}
    assert {name for _, attrs in hostile.tags for name in attrs} <= {name for _, attrs in plain.tags for name in attrs}
    assert "\x1b" not in text
    assert "\u202e" not in text


@given(st.text())
def test_labels_of_charts_are_text(text: str) -> None:
    label = plain_label(text)
    assert "<" not in label
    assert "%{" not in label
    assert len(text) > 44 or "\n" not in label
    assert "<" not in escaped(text)
    assert '"' not in escaped(text)


def test_a_text_of_a_megabyte_is_clipped(report: Report, fill: Any) -> None:
    huge = render(report_page(fill(report, "x" * 1_000_000)))
    assert len(huge) < 6_000_000


@pytest.mark.parametrize(
    ("path", "link"),
    [
        (None, None),
        ("relative.jsonl", None),
        ("javascript:alert(1)", None),
        ("//host/share", "file:///host/share"),
        ('/data/a b/"><script>.jsonl', "file:///data/a%20b/%22%3E%3Cscript%3E.jsonl"),
        ("/data/ü#?.jsonl", "file:///data/%C3%BC%23%3F.jsonl"),
    ],
)
def test_only_absolute_paths_become_links(path: str | None, link: str | None) -> None:
    assert file_link(path) == link


# For everybody


def test_ids_are_unique_and_references_point_somewhere(report: Report) -> None:
    outline = Outline(render(report_page(report)).decode())
    ids = outline.attribute("id")
    assert len(ids) == len(set(ids))
    wanted = [*outline.attribute("aria-labelledby"), *outline.attribute("aria-controls"), *outline.attribute("for")]
    wanted += [href[1:] for href in outline.attribute("href") if href.startswith("#")]
    assert wanted
    assert set(wanted) <= set(ids)


def test_headings_do_not_skip_a_level(report: Report) -> None:
    levels = [
        int(tag[1]) for tag, _ in Outline(render(report_page(report)).decode()).tags if re.fullmatch("h[1-6]", tag)
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))


def test_what_scrolls_is_reached_by_keyboard() -> None:
    grid = Grid("A <b>", ["a", "b"], [["<i>", "1"]])
    text = render(Page("T", "L", [PageSection("s", "S?", "W.", [grid])])).decode()
    assert "&lt;i&gt;" in text
