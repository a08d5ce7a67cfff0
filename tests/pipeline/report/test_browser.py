"""The page in headless Chromium, opened from disk."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import packtrain
import pytest
import yaml
from packtrain.pipeline.report.draw.page import report_page
from packtrain.pipeline.report.draw.shell import render
from packtrain.schemas.report import Report

pytestmark = pytest.mark.xdist_group("chromium")


LEGEND_ASTRAY = """[...document.querySelectorAll('.chart')].filter((chart) => {
  const legend = chart.querySelector('.legend'), drawn = chart._fullLayout;
  if (!legend) return false;
  const { top, bottom } = legend.getBoundingClientRect(), box = chart.getBoundingClientRect();
  return top < box.top + drawn._size.t + drawn._size.h || bottom > box.bottom;
}).map((chart) => chart.id)"""


@pytest.fixture
def file(report: Report, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_bytes(render(report_page(report)))
    return path


def quiet(looked: Any, path: Path) -> None:
    """Check that the page logged nothing and requested only itself."""
    assert looked.said == []
    assert looked.asked == [path.as_uri()]


def test_it_opens_without_a_word_draws_every_chart_and_finds_documents(look: Any, file: Path) -> None:
    with look(file) as (page, looked):
        charts = page.query_selector_all(".chart")
        assert len(charts) > 12
        folded = page.query_selector_all(".fold .chart")
        assert len(folded) > 6
        assert not any(chart.query_selector(".main-svg") for chart in folded), "drawn when they are opened"
        for fold in page.query_selector_all(".fold > summary"):
            if fold.is_visible():
                fold.click()
        page.wait_for_timeout(300)
        hidden = [chart for chart in charts if not chart.is_visible()]
        assert len(hidden) == 2, "the flow of each source but the one that is chosen"
        for chart in charts:
            if chart not in hidden:
                assert chart.query_selector(".main-svg"), chart.get_attribute("id")
                marks = chart.query_selector_all(".point path, path.js-line, path.sankey-link, .scatterlayer path")
                assert len(marks) > 0, chart.get_attribute("id")
        assert page.evaluate(LEGEND_ASTRAY) == [], "legends stand below the plot, within the figure"
        page.select_option("#flow-source-choice", "1")
        assert page.query_selector("#flow-1 .sankey-link")
        assert not page.is_visible("#flow-0")
        points_say_their_numbers(page)
        documents_are_found_with_the_keyboard(page)
        quiet(looked, file)


WORDS = """() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let count = 0;
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement, fold = element.closest('details:not([open])');
    if (element.closest('script, style, noscript, svg') || (fold && !element.closest('summary'))) continue;
    if (element.checkVisibility()) count += (texts.currentNode.textContent.match(/\\S+/g) || []).length;
  }
  return count;
}"""


CLIPPED = """() => [...document.querySelectorAll('body *')].filter((element) => {
  const style = getComputedStyle(element), unseen = style.clipPath != 'none';
  if (!element.checkVisibility() || unseen || element.closest('svg, .chart, .hidden, .skip')) return false;
  const bar = style.scrollbarWidth != 'none' && style.backgroundImage != 'none';
  const hides = (overflow) => overflow == 'hidden' || overflow == 'clip' || (overflow != 'visible' && !bar);
  return (element.scrollWidth > element.clientWidth + 1 && hides(style.overflowX))
    || (element.scrollHeight > element.clientHeight + 1 && hides(style.overflowY));
}).map((element) => element.outerHTML.slice(0, 100))"""
"""Elements that hide a part of what they hold and show neither a scroll bar nor a shadow at the hidden edge."""


@pytest.mark.slow
def test_the_demos_page_is_short_and_clips_nothing(look: Any, tmp_path: Path) -> None:
    """At 1280 px: six answers on the first screen, at most 4,000 px and 900 words before anything is opened."""
    demo = files("packtrain.pipeline.demo")
    config = yaml.safe_load((demo / "demo.yaml").read_text())
    packtrain.run(config | {"out": str(tmp_path / "demo")}, base=Path(str(demo)))
    file = tmp_path / "demo" / "report.html"
    with look(file, viewport={"width": 1280, "height": 900}) as (page, _):
        answers = page.locator("nav ol").bounding_box()
        assert answers["y"] + answers["height"] < 900
        assert page.evaluate("document.documentElement.scrollHeight") <= 4000
        assert 300 < page.evaluate(WORDS) <= 900
    with look(file, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True) as (page, _):
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for fold in page.query_selector_all(".fold > summary"):
            if fold.is_visible():
                fold.click()
        assert page.locator(".doc-text pre:visible").first.evaluate("e => e.scrollHeight > e.clientHeight")
        assert page.evaluate(CLIPPED) == []


def points_say_their_numbers(page: Any) -> None:
    page.locator("#choice-lost").scroll_into_view_if_needed()
    point = page.locator("#choice-lost .scatterlayer .point").first.bounding_box()
    page.mouse.move(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    page.wait_for_selector("#choice-lost .hovertext")
    page.locator("#flow-1").scroll_into_view_if_needed()
    page.locator("#flow-1 .sankey-link").first.hover()
    page.wait_for_selector("#flow-1 .hovertext")
    assert "2,360,000 tokens" in page.text_content("#flow-1 .hoverlayer")


def documents_are_found_with_the_keyboard(page: Any) -> None:
    page.focus("#find")
    page.keyboard.type("PART-40.jsonl:2")
    assert page.text_content("#found") == "1 of 6 documents"
    assert page.locator(".doc-text:visible").count() == 1
    assert page.text_content(".doc-text:visible mark.hit") == "part-40.jsonl:2"
    page.fill("#find", "nowhere")
    assert page.text_content("#found") == "0 of 6 documents"
    page.fill("#find", "")
    assert page.text_content("#found") == ""
    assert page.locator("mark.hit").count() == 0


@pytest.mark.slow
def test_the_scheme_is_changed_by_keyboard_and_charts_follow(look: Any, file: Path) -> None:
    colour = "getComputedStyle(document.querySelector('#choice-lost .js-line')).stroke"
    with look(file, color_scheme="light") as (page, looked):
        light = page.evaluate(colour)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "scheme"
        assert page.inner_text("#scheme") == "Dark colours", "what it does"
        page.keyboard.press("Enter")
        assert page.inner_text("#scheme") == "Light colours"
        assert page.evaluate(colour) != light
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        quiet(looked, file)
    with look(file, color_scheme="dark") as (page, _):
        assert page.inner_text("#scheme") == "Light colours"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


@pytest.mark.slow
def test_a_phone_scrolls_down_only(look: Any, file: Path) -> None:
    with look(file, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True) as (page, looked):
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        wide = (
            "[...document.querySelectorAll('main *')].filter(e => e.scrollWidth > 392 && "
            "getComputedStyle(e).overflowX == 'visible' && !e.closest('.scroll, svg, .chart')).map(e => e.className)"
        )
        assert page.evaluate(wide) == []
        quiet(looked, file)


@pytest.mark.slow
def test_without_javascript_sentences_and_tables_are_there(look: Any, file: Path, report: Report) -> None:
    with look(file, java_script_enabled=False) as (page, looked):
        assert report.packing is not None
        assert report.flow is not None
        assert page.locator("nav li span:visible").count() == 6
        assert page.get_by_text(report.packing.sentence).count() == 1, "said once"
        assert page.get_by_text(report.packing.sentence).is_visible()
        assert page.locator(".panel:visible").count() == len(report.flow.fates)
        assert page.locator("noscript p").count() > 0
        assert not page.is_visible("#find")
        quiet(looked, file)


@pytest.mark.slow
def test_on_paper_it_is_light_and_whole(look: Any, file: Path) -> None:
    with look(file, color_scheme="dark") as (page, looked):
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert page.locator(".panel:visible").count() == 3
        assert page.evaluate("Math.max(...[...document.querySelectorAll('.main-svg')].map(e => e.clientWidth))") <= 700
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert page.locator(".panel:visible").count() == 1
        assert len(page.pdf()) > 50_000
        quiet(looked, file)


HOSTILE = [
    "</script><script>window.__pwned=1</script>"
    "<img src=x onerror='window.__pwned=1'><svg onload='window.__pwned=1'>"
    '<a href="javascript:window.__pwned=1">x</a><b>y</b>'
    "{{constructor.constructor('window.__pwned=1')()}}%{x}%{customdata}",
    "\u202eevil\u2066\x1b[31m\x00\u2028'\"`--><!--",
    "@lost",
]


@pytest.mark.parametrize("text", [HOSTILE[0], *(pytest.param(text, marks=pytest.mark.slow) for text in HOSTILE[1:])])
def test_text_of_data_is_only_text(look: Any, report: Report, fill: Any, tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(render(report_page(fill(report, text))))
    with look(path) as (page, looked):
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.locator("#training").scroll_into_view_if_needed()
        assert page.evaluate("window.__pwned") is None
        assert (
            page.evaluate("document.querySelectorAll('main img, main a[href^=\"javascript\"], main script').length")
            == 0
        )
        shown = page.text_content("#training h5 .id")
        assert shown == text if text.isprintable() else "\\u202e" in shown
        label = page.text_content("#training-shares .ytick text")
        assert label[:5] == text[:5] or "\\u202e" in label
        quiet(looked, path)


@pytest.mark.slow
def test_strategies_of_another_kind_are_drawn(look: Any, report: Report, tmp_path: Path) -> None:
    """What stands in the report need not be a word of this version."""
    assert report.choice is not None
    points = [
        replace(point, strategy="<i>new</i>") if point.strategy == "bfd" else point for point in report.choice.points
    ]
    path = tmp_path / "report.html"
    path.write_bytes(render(report_page(replace(report, choice=replace(report.choice, points=points)))))
    with look(path) as (page, looked):
        assert "<i>new</i>" in page.text_content("#choice-lost .legend")
        quiet(looked, path)
