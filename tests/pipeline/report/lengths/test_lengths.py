"""The comparison of lengths, and the advice: its numbers are those of the points, and it keeps what it says."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.report.lengths.advised import KEEPS, WHOLE, WHOLE_TEXTS, lost_at
from packtrain.pipeline.report.lengths.choice import model_limit
from packtrain.pipeline.report.lengths.compare import FEW_ROWS, SAVES, choose, lengths_to_compare
from packtrain.pipeline.report.lengths.section import describe_advice, describe_limit, point_at
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.models.model_facts import Limit
from packtrain.schemas.report.length_choice import Choice
from packtrain.schemas.tables.strategies import CUTTING
from packtrain.schemas.units import share
from packtrain.stages.forecast.estimate import CANDIDATES
from packtrain.stages.forecast.length_stats import LengthStats
from packtrain.stages.pack.plan_rows import plan_rows

from tests import kit
from tests.support.examples import examples


def configured(**changes: Any) -> RunConfig:
    data = {
        "out": "out",
        "tokenizer": {"path": "unused"},
        "sources": [{"name": "s", "format": "text", "path": "unused"}],
        "truncate": {"max_length": 2048},
    }
    return RunConfig.model_validate({**data, **changes})


def stats_of(lengths: Any, prompt: float = 0.5) -> LengthStats:
    """Documents whose first part is no training."""
    array = np.array(lengths, dtype=np.int32)
    begins = (array * prompt).astype(np.int32)
    return LengthStats(array, np.arange(len(array), dtype=np.int32), begins, array.copy(), texts=prompt == 0)


def choice_of(stats: LengthStats, config: RunConfig | None = None, **options: Any) -> Choice:
    return choose(stats, config or configured(), **options)


def compared(config: RunConfig, lengths: tuple[int, ...], longest: int = 2048) -> list[int]:
    return [at.limit for at in lengths_to_compare(config, lengths, None, longest)]


def lognormal(mean: float, spread: float, count: int = 3000) -> Any:
    return np.clip(np.random.default_rng(1).lognormal(mean, spread, count), 2, 300_000).astype(np.int32)


# The points


def test_lengths_are_multiples_of_the_alignment() -> None:
    config = configured(pack={"align": 96}, truncate={"max_length": 960})
    assert compared(config, (256, 500, 1024)) == [192, 480, 960]
    assert compared(config, (50,)) == [960]
    for parallel, expected in (
        ({"cp": 3}, [252, 498, 960, 1020]),
        ({"cp": 5, "layout": "ring"}, [255, 500, 960, 1020]),
    ):
        config = configured(pack={"parallel": parallel}, truncate={"max_length": 960})
        assert compared(config, (4, 256, 500, 1024)) == expected


def test_no_length_is_compared_that_no_document_needs() -> None:
    """But those that a user has named."""
    assert compared(configured(), CANDIDATES, 700) == [256, 512, 1024, 2048]
    assert compared(configured(), CANDIDATES, 1 << 20) == list(CANDIDATES)
    assert compared(configured(), (4096, 8192), 700) == [2048, 4096, 8192]


def test_the_histogram_is_of_all_lengths() -> None:
    lengths = lognormal(6, 1)
    found = choice_of(stats_of(lengths)).lengths
    assert sum(found.counts) == len(lengths)
    for at_bin, (low, high) in enumerate(zip(found.edges, found.edges[1:], strict=False)):
        assert found.counts[at_bin] == ((lengths >= low) & (lengths < high)).sum()


def test_a_strategy_that_saves_rows_is_shown() -> None:
    """2,000 documents of which about five fit a row, at most four to a row: no more rows than are said."""
    random = np.random.default_rng(4)
    lengths = np.clip(np.exp(random.standard_normal(2000) + np.log(800)), 2, 4096).astype(np.int64)
    limits: dict[str, Any] = {"truncate": {"max_length": 4096}, "pack": {"max_docs": 4}}
    choice = choice_of(stats_of(lengths), configured(**limits))
    assert choice.other is not None
    assert choice.other.strategy == "tight"
    assert plan_rows(lengths, 4096, "tight", max_docs=4).rows <= choice.other.rows
    assert choice.other.rows < 0.9 * point_at(choice, 4096).rows
    assert choice_of(stats_of([2048] * 50)).other is None, "full rows"
    alone = choice_of(stats_of([100] * 50), configured(pack={"strategy": "none"}))
    assert alone.other is not None
    assert (alone.other.strategy, point_at(alone, 2048).rows) == ("bfd", 50)
    assert alone.other.rows < 5


# The advice


def test_rows_that_cannot_hold_the_advised_documents_are_named() -> None:
    rows = {"pack": {"row_length": 1024}, "truncate": {"max_length": 512}}
    longer = describe_advice(choice_of(stats_of([3000] * 100), configured(**rows)))
    assert "Rows of 1,024 cannot hold such documents: raise pack.row_length, too" in longer
    assert "cannot hold" not in describe_advice(choice_of(stats_of([800] * 100), configured(**rows)))
    assert "cannot hold" not in describe_advice(choice_of(stats_of([3000] * 100)))


def test_longer_rows_are_advised_where_they_are_fuller() -> None:
    rows = {"pack": {"row_length": 1024}, "truncate": {"max_length": 1024}}
    half_empty = describe_advice(choice_of(stats_of([600] * 1000), configured(**rows)))
    fill = 600 * 1000 / (8192 * -(-1000 // (8192 // 600)))
    assert f"rows of 8,192 (pack.row_length) would be {share(fill)} full, in place of 58.6 %" in half_empty
    as_long_as_documents = configured(truncate={"max_length": 1024})
    assert describe_advice(choice_of(stats_of([600] * 1000), as_long_as_documents)) == half_empty
    assert "pack.row_length" not in describe_advice(choice_of(stats_of([512] * 1000), configured(**rows)))
    few = describe_advice(choice_of(stats_of([600] * (2 * FEW_ROWS - 1)), configured(**rows)))
    assert "pack.row_length" not in few
    for keys in ({"strategy": "none"}, {"strategy": "bfd_split"}):
        config = configured(truncate={"max_length": 1024}, pack=keys)
        assert "pack.row_length" not in describe_advice(choice_of(stats_of([600] * 1000), config))


def test_a_length_that_is_configured_and_advised_is_enough() -> None:
    assert describe_advice(choice_of(stats_of([2048] * 50))).startswith("max_length 2,048 is enough: it keeps all of")
    assert describe_advice(choice_of(stats_of([300] * 50))).startswith("max_length 512 keeps all of")


def test_strategies_are_compared_by_all_documents_where_the_others_are_a_sample() -> None:
    """Three documents of two sizes to a row, of which the sample has only those that fill a row alone."""
    sizes = np.random.default_rng(3).normal(1024 / 4, 1024 / 20, 20_000).clip(1, 1024).astype(np.int32)
    config = configured(truncate={"max_length": 1024})
    sample = replace(stats_of([1024] * 1000), in_all=len(sizes))
    assert choice_of(sample, config).other is None
    choice = choice_of(replace(sample, packed=sizes), config)
    rows = [plan_rows(sizes, 1024, strategy).rows for strategy in ("bfd", "tight")]
    assert choice.other_saves == 1 - rows[1] / rows[0] > SAVES
    assert f"it needs {share(choice.other_saves)} fewer of them" in describe_advice(choice)
    full = replace(stats_of(sizes), in_all=10**6, packed=np.full(1000, 1024, np.int32))
    assert choice_of(full, config).other is None


def test_what_limits_the_advice_is_named() -> None:
    stats = replace(stats_of([3000] * 400 + [200] * 400, prompt=0.1), longest=[("s:1", 3000)])
    model = describe_advice(choice_of(stats, limit=for_model(1024)))
    assert "of the trained tokens, the most of the lengths that the model is made for: the model's positions" in model
    assert "end at 1,024. No such length keeps 99.5 % of the trained tokens." in model
    compared = describe_advice(choice_of(stats, configured(truncate={"max_length": 512}), lengths=[256]))
    assert (
        "None of the lengths that were compared keeps 99.5 % of the trained tokens: the longest document has"
        in compared
    )
    assert "has 3,000 tokens" in compared
    assert "model" not in compared
    cut = configured(pack={"strategy": "bfd_split"})
    pieces = describe_advice(choice_of(replace(stats, texts=False), cut, limit=for_model(1024)))
    assert "No such length keeps 99.5 % of the trained tokens and 99 % of documents whole" in pieces
    enough = describe_advice(choice_of(stats, limit=for_model(4096)))
    assert "No such length" not in enough
    assert "None of" not in enough


def test_a_strategy_that_needs_fewer_rows_is_advised() -> None:
    """Three documents of two sizes to a row, which best fit fills badly."""
    sizes = np.random.default_rng(3).normal(1024 / 4, 1024 / 20, 20_000).clip(1, 1024).astype(np.int32)
    choice = choice_of(stats_of(sizes), configured(truncate={"max_length": 1024}))
    rows = [plan_rows(sizes, 1024, strategy).rows for strategy in ("bfd", "tight")]
    assert choice.other_saves == 1 - rows[1] / rows[0] > SAVES
    said = f"pack.strategy=tight fills rows of 1,024 better: it needs {share(choice.other_saves)} fewer of them"
    assert said in describe_advice(choice)
    for strategy in ("tight", "none", "bfd_split", "wrapped"):
        config = configured(truncate={"max_length": 1024}, pack={"strategy": strategy})
        assert "=tight" not in describe_advice(choice_of(stats_of(sizes), config))
    assert "=tight" not in describe_advice(
        choice_of(stats_of([256] * 20_000), configured(truncate={"max_length": 1024}))
    )


def test_plain_texts_can_be_cut() -> None:
    texts = stats_of([3000] * 100, prompt=0.0)
    assert "pack.strategy=bfd_split" in describe_advice(choice_of(texts))
    for changes in ({"pack": {"strategy": "bfd_split"}}, {"truncate": {"max_length": 4096}}):
        assert "pack.strategy" not in describe_advice(choice_of(texts, configured(**changes)))
    assert "pack.strategy" not in describe_advice(choice_of(stats_of([3000] * 100)))


def for_model(positions: int) -> Limit:
    return Limit(positions, f"the model's positions end at {positions:,}")


@pytest.mark.parametrize(
    ("positions", "advised"), [(2048, 2048), (3500, 3500), (128, 128), (40_960, 4096), (1 << 18, 4096)]
)
def test_no_longer_length_is_advised_than_the_model_has_positions(positions: int, advised: int) -> None:
    stats = stats_of([3000] * 400 + [200] * 2000)
    choice = choice_of(stats, limit=for_model(positions))
    assert choice.advice is not None
    assert choice.advice.max_length == advised


def test_a_length_above_the_models_positions_is_warned_of() -> None:
    config = configured(truncate={"max_length": 4096})
    choice = choice_of(stats_of([3000] * 40 + [200] * 200), config, limit=for_model(2048))
    assert choice.over_limit == 40
    (warning,) = describe_limit(choice)
    assert "positions end at 2,048" in warning
    assert "40 documents are longer" in warning
    assert not list(describe_limit(choice_of(stats_of([3000] * 40), limit=for_model(2048))))


@pytest.mark.parametrize(
    ("content", "limit"),
    [
        ('{"max_position_embeddings": 4096}', 4096),
        ('{"n_positions": 1024}', 1024),
        ('{"text_config": {"max_position_embeddings": 512}}', 512),
        ('{"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "longrope"}, '
         '"original_max_position_embeddings": 2048}', 2048),
        ("{}", None),
        ("{", None),
        ('{"max_position_embeddings": "many", "rope_scaling": [1]}', None),
    ],
)  # fmt: skip
def test_the_limit_of_a_model(tmp_path: Path, content: str, limit: int | None) -> None:
    model = Path(shutil.copytree(kit.demo_tokenizer(), tmp_path / "model"))
    (model / "config.json").write_text(content)
    found = model_limit("model", tmp_path)
    assert (found.tokens if found is not None else None) == limit


@examples(60)
@given(
    st.tuples(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.sampled_from([1, 80])).map(
        lambda found: found[0] * found[1]
    ),
    st.floats(0, 0.99),
    st.sampled_from(["bfd", "bfd_split", "wrapped", "none", "tight"]),
    st.sampled_from(["truncate", "drop"]),
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
    assert describe_advice(choice).startswith(f"max_length {advice.max_length:,} ")
    assert {one.strategy for one in choice.points} == {strategy}
    mine = {one.max_length: one for one in choice.points}
    point = mine[advice.max_length]
    least = (WHOLE_TEXTS if choice.texts else WHOLE) if strategy in CUTTING else 0

    def enough(one: Any) -> bool:
        return lost_at(one) <= 1 - KEEPS and 1 - one.documents_cut / (one.documents + one.documents_lost) >= least

    assert advice.reached == enough(point) == any(map(enough, mine.values()))
    if advice.reached:
        assert not any(enough(one) for one in mine.values() if one.max_length < advice.max_length)
    elif not least:
        assert lost_at(point) == min(map(lost_at, mine.values()))
