"""The recommendation: its numbers are those of the points, and it keeps what it says."""

import re
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packtrain.pipeline.report.advice import CHEAPER, KEEPS, TEXT, WHOLE, WHOLE_TEXTS
from packtrain.pipeline.report.blocks import Grid, Words
from packtrain.pipeline.report.by_source import MUCH
from packtrain.pipeline.report.charts_choice import choice_blocks
from packtrain.pipeline.report.choice import candidates, choose
from packtrain.pipeline.report.options import SEVEN_BILLION, ReportOptions
from packtrain.pipeline.report.spoken import share
from packtrain.pipeline.report.terminal import print_report
from packtrain.schemas.config import RunConfig
from packtrain.schemas.errors import ConfigError
from packtrain.schemas.report import FORMAT, Choice, Point, Report
from packtrain.stages.split import Places, split
from packtrain.stages.stock import Parts, Pieces, Stock
from rich.console import Console


def configured(**changes: Any) -> RunConfig:
    data = {
        "out": "out",
        "tokenizer": {"path": "unused"},
        "sources": [{"name": "s", "format": "text", "path": "unused"}],
        "truncate": {"max_length": 2048},
    }
    return RunConfig.model_validate({**data, **changes})


def stock_of(lengths: Any, prompt: float = 0.5) -> Stock:
    """Documents whose first part is no training."""
    array = np.array(lengths, dtype=np.int32)
    begins = (array * prompt).astype(np.int32)
    return Stock(array, np.arange(len(array), dtype=np.int32), begins, array.copy())


def of_sources(**lengths: tuple[Any, float]) -> tuple[Stock, list[dict[str, str]]]:
    """A part of each source, with its documents' lengths and their share of prompt."""
    stocks = [stock_of(*one) for one in lengths.values()]
    starts = np.cumsum([0, *(len(one.lengths) for one in stocks)])
    joined = [
        np.concatenate(column) for column in zip(*((one.lengths, one.begins, one.ends) for one in stocks), strict=True)
    ]
    parts = Parts(starts, np.arange(len(stocks), dtype=np.int32))
    stock = Stock(joined[0], np.arange(starts[-1], dtype=np.int32), joined[1], joined[2], parts)
    return stock, [{"name": name, "format": "text", "path": "unused"} for name in lengths]


def cut_anywhere(stock: Stock, config: RunConfig, lengths: tuple[int, ...]) -> Stock:
    """The same with what `overlong: split` at tokens makes of it; one run a document, up to its end."""
    pieces = {}
    highs = np.cumsum(stock.lengths, dtype=np.int64)
    lows = highs - stock.lengths
    for length in candidates(config, lengths):
        long = np.flatnonzero(stock.lengths > length)
        if not len(long):
            continue
        cut = split(lows[long], highs[long], length, 0, Places())
        asked = (lows + stock.begins)[long][cut.document]
        labels = np.maximum(cut.end - np.maximum(cut.start + 1, asked), 0)
        stays = (labels > 0) | config.keep_untrained
        columns = (long[cut.document], cut.end - cut.start, labels)
        pieces[length] = Pieces(*(column[stays].astype(np.int32) for column in columns))
    return replace(stock, pieces=pieces)


def choice_of(stock: Stock, config: RunConfig | None = None, **options: Any) -> Choice:
    config, how = config or configured(), ReportOptions(**options)
    if config.truncate.overlong == "split":
        stock = cut_anywhere(stock, config, how.lengths)
    return choose(stock, config, how, documents_in_all=len(stock.lengths))


def at(choice: Choice, strategy: str, length: int) -> Point:
    return next(one for one in choice.points if (one.strategy, one.max_length) == (strategy, length))


def lognormal(mean: float, spread: float, count: int = 3000) -> Any:
    return np.clip(np.random.default_rng(1).lognormal(mean, spread, count), 2, 300_000).astype(np.int32)


# --- the points ---


