"""Mixtures: in proportion everywhere, every row as often as it should be, and the same on every machine."""

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from packtrain.schemas.errors import ConfigError  # noqa: E402
from packtrain.training import PackedLoader, Source  # noqa: E402
from packtrain.training.order.mixture import Mixture, Until, even, weighted  # noqa: E402
from packtrain.training.testing import Shape, check_resumption  # noqa: E402

WEIGHTS = st.lists(st.integers(1, 2**41), min_size=2, max_size=6)


def test_by_eye() -> None:
    assert even([4, 2]).owners(0, 6).tolist() == [0, 1, 0, 0, 1, 0]
    assert even([1, 1, 2]).owners(0, 4).tolist() == [2, 0, 1, 2]
    assert even([4, 2]).counts(3) == [2, 1]
    mixture = weighted([0.75, 0.25], [30, 30], Until.FIRST)
    assert mixture.total == 40
    assert mixture.owners(0, 8).tolist() == [0, 0, 1, 0, 0, 0, 1, 0]
    assert weighted([0.75, 0.25], [30, 30], Until.ALL).counts(119) == [89, 30]


@given(WEIGHTS, st.integers(0, 10**15), st.integers(1, 300))
def test_positions_are_dealt_in_proportion_anywhere(weights: list[int], first: int, size: int) -> None:
    mixture = Mixture(tuple(weights), 0)
    before, after = mixture.counts(first), mixture.counts(first + size)
    assert sum(before) == first
    owners = mixture.owners(first, first + size)
    assert np.bincount(owners, minlength=len(weights)).tolist() == [b - a for a, b in zip(before, after, strict=True)]
    for count, weight in zip(after, weights, strict=True):
        assert abs(count - Fraction((first + size) * weight, sum(weights))) < len(weights)


@given(WEIGHTS, st.integers(0, 10**12), st.integers(2, 200), st.data())
def test_a_range_is_its_parts(weights: list[int], first: int, size: int, data: st.DataObject) -> None:
    mixture = Mixture(tuple(weights), 0)
    cut = data.draw(st.integers(1, size - 1))
    parts = [mixture.owners(first, first + cut), mixture.owners(first + cut, first + size)]
    assert np.concatenate(parts).tolist() == mixture.owners(first, first + size).tolist()


@given(st.lists(st.integers(1, 60), min_size=2, max_size=5))
def test_without_weights_all_end_together(rows: list[int]) -> None:
    mixture = even(rows)
    assert mixture.counts(mixture.total) == rows
    assert np.bincount(mixture.owners(0, mixture.total), minlength=len(rows)).tolist() == rows


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 10**6)), min_size=2, max_size=5),
    st.sampled_from(Until),
)
def test_with_weights_it_ends_where_it_was_told(sources: list[tuple[float, int]], until: Until) -> None:
    shares, limits = zip(*sources, strict=True)
    mixture = weighted(shares, limits, until)
    here, next_one = mixture.counts(mixture.total), mixture.counts(mixture.total + 1)
    last = mixture.counts(max(mixture.total - 1, 0))
    if until is Until.FIRST:
        assert all(count <= limit for count, limit in zip(here, limits, strict=True))
        assert any(count > limit for count, limit in zip(next_one, limits, strict=True))
    else:
        assert all(count >= limit for count, limit in zip(here, limits, strict=True))
        assert any(count < limit for count, limit in zip(last, limits, strict=True))


def rows_by_source(loader: PackedLoader) -> list[Counter[int]]:
    counters: list[Counter[int]] = [Counter() for _ in loader.corpus.parts]
    for row in loader.schedule.global_order.at(0, loader.total_rows).tolist():
        part, index = loader.corpus.locate(row)
        counters[part][index] += 1
    return counters


@pytest.mark.parametrize("order", ["sequential", "full", "blocks"])
def test_epochs_of_each_source(make_packed: Any, folder: Path, order: str) -> None:
    other = make_packed("other", 60)
    sources = [Source(folder, epochs=1), Source(other, epochs=3)]
    loader = PackedLoader(sources, rows_per_step=4, order=order, tail="pad")
    first, second = rows_by_source(loader)
    assert first == Counter(dict.fromkeys(range(len(loader.corpus.parts[0])), 1))
    assert second == Counter(dict.fromkeys(range(len(loader.corpus.parts[1])), 3))
    assert len(list(loader)) == -(-loader.total_rows // 4)


def test_weights_by_tokens_and_by_rows(make_packed: Any, folder: Path) -> None:
    other = make_packed("other", 60)
    for by in ("tokens", "rows"):
        sources = [Source(folder, weight=3), Source(other, weight=1)]
        loader = PackedLoader(sources, rows_per_step=2, epochs=50, mix_by=by, until="all")
        amounts = []
        for part, counter in zip(loader.corpus.parts, rows_by_source(loader), strict=True):
            amounts.append(
                sum(
                    n * (int(part.sizes.tokens(np.array([row]))[0]) if by == "tokens" else 1)
                    for row, n in counter.items()
                )
            )
        assert amounts[0] / sum(amounts) == pytest.approx(0.75, abs=0.003)


@pytest.mark.slow
def test_a_mixture_resumes_in_any_shape(make_packed: Any) -> None:
    folder, other = make_packed("few", 100), make_packed("fewer", 36)

    def make(rank: int, shape: Shape) -> PackedLoader:
        return PackedLoader(
            [Source(folder, weight=0.6), Source(other, weight=0.4)],
            rows_per_step=shape.rows_per_step,
            num_workers=shape.num_workers,
            rank=rank,
            world_size=shape.world_size,
            epochs=2,
            tail="pad",
            until="all",
        )

    assert check_resumption(make, [Shape(1, 7), Shape(2, 6, num_workers=2), Shape(4, 4)], every=3) > 50


def test_explain_names_the_dataset(make_packed: Any, folder: Path) -> None:
    other = make_packed("other", 60)
    loader = PackedLoader([Source(folder), Source(other)], rows_per_step=6)
    placed = loader.explain(0)
    assert {one.dataset for one in placed} == {str(folder), str(other)}
    step = loader.steps.at(0)
    expected = [loader.corpus.locate(int(step.rows[index])) for index in step.rank_rows[0]]
    seen = [(Path(one.dataset), one.row) for one in placed]
    assert list(dict.fromkeys(seen)) == [((folder, other)[part], row) for part, row in expected]


def test_another_mixture_is_refused(make_packed: Any, folder: Path) -> None:
    other = make_packed("other", 60)
    state = PackedLoader([Source(folder, weight=1), Source(other, weight=1)], rows_per_step=1).state_dict()
    assert len(json.dumps(state)) < 1024
    with pytest.raises(ValueError, match="mixture differs"):
        PackedLoader([Source(folder, weight=1), Source(other, weight=2)], rows_per_step=1).load_state_dict(state)
    with pytest.raises(ValueError, match="another dataset"):
        PackedLoader([Source(other, weight=1), Source(folder, weight=1)], rows_per_step=1).load_state_dict(state)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((1.0, None), "some sources of the mixture have a weight and others do not"),
        ((1.0, 0.0), "weight 0.0; weights must be positive"),
        ((1.0, float("inf")), "weights must be positive"),
        ((1.0, 1e-15), "leave it out"),
    ],
)
def test_weights_that_cannot_be(folder: Path, weights: tuple[float | None, float | None], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PackedLoader([Source(folder, weight=weight) for weight in weights], rows_per_step=1, mix_by="rows")
