"""The texts beside the advice: what sources lose, what is compared under other settings, and what else would help."""

import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.report.collect.lengths.by_source import MUCH, source_tables, source_warning
from packtrain.pipeline.report.collect.lengths.choice import choose
from packtrain.pipeline.report.draw.blocks import Grid, Words, walk
from packtrain.pipeline.report.draw.charts_choice import choice_blocks
from packtrain.pipeline.report.draw.terminal import print_report
from packtrain.pipeline.report.options import ReportOptions
from packtrain.schemas.report import FORMAT, Report
from rich.console import Console

from tests.pipeline.report.choices import at, choice_of, configured, lognormal, of_sources, stats_of
from tests.support.examples import examples

# --- by source ---


def test_a_source_that_the_advice_loses_is_named() -> None:
    stats, sources = of_sources(chat=([500] * 20_000, 0.5), meetings=([60_000] * 2, 0.99))
    choice = choice_of(stats, configured(sources=sources))
    assert choice.advice is not None
    assert choice.advice.max_length < 60_000
    assert choice.advice.sentence.endswith("; but source meetings would lose 100 % of its trained tokens.")
    assert "Source meetings would lose 100 % of its trained tokens" in choice.advice.reasons[0]
    assert "2 of 2 documents are longer or left out, and the longest has 60,000 tokens" in choice.advice.reasons[0]
    chat, meetings = choice.sources
    assert (chat.source, chat.documents, chat.documents_cut, chat.tokens_lost) == ("chat", 20_000, 0, 0)
    assert (meetings.documents_lost, meetings.labels_lost) == (2, meetings.labels)
    # Split, none of them is lost; where texts are cut, the page says so.
    split = choice_of(stats, configured(sources=sources, truncate={"max_length": 2048, "overlong": "split"}))
    assert split.advice is not None
    assert "but source" not in split.advice.sentence
    assert any("Source meetings would have 100 % of its documents cut" in one for one in split.advice.reasons)


def test_page_and_terminal_tell_what_sources_lose() -> None:
    stats, sources = of_sources(chat=([500] * 20_000, 0.5), meetings=([60_000] * 2, 0.99), code=([300] * 40, 0.5))
    choice = choice_of(stats, configured(sources=sources, pack={"align": 16}))
    blocks = choice_blocks(choice)
    grids = [one for one in walk(blocks) if isinstance(one, Grid)]
    configured_grid, grid = (one for one in grids if one.caption.startswith("By source"))
    assert configured_grid.caption == "By source, at the configured 2,048 with bfd"
    assert [list(one) for one in configured_grid.rows] == [list(one) for one in grid.rows]
    expected = ["meetings", "2", "60,000", "0", "2 (100 %)", "100 %", "100 %"]
    assert [list(one) for one in grid.rows][1] == expected
    assert [one[0] for one in grid.rows] == ["chat", "meetings", "code"]
    assert [one.text for one in walk(blocks) if isinstance(one, Words)] == choice.notes
    console = Console(file=StringIO(), width=160)
    print_report(console, Report(FORMAT, "run", "out", "", "", None, choice=choice))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert any([cell.strip() for cell in line.split("│")] == expected for line in lines)
    assert "  2 sources without longer documents" in lines
    assert not any(line.startswith("code") for line in lines)
    assert all(any(note in line for line in lines) for note in choice.notes)


def test_a_source_that_the_configured_length_loses_is_named() -> None:
    stats, sources = of_sources(chat=([500] * 2000, 0.5), meetings=([3000] * 60, 0.9), code=([300] * 40, 0.5))
    choice = choice_of(stats, configured(sources=sources))
    assert choice.advice is not None
    assert choice.advice.max_length == 4096
    assert "meetings" not in choice.advice.sentence
    assert choice.sentence.endswith(". Source meetings loses 100 % of its trained tokens.")
    assert source_warning(choice) == "At the configured 2,048, source meetings loses 100 % of its trained tokens."
    _, meetings, _ = choice.sources_configured
    assert (meetings.source, meetings.documents_lost, meetings.labels_lost) == ("meetings", 60, 60 * 300)
    assert [title for title, _ in source_tables(choice)] == [
        "By source, at the configured 2,048 with bfd", "By source, at the advised 4,096 with bfd"
    ]  # fmt: skip
    # Who takes the advice reads one table, and no warning beside the advice.
    taken = choice_of(stats, configured(sources=sources, truncate={"max_length": 4096}))
    assert (taken.sources_configured, source_warning(taken)) == ([], None)
    assert [title for title, _ in source_tables(taken)] == ["By source, at the configured 4,096 with bfd"]


def test_of_one_source_nothing_is_said_apart() -> None:
    stats, sources = of_sources(chat=(lognormal(6.2, 0.8), 0.5))
    choice = choice_of(stats, configured(sources=sources))
    assert choice.sources == []
    assert choice.advice == choice_of(stats_of(lognormal(6.2, 0.8))).advice


