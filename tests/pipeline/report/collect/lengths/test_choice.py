"""The recommendation: its numbers are those of the points, and it keeps as many tokens as it says."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.report.collect.lengths.advice import CHEAPER, FEW_ROWS, KEEPS, TEXT, WHOLE, WHOLE_TEXTS
from packtrain.pipeline.report.collect.lengths.choice import candidates, choose
from packtrain.pipeline.report.options import SEVEN_BILLION, ReportOptions
from packtrain.schemas.errors import ConfigError
from packtrain.schemas.positions import Limit
from packtrain.schemas.report import ReportShape
from packtrain.schemas.units import share
from packtrain.stages.forecast.length_stats import LengthStats
from packtrain.stages.pack.plan import plan_rows

from tests.pipeline.report.choices import at, choice_of, configured, lognormal, stats_of
from tests.support.examples import examples

# --- the points ---


def test_the_configured_length_is_always_among_them() -> None:
    for length in (300, 2048, 5000, 1 << 20):
        choice = choice_of(stats_of(lognormal(5, 1)), configured(truncate={"max_length": length}))
        assert at(choice, "bfd", length).max_length == choice.max_length == length
        assert [one.max_length for one in choice.points] == sorted(one.max_length for one in choice.points)


def test_lengths_that_say_nothing_are_left_out() -> None:
    shown = {one.max_length for one in choice_of(stats_of(lognormal(6, 0.3))).points}
    assert shown == {256, 512, 1024, 2048}  # the longest has some 1,200 tokens
    # Where hardly one fits, longer rows are fuller.
    shown = {one.max_length for one in choice_of(stats_of([300] * 5000)).points}
    assert {512, 1024, 4096} <= shown
    assert max(shown) <= 16_384
    asked = {one.max_length for one in choice_of(stats_of([300] * 50), lengths=(512, 1024, 65_536)).points}
    assert asked == {512, 1024, 2048, 65_536}


def test_lengths_are_multiples_of_the_alignment() -> None:
    config = configured(pack={"align": 96}, truncate={"max_length": 960})
    assert candidates(config, (256, 500, 1024)) == [192, 480, 960]
    assert candidates(config, (50,)) == [960]
    for parallel, expected in (
        ({"cp": 3}, [252, 498, 960, 1020]),
        ({"cp": 5, "layout": "ring"}, [255, 500, 960, 1020]),
    ):
        config = configured(pack={"parallel": parallel}, truncate={"max_length": 960})
        assert candidates(config, (4, 256, 500, 1024)) == expected
    with pytest.raises(ConfigError):
        candidates(config, (1,))


def test_the_histogram_is_of_all_lengths() -> None:
    lengths = lognormal(6, 1)
    found = choice_of(stats_of(lengths)).lengths
    assert sum(found.counts) == found.count == len(lengths)
    assert found.total == lengths.sum()
    assert found.quantiles["p50"] == np.sort(lengths)[(len(lengths) - 1) // 2]
    assert (found.quantiles["min"], found.quantiles["max"]) == (lengths.min(), lengths.max())
    assert found.exact


def test_of_a_sample_it_is_said() -> None:
    choice = choose(stats_of([100] * 50), configured(), ReportOptions(), documents_in_all=5000)
    assert (choice.documents, choice.documents_in_all) == (50, 5000)
    assert not choice.lengths.exact
    assert "5,000" in choice.sentence


def test_points_have_the_work_of_the_shape() -> None:
    for point in choice_of(stats_of(lognormal(6, 1))).points:
        attention = 6 * point.squares * SEVEN_BILLION.hidden * SEVEN_BILLION.layers
        assert point.attention_flops == attention
        computed = point.slots if point.strategy == "padded" else point.tokens
        assert point.flops == attention + 6 * SEVEN_BILLION.parameters * computed


def test_what_tight_saves_of_rows_with_a_limit_on_documents() -> None:
    """2,000 documents of which about five fit a row, at most four to a row: no more rows than are said."""
    random = np.random.default_rng(4)
    lengths = np.clip(np.exp(random.standard_normal(2000) + np.log(800)), 2, 4096).astype(np.int64)
    limits: dict[str, Any] = {"truncate": {"max_length": 4096}, "pack": {"max_docs": 4}}
    choice = choice_of(stats_of(lengths), configured(**limits))
    (note,) = [one for one in choice.notes if "tight would" in one]
    said, instead = (int(one) for one in re.findall(r"(\d+) rows|instead of (\d+)", note) for one in one if one)
    assert instead == at(choice, "bfd", 4096).rows
    assert plan_rows(lengths, 4096, "tight", max_docs=4).rows <= said < 0.9 * instead


# --- the sentence of the configured length ---


def test_nothing_at_all() -> None:
    choice = choice_of(stats_of([]))
    assert choice.advice is None
    assert "no document" in choice.sentence


# --- the recommendation ---


def test_short_documents_share_longer_rows() -> None:
    choice = choice_of(stats_of([300] * 5000))
    assert choice.advice is not None
    assert choice.advice.max_length > 512
    assert at(choice, "bfd", choice.advice.max_length).fill > 0.9


def test_few_rows_are_not_made_fewer_to_fill_them() -> None:
    stats = stats_of([300] * 100)
    choice = choice_of(stats)
    assert choice.advice is not None
    assert choice.advice.max_length == 512
    assert at(choice, "bfd", 512).rows == 100
    assert at(choice, "bfd", 2048).fill > at(choice, "bfd", 512).fill + CHEAPER
    # The same documents are a sample of enough.
    many = choose(stats, configured(), ReportOptions(), documents_in_all=5000)
    assert many.advice is not None
    assert many.advice.max_length > 512


def test_texts_are_split_and_not_followed_to_the_longest() -> None:
    choice = choice_of(stats_of([*lognormal(6, 0.8), 250_000, 300_000], 0.0))
    assert choice.advice is not None
    assert (choice.advice.strategy, choice.advice.max_length) == ("bfd_split", 2048)


GIANT = replace(stats_of([100] * 300 + [700] * 299 + [40_000]), longest=[("s/chats:46", 40_000), ("s/chats:3", 700)])


def test_one_giant_conversation_does_not_decide() -> None:
    advice = choice_of(GIANT).advice
    assert advice is not None
    assert (advice.max_length, advice.strategy) == (1024, "bfd")


def test_several_giants_are_counted() -> None:
    advice = choice_of(stats_of([100] * 4000 + [700] * 1000 + [40_000, 50_000, 200_000, 60_000, 45_000])).advice
    assert advice is not None
    assert advice.max_length == 1024


@pytest.mark.parametrize(
    ("stats", "changes"),
    [
        (stats_of([100] * 4000 + [700] * 1000 + [60_000] * 6), {}),  # more than one in a thousand
        (stats_of([100] * 12 + [700] * 7 + [60_000] * 2), {}),  # more than one in twenty
        (GIANT, {"truncate": {"overlong": "error"}}),  # stops the run
    ],
)
def test_more_of_them_do_decide(stats: LengthStats, changes: dict[str, Any]) -> None:
    advice = choice_of(stats, configured(**changes)).advice
    assert advice is not None
    assert advice.max_length == 65_536


def test_no_longer_length_is_advised_than_can_be_afforded() -> None:
    stats = stats_of([3000] * 400 + [200] * 2000)
    free = choice_of(stats)
    assert free.advice is not None
    assert free.advice.max_length == 4096
    limited = choice_of(stats, max_length_limit=1024)
    assert limited.advice is not None
    assert limited.advice.max_length <= 1024
    assert limited.points == free.points, "longer ones are compared all the same"


def for_model(positions: int) -> ReportShape:
    return replace(SEVEN_BILLION, limit=Limit(positions, f"the model's positions end at {positions:,}"))


def test_no_longer_length_is_advised_than_the_model_has_positions() -> None:
    stats = stats_of([3000] * 400 + [200] * 2000)
    free, limited = choice_of(stats).advice, choice_of(stats, shape=for_model(2048)).advice
    assert free is not None
    assert free.max_length == 4096
    assert limited is not None
    assert limited.max_length == 2048
    given = choice_of(stats, shape=for_model(2048), max_length_limit=8192).advice
    assert given is not None
    assert given == free, "the user knows better"


@pytest.mark.parametrize(("positions", "advised"), [(3500, 3500), (128, 128), (40_960, 4096), (1 << 18, 4096)])
def test_the_models_positions_are_compared_too(positions: int, advised: int) -> None:
    advice = choice_of(stats_of([3000] * 400 + [200] * 2000), shape=for_model(positions)).advice
    assert advice is not None
    assert advice.max_length == advised


def test_splitting_a_few_documents_comes_first_where_it_saves_most() -> None:
    advice = choice_of(stats_of([100] * 5000 + [60_000] * 20)).advice
    assert advice is not None
    assert "overlong: split" in advice.reasons[0]


def test_too_long_for_any_length() -> None:
    choice = choice_of(stats_of([200_000] * 40, 0.5), lengths=(1024, 4096))
    assert choice.advice is not None
    assert choice.advice.max_length == 1024  # none of them leaves anything that is trained
    choice = choice_of(stats_of([200_000] * 40, 0.0), lengths=(1024, 4096))
    assert choice.advice is not None
    assert choice.advice.max_length == 4096


def test_an_error_means_that_no_document_may_be_longer() -> None:
    config = configured(truncate={"max_length": 2048, "overlong": "error"})
    choice = choice_of(stats_of([*([100] * 100_000), 6000]), config)
    assert choice.advice is not None
    assert choice.advice.max_length == 8192


# --- what else is said ---


@examples(60)
@given(
    st.tuples(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.sampled_from([1, 80])).map(
        lambda found: found[0] * found[1]
    ),
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
    choice = choice_of(stats_of(lengths, prompt), config, lengths=(32, 128, 512, 2048, 8192))
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
    reached = not any("None of the compared lengths" in reason for reason in advice.reasons)
    if reached:
        assert kept >= KEEPS or "far longer document" in advice.sentence
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
        assert not enough or point.rows >= FEW_ROWS  # fuller rows alone are no reason to have few
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
