"""What the page and the summary say beside their numbers: names of columns, what is left out, and why."""

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from packtrain.pipeline.report.collect.flow import flow_of
from packtrain.pipeline.report.collect.lengths.histograms import Tally
from packtrain.pipeline.report.collect.rows.balance import balance_note
from packtrain.pipeline.report.collect.saving import batch_size, beside_time
from packtrain.pipeline.report.diff.change_words import change_of, relative, signed, than
from packtrain.pipeline.report.diff.changes import InputsChange, Measure, Side
from packtrain.pipeline.report.diff.headline import headline
from packtrain.pipeline.report.draw.blocks import Block, Chart, Grid, Switch, Words, walk
from packtrain.pipeline.report.draw.charts_base import histogram_chart
from packtrain.pipeline.report.draw.charts_flow import flow_blocks
from packtrain.pipeline.report.draw.charts_packing import batch_blocks, packing_blocks, padded
from packtrain.pipeline.report.draw.charts_training import training_blocks
from packtrain.pipeline.report.draw.charts_trust import trust_blocks
from packtrain.pipeline.report.draw.page import report_page
from packtrain.pipeline.report.draw.shell import render
from packtrain.pipeline.report.draw.terminal import print_report
from packtrain.schemas.ledger import Ledger, SourceLedger
from packtrain.schemas.reasons import LOSSES, REASONS
from packtrain.schemas.report import Flow, Histogram, LedgerFlow, Link, Packing, RankBalance, Report
from packtrain.schemas.units import large
from rich.console import Console


def lengths(*values: int) -> Histogram:
    tally = Tally()
    tally.add(np.array(values))
    return tally.logarithmic(most=4096)


def packing_of(report: Report) -> Packing:
    assert report.packing is not None
    return report.packing


def words(blocks: Sequence[Block]) -> list[str]:
    return [block.text for block in walk(blocks) if isinstance(block, Words)]


def said(report: Report) -> str:
    text = StringIO()
    print_report(Console(file=text, width=160), report)
    return text.getvalue()


# Training


def test_counts_are_called_what_they_count(report: Report) -> None:
    assert report.training is not None
    one = replace(report.training.sources[0], turns_cut=7, turns_without_end=5, truncated=3)
    blocks = training_blocks(replace(report.training, sources=[one]))
    (grid,) = (block for block in walk(blocks) if isinstance(block, Grid) and "boundaries" in block.caption)
    cells = dict(zip(grid.head, grid.rows[0], strict=True))
    assert (cells["turns cut"], cells["turns without end token"], cells["examples truncated"]) == ("7", "5", "3")
    assert any("Boundaries separate" in text for text in words(blocks))


def test_a_source_of_few_examples_is_drawn_and_flattens_none() -> None:
    wide = [("a", lengths(*range(1, 900))), ("b", lengths(*range(5, 700))), ("c", lengths(*range(9, 2000)))]
    few = ("meetings", lengths(3000, 3100))
    alone, all_of_them = (histogram_chart("n", "T", "examples", series, "tokens") for series in (wide, [*wide, few]))
    assert alone is not None
    assert all_of_them is not None
    assert [trace["name"] for trace in all_of_them.traces] == ["a", "b", "c", "meetings"]
    assert all_of_them.title == "T"
    assert all_of_them.layout["yaxis"] == alone.layout["yaxis"]


def test_what_is_not_drawn_is_named() -> None:
    series = [(name, lengths(*range(1, 90))) for name in "abcdef"] + [("g", lengths(*range(1, 80))), ("h", lengths(4))]
    chart = histogram_chart("n", "T", "examples", series, "tokens", sort="sources")
    assert chart is not None
    assert len(chart.traces) == 6
    assert chart.title == "T (6 of 8 sources, without g, h)"
    assert "without g, h" in chart.alt