def test_the_configured_length_is_always_among_them() -> None:
    for length in (300, 2048, 5000, 1 << 20):
        choice = choice_of(stock_of(lognormal(5, 1)), configured(truncate={"max_length": length}))
        assert at(choice, "bfd", length).max_length == choice.max_length == length
        assert [one.max_length for one in choice.points] == sorted(one.max_length for one in choice.points)


def test_lengths_that_say_nothing_are_left_out() -> None:
    shown = {one.max_length for one in choice_of(stock_of(lognormal(6, 0.3))).points}
    assert shown == {256, 512, 1024, 2048}  # the longest has some 1,200 tokens
    # Where hardly one fits, longer rows are fuller.
    shown = {one.max_length for one in choice_of(stock_of([300] * 5000)).points}
    assert {512, 1024, 4096} <= shown
    assert max(shown) <= 16_384
    asked = {one.max_length for one in choice_of(stock_of([300] * 50), lengths=(512, 1024, 65_536)).points}
    assert asked == {512, 1024, 2048, 65_536}


def test_lengths_are_multiples_of_the_alignment() -> None:
    config = configured(pack={"align": 96}, truncate={"max_length": 960})
    assert candidates(config, (256, 500, 1024)) == [192, 480, 960]
    assert candidates(config, (50,)) == [960]
    with pytest.raises(ConfigError, match=r"--lengths: 1 is no length"):
        candidates(config, (1,))


def test_the_histogram_is_of_all_lengths() -> None:
    lengths = lognormal(6, 1)
    found = choice_of(stock_of(lengths)).lengths
    assert sum(found.counts) == found.count == len(lengths)
    assert found.total == lengths.sum()
    assert found.quantiles["p50"] == np.sort(lengths)[(len(lengths) - 1) // 2]
    assert (found.quantiles["min"], found.quantiles["max"]) == (lengths.min(), lengths.max())
    assert found.exact


def test_of_a_sample_it_is_said() -> None:
    choice = choose(stock_of([100] * 50), configured(), ReportOptions(), documents_in_all=5000)
    assert (choice.documents, choice.documents_in_all) == (50, 5000)
    assert not choice.lengths.exact
    assert "5,000" in choice.sentence


def test_points_have_the_work_of_the_shape() -> None:
    for point in choice_of(stock_of(lognormal(6, 1))).points:
        attention = 6 * point.squares * SEVEN_BILLION.hidden * SEVEN_BILLION.layers
        assert point.attention_flops == attention
        computed = point.slots if point.strategy == "padded" else point.tokens
        assert point.flops == attention + 6 * SEVEN_BILLION.parameters * computed


# --- the sentence of the configured length ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "1 of 3 documents are cut and 21.8 % of the trained tokens lost"),
        ({"truncate": {"max_length": 2048, "overlong": "drop"}}, "1 of 3 documents are dropped"),
        (
            {"truncate": {"max_length": 2048, "overlong": "split"}},
            "At 2,048, 1 of 3 documents are split into 2 pieces and < 0.1 % of the trained tokens lost; 2 rows",
        ),
        ({"truncate": {"max_length": 2048, "overlong": "error"}}, "longer than a row, which stops the run"),
        ({"pack": {"strategy": "bfd_split"}}, "bfd_split at 2,048 loses no token and cuts 1 of 3 documents"),
        ({"pack": {"strategy": "wrapped"}}, "wrapped at 2,048 loses no token and cuts"),
        ({"pack": {"strategy": "none"}}, "each of the 3 documents is a row of its own"),
        (
            {"pack": {"strategy": "none"}, "truncate": {"max_length": 2048, "overlong": "split"}},
            "each of the 4 pieces is a row of its own",
        ),
        ({"truncate": {"max_length": 4096}}, "no document is cut and no token lost"),
    ],
)
def test_what_the_configured_length_does(changes: dict[str, Any], words: str) -> None:
    assert words in choice_of(stock_of([100, 200, 2700], 0.0), configured(**changes)).sentence


