"""Histograms against numpy, and the rank correlation against scipy's definition."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.report.collect.lengths.histograms import Tally, log_edges, spearman
from packtrain.pipeline.report.collect.lengths.packed import evenly

from tests.support.examples import examples

VALUES = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 200_000)), max_size=200)


def tallied(values: list[int], lots: int) -> Tally:
    tally = Tally()
    for lot in np.array_split(np.array(values, dtype=np.int32), lots):
        tally.add(lot)
    return tally


@given(VALUES, st.integers(1, 5))
@examples(100)
def test_every_value_is_in_one_bin(values: list[int], lots: int) -> None:
    for found in (tallied(values, lots).logarithmic(), tallied(values, lots).even()):
        assert found.count == sum(found.counts) == len(values)
        assert found.total == sum(values)
        assert len(found.edges) == len(found.counts) + 1
        assert found.edges == sorted(set(found.edges))
        expected, _ = np.histogram(values, np.array(found.edges))
        assert found.counts == expected.tolist()
        if values:
            assert found.edges[0] <= min(values) <= max(values) <= found.edges[-1]


@given(VALUES.filter(len), st.integers(1, 5))
@examples(100)
def test_quantiles_are_numpys(values: list[int], lots: int) -> None:
    found = tallied(values, lots).logarithmic()
    for name, share in (("min", 0), ("p5", 5), ("p25", 25), ("p50", 50), ("p75", 75), ("p95", 95), ("p99", 99)):
        assert found.quantiles[name] == np.percentile(values, share, method="inverted_cdf"), name
    assert found.quantiles["max"] == max(values)
    assert found.exact
    assert not tallied(values, lots).even(exact=False).exact


@given(st.lists(st.integers(0, 2048), max_size=200), st.integers(1, 3))
@examples(60)
def test_shares_lie_between_none_and_all(values: list[int], lots: int) -> None:
    found = tallied(values, lots).shares(2048)
    assert (found.edges[0], found.edges[-1]) == (0.0, 1.0)
    assert sum(found.counts) == len(values)
    assert found.total == pytest.approx(sum(values) / 2048)
    assert found.counts[-1] == sum(value * len(found.counts) // 2048 >= len(found.counts) - 1 for value in values)


def test_an_empty_tally() -> None:
    for found in (Tally().logarithmic(), Tally().even(), Tally().shares(2048)):
        assert (found.count, found.total, found.quantiles, sum(found.counts)) == (0, 0, {}, 0)
        assert found.mean == 0


@given(st.integers(0, 1 << 24))
def test_edges_are_whole_numbers_and_reach_far_enough(most: int) -> None:
    edges = log_edges(most)
    assert all(edge == int(edge) for edge in edges)
    assert edges[0] == 0
    assert edges[-1] > most


@given(st.integers(0, 500), st.integers(0, 500))
def test_evenly(count: int, wanted: int) -> None:
    taken = evenly(count, wanted).tolist()
    assert len(taken) == (min(count, max(wanted, 1)))
    assert taken == sorted(set(taken))
    assert all(0 <= one < count for one in taken)
    if len(taken) > 1:
        steps = np.diff(taken)
        assert steps.max() - steps.min() <= 1


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=60))
@examples(100)
def test_rank_correlation(pairs: list[tuple[int, int]]) -> None:
    left, right = (list(side) for side in zip(*pairs, strict=True))

    def ranks(values: list[int]) -> list[float]:
        # By the definition: the mean of the places that equal values share.
        ordered = sorted(values)
        return [ordered.index(one) + (ordered.count(one) + 1) / 2 for one in values]

    found = spearman(left, right)
    if len(set(left)) == 1 or len(set(right)) == 1:
        assert found is None
        return
    expected: Any = np.corrcoef(ranks(left), ranks(right))[0, 1]
    assert found == pytest.approx(expected)


def test_rank_correlation_of_orders() -> None:
    assert spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert spearman([1, 2, 3], [9, 8, 1]) == pytest.approx(-1)
    assert spearman([1], [1]) is None
    assert spearman([], []) is None