def test_plain_text_has_no_prompts_to_draw(report: Report) -> None:
    assert report.training is not None
    chat = report.training.sources[0]
    text = replace(chat, source="texts", prompts=lengths(*[1] * 50), completions=lengths(*range(1, 90)))
    blocks = training_blocks(replace(report.training, sources=[chat, text]))
    (prompts,) = (block for block in walk(blocks) if isinstance(block, Chart) and block.name == "training-prompts")
    assert [trace["name"] for trace in prompts.traces] == [chat.source]
    assert [row[0] for row in prompts.table.rows] == [chat.source, "texts"]
    assert "Not drawn: prompts of texts. Plain text has none; all of it is trained." in words(blocks)
    alone = training_blocks(replace(report.training, sources=[text]))
    assert any(one.endswith(": always 1 token.") for one in words(alone))
    assert not any("not drawn" in one for one in words(alone))


def test_a_share_that_does_not_fit_its_bar_is_left_to_the_table(report: Report) -> None:
    assert report.training is not None
    large = replace(report.training.sources[0], tokens=1_000_000, labels=900_000)
    small = replace(large, source="small", tokens=7_000, labels=441)
    (chart, *_) = training_blocks(replace(report.training, sources=[large, small]))
    assert isinstance(chart, Chart)
    assert chart.traces[0]["text"] == ["90 %", ""]
    assert chart.table.rows[1][-1] == "6.3 %"


def test_strips_have_a_legend(report: Report) -> None:
    assert b"strips: each block is a document" in render(report_page(report))


# Packing


def test_padding_fills_nothing_and_what_is_counted_is_said(report: Report) -> None:
    plain = packing_of(report)
    one = replace(plain.splits[0], rows=10, fill=0.5, tokens=10 * 4096, padding=5 * 4096)
    exact = replace(one, tokens=5 * 4096, padding=0)
    aligned = replace(plain, splits=[one])
    assert padded(aligned)
    assert not padded(replace(plain, splits=[exact]))
    facts = dict(report_page(replace(report, packing=aligned)).facts)
    assert facts["fill"] == "50 %"
    grid = packing_blocks(aligned)[0]
    assert isinstance(grid, Grid)
    assert "tokens and padding" in grid.head


def test_figures_of_all_splits_say_so(report: Report) -> None:
    both = report_page(report)
    assert both.lead.endswith("The figures cover train and holdout.")
    (packing,) = (section for section in both.sections if section.name == "packing")
    assert packing.sentence.endswith("This covers train only.")
    one = report_page(replace(report, packing=replace(packing_of(report), splits=packing_of(report).splits[:1])))
    assert "The figures cover" not in one.lead
    assert not any("covers" in section.sentence for section in one.sections)


def test_batches_are_not_called_rows(report: Report) -> None:
    lines = said(report).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("Other strategies"))
    table = lines[start : start + 10]
    assert {line.split()[0] for line in table if " batches " in line} == {"padded", "padding_free"}


def test_where_dealing_changes_nothing_it_is_said_why(report: Report) -> None:
    packing = packing_of(report)
    assert balance_note(packing) is None, "it does change something"
    same = replace(packing, balance=[RankBalance(8, 1, 1.04, 1.04, 1.11), RankBalance(8, 8, 1.02, 1.0, 1.0)])
    note = balance_note(same)
    assert note is not None
    assert "with at least 256 rows (here 500)" in note
    assert note in words(packing_blocks(same))
    text = said(replace(report, packing=same))
    assert "1.04 × as the loader assigns rows, 1.11 × at worst" in text
    assert "with at least 256 rows" in text
    even = replace(packing, balance=[RankBalance(8, 1, 1.0, 1.0, 1.0)])
    assert balance_note(even) is None, "nobody waits"


def test_what_packing_gives_beside_time(report: Report) -> None:
    packing = packing_of(report)
    note = beside_time(packing)
    assert note is not None
    assert note.endswith("An epoch has 110 steps instead of 270.")
    assert note in words(packing_blocks(packing))
    slower = replace(packing.savings[1], seconds=400.0)
    assert beside_time(replace(packing, savings=[packing.savings[0], slower, packing.savings[2]])) is None
    assert beside_time(replace(packing, savings=[])) is None