def test_nothing_at_all() -> None:
    choice = choice_of(stock_of([]))
    assert choice.advice is None
    assert "no document" in choice.sentence


# --- the recommendation ---


def test_conversations_get_the_length_that_keeps_their_answers() -> None:
    choice = choice_of(stock_of(lognormal(6.2, 0.8)))
    assert choice.advice is not None
    assert choice.advice.strategy == "bfd"
    point = at(choice, "bfd", choice.advice.max_length)
    kept = point.labels / (point.labels + point.labels_lost)
    assert kept >= KEEPS
    shorter = at(choice, "bfd", choice.advice.max_length // 2)
    assert shorter.labels / (shorter.labels + shorter.labels_lost) < KEEPS
    longer = at(choice, "bfd", choice.advice.max_length * 2)
    more = longer.attention_flops / point.attention_flops - 1
    gain = (longer.labels - point.labels) / (point.labels + point.labels_lost)
    assert choice.advice.sentence == (
        f"{point.max_length:,} keeps {share(kept)} of the trained tokens; the next step up, {longer.max_length:,}, "
        f"costs {share(more)} more attention for {share(gain)} of them."
    )


def test_short_documents_share_longer_rows() -> None:
    choice = choice_of(stock_of([300] * 5000))
    assert choice.advice is not None
    assert choice.advice.max_length > 512
    assert at(choice, "bfd", choice.advice.max_length).fill > 0.9
    assert any("too few documents fit" in reason for reason in choice.advice.reasons)


def test_texts_are_split_and_not_followed_to_the_longest() -> None:
    choice = choice_of(stock_of([*lognormal(6, 0.8), 250_000, 300_000], 0.0))
    assert choice.advice is not None
    assert (choice.advice.strategy, choice.advice.max_length) == ("bfd_split", 2048)
    assert "loses no token" in choice.advice.sentence


def test_one_giant_conversation_is_named() -> None:
    choice = choice_of(stock_of([*lognormal(6, 0.8, 1000), 120_000], 0.4))
    assert choice.advice is not None
    assert choice.advice.strategy == "bfd"
    assert any("Few documents ask for so much" in one and "overlong: split" in one for one in choice.advice.reasons)


def test_too_long_for_any_length() -> None:
    choice = choice_of(stock_of([200_000] * 40, 0.5), lengths=(1024, 4096))
    assert choice.advice is not None
    assert any("No length compared" in reason for reason in choice.advice.reasons)
    assert choice.advice.max_length == 1024  # none of them leaves anything that is trained
    choice = choice_of(stock_of([200_000] * 40, 0.0), lengths=(1024, 4096))
    assert choice.advice is not None
    assert choice.advice.max_length == 4096


def test_an_error_means_that_no_document_may_be_longer() -> None:
    config = configured(truncate={"max_length": 2048, "overlong": "error"})
    choice = choice_of(stock_of([*([100] * 100_000), 6000]), config)
    assert choice.advice is not None
    assert choice.advice.max_length == 8192


# --- by source ---


def test_a_source_that_the_advice_loses_is_named() -> None:
    stock, sources = of_sources(chat=([500] * 20_000, 0.5), meetings=([60_000] * 2, 0.99))
    choice = choice_of(stock, configured(sources=sources))
    assert choice.advice is not None
    assert choice.advice.max_length < 60_000
    assert choice.advice.sentence.endswith("; but of meetings, 100 % would be lost.")
    assert "Of source meetings, 100 % of the trained tokens would be lost" in choice.advice.reasons[0]
    assert "2 of 2 documents are longer or left out, the longest has 60,000 tokens" in choice.advice.reasons[0]
    chat, meetings = choice.sources
    assert (chat.source, chat.documents, chat.documents_cut, chat.tokens_lost) == ("chat", 20_000, 0, 0)
    assert (meetings.documents_lost, meetings.labels_lost) == (2, meetings.labels)
    # Split, none of them is lost; where texts are cut, that is told.
    split = choice_of(stock, configured(sources=sources, truncate={"max_length": 2048, "overlong": "split"}))
    assert split.advice is not None
    assert "but of" not in split.advice.sentence
    assert any("Of source meetings, 100 % of the documents would be cut" in one for one in split.advice.reasons)


def test_page_and_terminal_tell_what_sources_lose() -> None:
    stock, sources = of_sources(chat=([500] * 20_000, 0.5), meetings=([60_000] * 2, 0.99), code=([300] * 40, 0.5))
    choice = choice_of(stock, configured(sources=sources, pack={"align": 16}))
    blocks = choice_blocks(choice)
    (grid,) = (one for one in blocks if isinstance(one, Grid) and one.caption.startswith("By source"))
    told = ["meetings", "2", "60,000", "0", "2 (100 %)", "100 %", "100 %"]
    assert [list(one) for one in grid.rows][1] == told
    assert [one[0] for one in grid.rows] == ["chat", "meetings", "code"]
    assert [one.text for one in blocks if isinstance(one, Words)] == choice.notes
    console = Console(file=StringIO(), width=160)
    print_report(console, Report(FORMAT, "run", "out", "", "", None, choice=choice))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert any([cell.strip() for cell in line.split("│")] == told for line in lines)
    assert "  2 sources with no longer document" in lines
    assert not any(line.startswith("code") for line in lines)
    assert all(any(note in line for line in lines) for note in choice.notes)


def test_of_one_source_nothing_is_said_apart() -> None:
    stock, sources = of_sources(chat=(lognormal(6.2, 0.8), 0.5))
    choice = choice_of(stock, configured(sources=sources))
    assert choice.sources == []
    assert choice.advice == choice_of(stock_of(lognormal(6.2, 0.8))).advice


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.integers(1, 3000), min_size=1, max_size=15), min_size=2, max_size=4),
    st.lists(st.floats(0, 0.99), min_size=4, max_size=4),
    st.sampled_from(["truncate", "drop", "split", "error"]),
    st.booleans(),
)
def test_what_sources_lose_is_what_the_point_loses(
    lengths: list[list[int]], prompts: list[float], overlong: str, untrained: bool
) -> None:
    stock, sources = of_sources(**{f"s{n}": (one, prompts[n]) for n, one in enumerate(lengths)})
    config = configured(sources=sources, truncate={"max_length": 512, "overlong": overlong}, keep_untrained=untrained)
    choice = choice_of(stock, config, lengths=(64, 512, 2048))
    assert choice.advice is not None
    point = at(choice, choice.advice.strategy, choice.advice.max_length)
    for name in ("documents_cut", "documents_lost", "tokens_lost", "labels_lost"):
        assert sum(getattr(one, name) for one in choice.sources) == getattr(point, name), name
    labels = sum(one.labels for one in choice.sources)
    worst = max((one.labels_lost / one.labels if one.labels else 0.0) for one in choice.sources)
    if labels:
        assert ("; but of" in choice.advice.sentence.replace("; but for", "")) == (worst >= MUCH)


