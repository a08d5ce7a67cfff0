"""The page: whatever stands in a report, it is text; it runs nothing, and loads nothing."""

import re
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from packtrain.pipeline.report.lengths.advised import lost_at
from packtrain.pipeline.report.page import lengths_chart, report_html
from packtrain.schemas.report.evaluation_hits import Contamination, ContaminationCount, Hit
from packtrain.schemas.report.report import Report

from tests import kit

HOSTILE = "\x1b[31m</pre><script>alert(1)</script><img src=x onerror=alert(1)>\" style='x'\u202e{{ 7 * 7 }}"
VOID = {"meta", "rect", "line", "polyline"}


class Elements(HTMLParser):
    """The elements of a page, and whether each is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def with_text(value: Any, text: str) -> Any:
    """The same with `text` before every string in it."""
    if isinstance(value, str):
        return text + value
    if isinstance(value, list):
        return [with_text(one, text) for one in value]
    if isinstance(value, dict):
        return {key: with_text(one, text) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in fields(value) if one.name != "strategy"]  # by which points are found
        changed = {name: with_text(getattr(value, name), text) for name in names}
        return replace(value, **changed)
    return value


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Every section filled."""
    folder = tmp_path_factory.mktemp("page")
    kit.write(folder / "pairs.jsonl", [*kit.corpus("pairs"), {}])
    out = kit.packed(kit.configure(folder, "pairs", truncate={"max_length": 64}, run={"report": True})).folder
    pair = Hit("s/a:1", "s", "test.jsonl", 3, "prompt", 1.0, "the same words")
    counts = [ContaminationCount("s", "t", 1, 1, 1)]
    contamination = Contamination("One.", "report", 1, counts, [pair])
    return replace(msgspec.json.decode((out / "report.json").read_bytes(), type=Report), contamination=contamination)


def test_it_runs_and_loads_nothing(report: Report) -> None:
    page = report_html(report).decode()
    found = Elements(page)
    assert not {"script", "link", "img", "iframe", "form", "input"} & set(found.tags)
    assert not {name for name in found.attributes if name.startswith("on")} | {"src"} & found.attributes
    assert "default-src 'none'" in page
    assert all(one.startswith("#") for one in re.findall(r'href="([^"]*)"', page))


def test_text_of_data_is_only_text(report: Report) -> None:
    plain, page = Elements(report_html(report).decode()), report_html(with_text(report, HOSTILE)).decode()
    hostile = Elements(page)
    assert set(hostile.tags) <= set(plain.tags)
    assert hostile.attributes <= plain.attributes
    assert hostile.open == []
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "{{ 7 * 7 }}" in "".join(hostile.text)


def test_the_picture_of_losses_has_a_scale(report: Report) -> None:
    """Each number stands at the height at which the line of losses has it."""
    assert report.choice is not None
    chart = lengths_chart(report.choice)
    losses = [lost_at(one) for one in report.choice.points]
    assert 1 <= len(chart.scale) <= 4
    for height, text in chart.scale:
        said = float(text.removesuffix(" %")) / 100
        assert height == pytest.approx(90 * said / max(losses), abs=0.01)
        assert f">{text}</span>" in report_html(report).decode()
    flat = replace(report.choice, points=[replace(one, labels_lost=0) for one in report.choice.points])
    assert lengths_chart(flat).scale == []


def test_sections_that_are_missing_say_why(report: Report) -> None:
    empty = replace(report, choice=None, flow=None, contamination=None, training=None, packing=None, made=None)
    page = report_html(replace(empty, absent={"choice": "The <cache> is gone."})).decode()
    assert "The &lt;cache&gt; is gone." in page
    assert Elements(page).open == []