def test_rounded_rows_stand_beside_exact_ones() -> None:
    found = batch_size(rows=1000, tokens=4_000_000, labels=1_000_000, examples=40_000)  # 100 tokens an example
    assert found is not None
    assert found.sentence.endswith("unpacked examples (about 6,400 tokens), take 2 rows per step (1.60 exactly).")
    blocks = batch_blocks(found)
    (grid,) = (block for block in blocks if isinstance(block, Grid) and "exactly" in block.head)
    column = list(grid.head).index("exactly")
    assert [row[column] for row in grid.rows][:4] == ["0.20", "0.40", "0.80", "1.60"]
    whole = batch_size(rows=1000, tokens=4_000_000, labels=1_000_000, examples=32_000)  # 125 tokens an example
    assert whole is not None
    assert "take 2 rows per step." in whole.sentence


# Reasons, hashes


def test_lost_tokens_are_told_in_words_before_the_reason() -> None:
    assert set(LOSSES) <= set(REASONS)
    entry = SourceLedger(tokens_encoded=100, tokens_packed=60, tokens_dropped={"cut_untrained": 30, "own": 10})
    sentence = flow_of(Ledger({"a": entry})).sentence
    assert "lost: examples cut before anything trained (`cut_untrained`) 30 %, dropped (`own`) 10 %." in sentence


def test_hashes_of_inputs_are_short_and_whole_underneath(report: Report) -> None:
    assert report.trust is not None
    text = render(report_page(report)).decode()
    whole = report.trust.inputs[0].hash
    assert f'title="{whole}">{whole[:12]}…</code>' in text
    assert text.count(whole) == 1
    assert trust_blocks(replace(report.trust, inputs=[]))


# The difference


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (relative(10_000, 10_001), "under 0.1 %"),
        (relative(100, 88), "−12 %"),
        (signed(10_000, 9_999), "▼ −1 (under 0.1 %)"),
        (than(10_000, 10_001), "under 0.1 % more"),
        (change_of(Measure("train", "fill", "share", 0.5, 0.500001)), "▲ under 0.01 points"),
        (change_of(Measure("train", "fill", "share", 0.5, 0.48)), "▼ −2.00 points"),
    ],
)
def test_a_change_next_to_nothing_reads_as_words(said: str, expected: str) -> None:
    assert said == expected


def test_a_diff_leads_with_what_is_trained() -> None:
    a = Side(
        "a", "x", "p", False, 64, ["s"], ["train"], rows=100, tokens=1000, padding=0, labels=400, shards=1, bytes=1
    )
    inputs = InputsChange("", 1, 1, 1, 1, 1, {}, [])

    def first(**keys: Any) -> str:
        b = replace(a, plan="q", **keys)
        return headline(a, b, [], inputs, identical=False, same_rows=False).partition(":")[0]

    assert first(labels=500, tokens=900, rows=90) == (
        "B trains on 25 % more tokens, and packs 10 % fewer in 10 % fewer rows"
    )
    assert first(rows=50) == "B trains on the same number of tokens, in 50 % fewer rows"


def test_the_smaller_of_many_sources_flow_as_one() -> None:
    links = [Link(f"source {n}", "encoded tokens", 10 + n, "kept") for n in range(200)]
    links += [Link("end of sequence", "encoded tokens", 5, "created"), Link("encoded tokens", "trained", 9, "trained")]
    flow = Flow("", [LedgerFlow("all", [], [], links), LedgerFlow("source 0", [], [], links[:1])], {}, [], {}, None)
    (switch,) = [one for one in flow_blocks(flow) if isinstance(one, Switch)]
    (chart,) = [one for one in switch.panels[0][1] if isinstance(one, Chart)]
    labels = chart.traces[0]["node"]["label"]
    drawn = [label for label in labels if "source" in label and "sequence" not in label]
    assert len(drawn) == 16
    assert any(label.startswith("source 199 ") for label in drawn)
    smaller = sum(10 + n for n in range(185))
    assert [label for label in drawn if "smaller" in label] == [f"185 smaller sources · {large(smaller)}"]
    assert sum(chart.traces[0]["link"]["value"]) == sum(link.count for link in links)
    assert len(chart.table.rows) == len(links)  # all of them