# --- what is said about the comparison ---


def test_notes_say_what_is_compared_otherwise() -> None:
    stock = stock_of([100, 203, 2700], 0.0)
    assert choice_of(stock).notes == []
    (note, wrapped) = choice_of(stock, configured(pack={"align": 16, "max_docs": 4})).notes
    assert "padded to multiples of 16: at 2,048 that is 0.72 % more" in note  # (12 + 5 + 0) / 2,351
    assert wrapped == "Strategy wrapped is compared without pack.align and pack.max_docs, which it cannot keep."
    (note,) = choice_of(stock, configured(truncate={"max_length": 2048, "overlong": "split"})).notes
    assert "is split at turns, as the configuration says" in note
    (note,) = choice_of(stock, configured(truncate={"max_length": 2048, "overlong": "error"})).notes
    assert "stops a run" in note
    few = configured(pack={"window_tokens": 10_000})
    assert choice_of(stock, few).notes == []
    (note,) = choose(stock, few, ReportOptions(), documents_in_all=3000).notes
    assert "10,000 tokens at a time" in note


def test_untrained_data_says_so() -> None:
    lengths = np.array([300, 500], dtype=np.int32)
    nothing = np.zeros(0, dtype=np.int32)
    choice = choice_of(Stock(lengths, nothing, nothing, nothing), configured(keep_untrained=True))
    assert choice.advice is not None
    assert "of the tokens" in choice.advice.sentence
    assert any("look at the mask" in reason for reason in choice.advice.reasons)
    without = choice_of(Stock(lengths, nothing, nothing, nothing))
    assert without.advice is not None
    assert without.points[0].documents == 0