@examples(40)
@given(
    st.lists(st.lists(st.integers(1, 3000), min_size=1, max_size=15), min_size=2, max_size=4),
    st.lists(st.floats(0, 0.99), min_size=4, max_size=4),
    st.sampled_from(["truncate", "drop", "split", "error"]),
    st.booleans(),
)
def test_what_sources_lose_is_what_the_point_loses(
    lengths: list[list[int]], prompts: list[float], overlong: str, untrained: bool
) -> None:
    stats, sources = of_sources(**{f"s{n}": (one, prompts[n]) for n, one in enumerate(lengths)})
    config = configured(sources=sources, truncate={"max_length": 512, "overlong": overlong}, keep_untrained=untrained)
    choice = choice_of(stats, config, lengths=(64, 512, 2048))
    assert choice.advice is not None
    point = at(choice, choice.advice.strategy, choice.advice.max_length)
    for name in ("documents_cut", "documents_lost", "tokens_lost", "labels_lost"):
        assert sum(getattr(one, name) for one in choice.sources) == getattr(point, name), name
    labels = sum(one.labels for one in choice.sources)
    worst = max((one.labels_lost / one.labels if one.labels else 0.0) for one in choice.sources)
    if labels:
        assert (re.search(r"; but (source |\d+ sources )", choice.advice.sentence) is not None) == (worst >= MUCH)


# --- what is said about the comparison ---


def test_notes_say_what_is_compared_otherwise() -> None:
    stats = stats_of([100, 203, 2700], 0.0)
    assert choice_of(stats).notes == []
    (note, wrapped) = choice_of(stats, configured(pack={"align": 16, "max_docs": 4})).notes
    assert "padded to multiples of 16: at 2,048 with bfd that adds 0.72 %" in note  # (12 + 5 + 0) / 2,351
    assert wrapped == "Strategy wrapped is compared without pack.align and pack.max_docs, which it does not support."
    parallel = configured(pack={"parallel": {"cp": 3, "layout": "thd"}}, truncate={"max_length": 2046})
    lengths, note, wrapped = choice_of(stats, parallel, lengths=(4, 510, 2046, 2048, 4096)).notes
    assert lengths == (
        "For pack.parallel (cp 3, layout thd), lengths are rounded down to multiples of 6: 4 to nothing, 2,048 to "
        "2,046, 4,096 to 4,092."
    )
    assert "padded to multiples of 6: at 2,046 with bfd that adds 0.13 %" in note  # (2 + 1 + 0) / 2,349
    assert wrapped == "Strategy wrapped is compared without pack.parallel, which it does not support."
    ring = configured(pack={"parallel": {"cp": 4, "layout": "ring"}}, truncate={"max_length": 2048})
    (note,) = choice_of(stats, ring).notes
    assert "padded to multiples of 4 behind their last piece, by at most 3 each" in note
    (note,) = choice_of(stats, configured(truncate={"max_length": 2048, "overlong": "split"})).notes
    assert "are split at turns, as configured" in note
    (note,) = choice_of(stats, configured(truncate={"max_length": 2048, "overlong": "error"})).notes
    assert "in a run they are an error" in note
    few = configured(pack={"window_tokens": 10_000})
    assert choice_of(stats, few).notes == []
    (note,) = choose(stats, few, ReportOptions(), documents_in_all=3000).notes
    assert "windows of 10,000 tokens" in note


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split"])
def test_rows_that_max_docs_closes_are_told(strategy: str) -> None:
    stats = stats_of(lognormal(5, 0.8, 3000))
    free = at(choice_of(stats, configured(pack={"strategy": strategy})), strategy, 2048)
    choice = choice_of(stats, configured(pack={"strategy": strategy, "max_docs": 4}))
    mine = at(choice, strategy, 2048)
    assert mine.rows >= 750 > free.rows
    note = (
        f"pack.max_docs: 4 closes rows before they are full: at 2,048 there are {mine.rows:,} rows, and without it "
        f"there would be {free.rows:,}."
    )
    assert note in choice.notes
    loose = choice_of(stats, configured(pack={"strategy": strategy, "max_docs": 3000}))
    assert not any("closes rows" in note for note in loose.notes)


def test_what_keeps_the_answers_at_the_configured_length_is_told() -> None:
    # 50 of 100 documents are cut at 2,048 before their answer, which has 300 of 3,000 tokens.
    stats = stats_of([*([3000] * 50), *([300] * 50)], 0.9)
    choice = choice_of(stats)
    assert choice.advice is not None
    assert choice.advice.reasons[-1] == (
        "At the configured 2,048, which keeps 9.1 %, truncate.keep: end would keep 100 % of the trained tokens; "
        "truncate.overlong: split would keep all but first tokens of pieces."
    )
    ended = choice_of(stats, configured(truncate={"max_length": 2048, "keep": "end"}))
    assert ended.advice is not None
    assert at(ended, "bfd", 2048).labels == 50 * 300 + 50 * 30
    dropped = choice_of(stats, configured(truncate={"max_length": 2048, "overlong": "drop"}))
    assert dropped.advice is not None
    assert dropped.advice.reasons[-1] == (
        "At the configured 2,048, which keeps 9.1 %, "
        "truncate.overlong: split would keep all but first tokens of pieces."
    )
    for other in (ended, choice_of(stats, configured(truncate={"max_length": 4096}))):
        assert other.advice is not None
        assert not any("would keep all but" in reason for reason in other.advice.reasons)


def test_what_is_lost_where_nothing_is_trained_are_tokens() -> None:
    stats = stats_of([3000] * 90, 1.0)
    choice = choice_of(stats, configured(keep_untrained=True))
    assert choice.sentence.startswith("At 2,048, 90 of 90 documents are cut and 31.7 % of the tokens lost.")


def test_of_a_sample_no_more_is_said_than_was_read() -> None:
    stats = stats_of([300] * 900)
    choice = choose(stats, configured(), ReportOptions(), documents_in_all=90_000)
    assert choice.advice is not None
    assert choice.advice.sentence.endswith("; no document in the sample is longer.")
    assert choice.advice.reasons[0].startswith("All 900 documents in the sample fit into a row: ")
    assert choice.sentence.startswith("Of about 90,000 documents, 900 were read. ")
