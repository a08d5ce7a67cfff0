"""A diff as a page: every figure drawn, nothing asked for, and data shown as text."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.report.diff.changes import (
    Comparison,
    Contents,
    ExamplesChange,
    InputChange,
    InputsChange,
    LedgerLine,
    LengthsChange,
    Measure,
    Setting,
    ShownExample,
    Side,
    SourceExamples,
)
from packtrain.pipeline.report.diff.page import diff_page
from packtrain.pipeline.report.diff.terminal import print_brief, print_comparison
from packtrain.pipeline.report.draw.blocks import Chart, Grid, Page
from packtrain.pipeline.report.draw.shell import render
from packtrain.schemas.report import Histogram
from rich.console import Console

pytestmark = pytest.mark.xdist_group("chromium")
EDGES = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]


def lengths(counts: list[int]) -> Histogram:
    quantiles = dict.fromkeys(("min", "p5", "p25", "p50", "p75", "p95", "p99", "max"), 40.0)
    return Histogram(EDGES, counts, sum(counts), sum(counts) * 40.0, quantiles)


def side(name: str, rows: int) -> Side:
    return Side(
        where=f"runs/{name}",
        manifest=name * 64,
        plan=name * 64,
        preference=False,
        max_length=rows * 2,
        sources=["chat", "code"],
        splits=["train", "holdout"],
        rows=rows,
        tokens=rows * 1000,
        padding=0,
        labels=rows * 400,
        shards=3,
        bytes=rows * 12_000,
    )


def a_comparison() -> Comparison:
    example = ShownExample("chat/a:4", None, "chat", 120, 80, 60, 40, 1, 3, "train", "holdout")
    names = (
        "tokens_encoded",
        "tokens_created",
        "tokens_truncated",
        "tokens_dropped",
        "tokens_packed",
        "labels_trained",
    )
    ledger = [
        LedgerLine(source, name, reason, f"{name.replace('_', ' ')}{f': {reason}' if reason else ''}", a, b)
        for source, times in (("all", 2), ("chat", 1), ("code", 1))
        for name, reason, a, b in zip(
            names,
            (None, "end_of_sequence", "max_length", "overlong", None, None),
            (900 * times, 20, 300, 0, 620 * times, 200 * times),
            (1000 * times, 20, 100, 240, 680 * times, 340 * times),
            strict=True,
        )
    ]
    counts = {"only_a": 1, "only_b": 20, "same": 60, "tokens": 7, "labels": 2, "copies": 3, "moved": 4}
    return Comparison(
        format=1,
        made="2026-02-03T04:05:06+00:00",
        packtrain="0.1.0",
        sentence="B packs 12.3 % more tokens in 8 % fewer rows: max_length 2,048 → 4,096.",
        a=side("a", 1024),
        b=side("b", 942),
        identical=False,
        same_rows=False,
        settings=[
            Setting("configuration", "truncate.max_length", 2048, 4096),
            Setting("versions", "pyarrow", "25.0", "26.0"),
            Setting("configuration", "sources.chat.repeat", None, 1, True),
        ],
        inputs=InputsChange(
            "1 appended, 1 renamed of the input files; 3 the same.", 3, 5, 5, 9_000, 9_900,
            {"appended": 1, "renamed": 1},
            [
                InputChange("appended", "chat", "part-1", None, 4000, 4900, 40),
                InputChange("renamed", "code", "new", "code/old", 500, 500),
            ],
        ),
        ledger=ledger,
        packing=[
            Measure("train", "rows", "count", 1000, 920), Measure("train", "fill", "share", 0.981, 0.992),
            Measure("train", "bytes", "bytes", 12e6, 13e6), Measure("train", "tokens a row", "number", 2000.5, 4010.25),
            Measure("holdout", "rows", "count", None, 22),
        ],
        lengths=LengthsChange(
            "An example has 40 tokens in the middle.",
            "Tokens of each packed example.",
            lengths([0, 1, 4, 9, 30, 20, 5, 1, 0, 0]),
            lengths([0, 0, 2, 9, 20, 30, 15, 1, 3, 0]),
        ),
        examples=ExamplesChange(
            "69 examples are in both, 1 only in A, 20 only in B.",
            "Examples with the same id are compared token by token.",
            [SourceExamples(name, **counts) for name in ("all", "chat", "code")],
            Contents(70, 1, 19),
            {
                kind: [example, replace(example, id=f"chat/{kind}:9", was="chat/old:9")]
                for kind in counts
                if kind != "same"
            },
        ),
    )  # fmt: skip


def blocks(page: Page) -> Iterator[Any]:
    for section in page.sections:
        yield from section.blocks


HOSTILE = (
    "</script><script>window.__pwned = 1</script>"
    '"><img src=x onerror="window.__pwned = 1">'
    "<svg onload=window.__pwned=1><a href='javascript:window.__pwned=1'>x</a>",
    "\x1b[31mred\x1b]8;;http://127.0.0.1/\x07 \u202e\u2066reversed \u2028 {{7*7}} %{y} &lt;b&gt; $x^2$",
)


def test_all_of_it_stands_in_its_tables() -> None:
    page = diff_page(a_comparison())
    assert [section.name for section in page.sections] == [
        "both", "asked", "read", "became", "packed", "lengths", "examples",
    ]  # fmt: skip
    cells = [" ".join(row) for block in blocks(page) if isinstance(block, Grid) for row in block.rows]
    for wanted in (
        "truncate.max_length 2,048 4,096",
        "versions: pyarrow 25.0 26.0",
        "sources.chat.repeat – 1",
        "chat part-1 appended; its first 40 rows are the same",
        "code new renamed from code/old",
        "all tokens dropped: overlong 0 240 ▲ +240 (new)",
        "train fill 98.10 % 99.20 % ▲ +1.10 points",
        "holdout rows – 22 new",
        "chat/a:4 120 → 80 60 → 40 1 → 3 train → holdout",
        "chat/moved:9 (was chat/old:9)",
    ):
        assert any(wanted in cell for cell in cells), wanted


def test_the_bars_of_tokens_add_up() -> None:
    found = a_comparison()
    (chart,) = (block for block in blocks(diff_page(found)) if isinstance(block, Chart) and block.name == "tokens")
    drawn: dict[int, int] = {}
    for trace in chart.traces:
        drawn.update(zip(trace["y"], trace["x"], strict=True))
    *parts, whole = [drawn[at] for at in sorted(drawn)]
    assert sorted(parts) == [-240, 200, 200]
    assert sum(parts) == whole


def test_figures_are_of_plotlys_schema() -> None:
    from plotly.graph_objects import Figure

    charts = [block for block in blocks(diff_page(a_comparison())) if isinstance(block, Chart)]
    assert [chart.name for chart in charts] == ["tokens", "shares", "lengths-chart", "examples-by-source"]
    for chart in charts:
        text = repr((chart.traces, chart.layout)).replace("'@card'", "'red'")
        traces, layout = eval(_without_roles(text))
        Figure(data=traces, layout=layout)
        assert chart.alt


def _without_roles(text: str) -> str:

    return re.sub(r"'@[a-z_]+(/\d+)?'", "'#123456'", text)


def test_the_same_dataset_twice_is_a_short_page() -> None:
    found = a_comparison()
    same = [replace(line, b=line.a) for line in found.ledger]
    inputs = replace(found.inputs, changes=[], counts={}, sentence="All 5 input files are the same.")
    page = diff_page(
        replace(
            found, b=found.a, identical=True, settings=[], inputs=inputs, ledger=same, packing=[], lengths=None,
            examples=None, absent={"lengths": "same", "examples": "same"},
        )
    )  # fmt: skip
    assert not [block for block in blocks(page) if isinstance(block, Chart)]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_in_a_browser(look: Any, tmp_path: Path, width: int) -> None:
    path = tmp_path / "diff.html"
    path.write_bytes(render(diff_page(a_comparison())))
    with look(path, viewport={"width": width, "height": 900}) as (page, looked):
        names = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
        assert len(names) == len(set(names))
        for name in ("tokens", "shares", "lengths-chart", "examples-by-source"):
            page.locator(f"#{name}").scroll_into_view_if_needed()
            page.wait_for_selector(f"#{name} svg.main-svg .trace, #{name} svg.main-svg .points", state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert "max_length 2,048 → 4,096" in page.inner_text("body")
        assert looked.said == []
        assert looked.asked == [path.as_uri()]


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_data_is_text_on_the_page_and_in_the_terminal(look: Any, fill: Any, tmp_path: Path, text: str) -> None:
    found = a_comparison()
    filled = fill(found, text)
    assert found.examples is not None
    shown = dict(zip(found.examples.shown, filled.examples.shown.values(), strict=True))
    hostile = replace(filled, examples=replace(filled.examples, shown=shown))
    path = tmp_path / "diff.html"
    path.write_bytes(render(diff_page(hostile)))
    with look(path) as (page, looked):
        page.wait_for_selector("svg.main-svg", state="attached")
        assert page.evaluate("window.__pwned") is None
        assert page.locator("img, a[href^='javascript'], iframe").count() == 0
        assert looked.said == []
        assert looked.asked == [path.as_uri()]
        if text.isprintable():
            assert text in page.inner_text("body")
    console = Console(file=(tmp_path / "said").open("w", encoding="utf-8"), width=100, force_terminal=False)
    print_comparison(console, hostile, full=True)
    print_brief(console, hostile)
    console.file.close()
    written = (tmp_path / "said").read_text(encoding="utf-8")
    assert written
    assert not {"\x1b", "\x07", "\u202e", "\u2066", "\u2028"} & set(written)


def test_the_brief_form_is_a_screen_however_much_changed(tmp_path: Path) -> None:
    found = a_comparison()
    assert found.examples is not None
    many = replace(
        found,
        settings=[Setting("configuration", f"pack.key{at}", at, at + 1) for at in range(100)],
        ledger=[
            replace(line, reason=str(at), label=f"{line.label} {at}") for line in found.ledger for at in range(100)
        ],
        packing=[replace(one, split=f"split{at}") for one in found.packing for at in range(20)],
    )
    said = {}
    for name, one in (("some", found), ("many", many)):
        with (tmp_path / name).open("w", encoding="utf-8") as file:
            print_brief(Console(file=file, width=120), one)
        said[name] = (tmp_path / name).read_text(encoding="utf-8").splitlines()
        assert said[name][0] == found.sentence
        assert len(said[name]) <= 60  # most have about 40
    (left,) = re.findall(r"^and ([\d,]+) more changed lines", said["many"][-1])
    assert int(left.replace(",", "")) > 1_500