def test_few_rows_are_named() -> None:
    choice = choice_of(stock_of([1000] * 20))
    assert choice.advice is not None
    assert any("few: with 8 of them a step" in reason for reason in choice.advice.reasons)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=40),
    st.floats(0, 0.99),
    st.sampled_from(["bfd", "bfd_split", "wrapped", "none"]),
    st.sampled_from(["truncate", "drop", "split", "error"]),
    st.sampled_from([64, 500, 2048]),
    st.booleans(),
)
def test_the_advice_keeps_what_can_be_kept(
    lengths: list[int], prompt: float, strategy: str, overlong: str, length: int, untrained: bool
) -> None:
    if strategy in ("bfd_split", "wrapped"):
        overlong = "truncate"
    config = configured(
        pack={"strategy": strategy}, truncate={"max_length": length, "overlong": overlong}, keep_untrained=untrained
    )
    choice = choice_of(stock_of(lengths, prompt), config, lengths=(32, 128, 512, 2048, 8192))
    advice = choice.advice
    assert advice is not None
    assert advice.strategy in ("bfd", "bfd_split")
    known = {one.max_length for one in choice.points}
    assert advice.max_length in known
    # Every share in the sentence is that of a point.
    by, cuts = advice.strategy, advice.strategy == "bfd_split" or overlong == "split"
    point = at(choice, by, advice.max_length)
    total = point.labels + point.labels_lost
    kept = point.labels / total if total else point.tokens / (point.tokens + point.tokens_lost)
    texts = total / (point.tokens + point.tokens_lost) >= TEXT
    whole = 1 - point.documents_cut / (point.documents + point.documents_lost)
    reached = not any("No length compared" in reason for reason in advice.reasons)
    if reached:
        assert kept >= KEEPS
        if cuts:
            assert whole >= (WHOLE_TEXTS if texts else WHOLE)
        if overlong == "error" and advice.strategy == "bfd":
            assert point.documents_cut == point.documents_lost == 0
        enough = [
            one for one in choice.points
            if one.strategy == by and one.max_length < advice.max_length and total
            and one.labels / total >= KEEPS
            and (not cuts or 1 - one.documents_cut / (one.documents + one.documents_lost) >= WHOLE)
            and (overlong != "error" or one.documents_cut + one.documents_lost == 0)
        ]  # fmt: skip
        for shorter in enough:  # a shorter one that would do takes more room for each trained token
            assert shorter.slots / shorter.labels > point.slots / point.labels * (1 + CHEAPER) * 0.999 or any(
                other.slots / max(other.labels, 1) < point.slots / point.labels
                for other in choice.points
                if other.strategy == by
            )
    said = ["all" if kept == 1 else share(kept)] if by == "bfd" else []
    said += [share(whole)] if cuts else []
    assert all(one in advice.sentence.partition(";")[0] for one in said)
    named = [int(one.replace(",", "")) for one in re.findall(r"next step up, ([\d,]+),", advice.sentence)]
    assert all(one in known and one > advice.max_length for one in named)
    assert len(set(advice.reasons)) == len(advice.reasons) >= 3
