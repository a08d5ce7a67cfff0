"""The page and the terminal: hostile text is inert, and every number has its place."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.judge.driver import EvaluationRequest, run_evaluation
from packtrain.pipeline.judge.sections import sections
from packtrain.pipeline.judge.summary import Summary
from packtrain.pipeline.report.draw.blocks import Grid, walk

HOSTILE = (
    "</pre></script><script>window.__pwned=1</script><img src=x onerror='__pwned=1'>\u202e\x1b[31m{{7*7}}%{x}\"&<b>"
)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, bytes]:
    """The evaluation of hostile programs for a hostile problem; and its page."""
    folder = tmp_path_factory.mktemp("hostile")
    code = f"import sys\nsys.stderr.write({HOSTILE!r})\nprint({HOSTILE!r})\n# {HOSTILE}"
    row = {
        "id": HOSTILE, "difficulty": HOSTILE, "question": f"Why? {HOSTILE}", "starter_code": HOSTILE,
        "input_output": {"inputs": [HOSTILE], "outputs": [f"{HOSTILE}!"]}, "solutions": [code, f"raise {HOSTILE!r}"],
    }  # fmt: skip
    (folder / "data.jsonl").write_text(json.dumps(row) + "\n")
    samples = [{"id": HOSTILE, "row": 0, "sample": at, "text": f"```python\n{code}{'!' * at}\n```"} for at in range(2)]
    samples.append({"id": HOSTILE, "row": 0, "sample": 2, "text": f"I give up. {HOSTILE}"})
    (folder / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples))
    summary = run_evaluation(
        EvaluationRequest(folder / "data.jsonl", folder / "out", folder / "samples.jsonl", calibrate=True)
    )
    return summary, (folder / "out" / "page.html").read_bytes()


def test_hostile_text_is_shown_and_does_nothing(hostile: tuple[Summary, bytes]) -> None:
    page = hostile[1].decode()
    body = page[: page.index('<script type="application/json"')]
    assert "window.__pwned=1" in body  # it is there to read
    found = _Tags()
    found.feed(page)
    names = [tag for tag, _ in found.tags]
    assert names.count("script") == 3  # the data, plotly, ours
    assert "img" not in names
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", body)
    assert "\\u202e\\x1b[31m" in html.unescape(body)
    for script in re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL):
        assert "__pwned" not in script or script.lstrip().startswith("{")  # as JSON only
    data = page[page.index('id="figures">') + 13 :].partition("</script>")[0]
    assert "<" not in data


def test_what_failed_is_shown_with_prompt_program_and_outputs(hostile: tuple[Summary, bytes]) -> None:
    body = html.unescape(hostile[1].decode())
    for words in ("Why? </pre>", "Standard input, test 1 of 1", "Expected", "Printed", "Standard error", "import sys"):
        assert words in body


def test_each_failure_names_its_verdict_and_an_answer_without_a_program_is_shown(
    hostile: tuple[Summary, bytes],
) -> None:
    cards = html.unescape(hostile[1].decode()).split("<article")[1:]
    assert len(cards) == 3
    assert sorted(card.partition("<p>")[2].partition(";")[0] for card in cards) == [
        "no code found", "wrong", "wrong",
    ]  # fmt: skip
    (none,) = [card for card in cards if "<p>no code found;" in card]
    assert "<span>Answer</span>" in none
    assert "I give up. </pre></script>" in none
    assert "Program (" not in none


def test_the_only_difficulty_is_not_shown_beside_all(hostile: tuple[Summary, bytes]) -> None:
    assert len(hostile[0].scores) == 2  # for --json
    for section in sections(hostile[0])[:2]:
        for block in walk(section.blocks):
            if isinstance(block, Grid):
                assert [row[0] for row in block.rows] == ["all"]


def test_the_page_links_the_calibration_and_says_how_many_references_fail(hostile: tuple[Summary, bytes]) -> None:
    page = hostile[1].decode()
    assert "2 of 2 references fail; calibration/page.html shows why." in page
    assert '<a href="calibration/page.html">' in page


def test_every_section_says_something_and_no_table_is_ragged(hostile: tuple[Summary, bytes]) -> None:
    found = sections(hostile[0])
    assert [one.name for one in found] == ["pass", "verdicts", "judged", "references", "ran"]
    for section in found:
        assert section.sentence.endswith(".")
        for block in walk(section.blocks):
            if isinstance(block, Grid):
                assert block.rows
                assert {len(row) for row in block.rows} == {len(block.head)}


@pytest.mark.slow
def test_a_browser_draws_it_and_runs_nothing_of_the_data(
    hostile: tuple[Summary, bytes], look: Any, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(hostile[1])
    with look(path) as (page, looked):
        for name in ("pass-chart", "verdicts-chart", "time-chart"):
            assert page.query_selector(f"#{name} .plot-container"), name
        assert page.evaluate("window.__pwned === undefined")
        assert looked.said == []
        assert looked.asked == [path.as_uri()]
