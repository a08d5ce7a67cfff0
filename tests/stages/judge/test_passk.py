"""pass@k against counting subsets and exact fractions; intervals against their definitions."""

from fractions import Fraction
from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.judge.passk import Tally, estimate_mean, pass_at_k, pass_at_k_differences, pass_at_k_scores

from tests.support.examples import examples


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
@examples(200)
def test_it_is_the_share_of_subsets_with_a_correct_sample(case: tuple[int, int, int]) -> None:
    n, c, k = case
    subsets = list(combinations(range(n), k))
    held = sum(any(one < c for one in subset) for subset in subsets)
    assert pass_at_k(n, c, k) == pytest.approx(float(Fraction(held, len(subsets))), abs=1e-12)


@given(st.integers(1, 2_000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
@examples(200)
def test_large_numbers_agree_with_exact_fractions(case: tuple[int, int, int]) -> None:
    n, c, k = case
    assert pass_at_k(n, c, k) == pytest.approx(float(1 - Fraction(comb(n - c, k), comb(n, k))), abs=1e-12)


def test_an_interval_is_that_of_the_normal_approximation() -> None:
    found = estimate_mean([1.0] * 400 + [0.0] * 600)
    error = 1.959964 * (0.4 * 0.6 / 999) ** 0.5
    assert (found.value, found.problems) == (0.4, 1000)
    assert found.low == pytest.approx(0.4 - error)
    assert found.high == pytest.approx(0.4 + error)


@pytest.mark.parametrize("n", [1, 2, 20, 1_000])
def test_none_and_all_have_the_exact_bounds_of_a_proportion(n: int) -> None:
    """With a chance of `high` each, n problems all fail with a probability of 2.5 %; and the other way round."""
    none, every = estimate_mean([0.0] * n), estimate_mean([1.0] * n)
    assert (none.value, none.low, every.value, every.high) == (0, 0, 1, 1)
    assert (1 - none.high) ** n == pytest.approx(0.025, rel=1e-5)
    assert every.low**n == pytest.approx(0.025, rel=1e-5)
    if n == 20:
        assert (round(none.high, 3), round(every.low, 3)) == (0.168, 0.832)


def test_scores_and_the_difference_from_another() -> None:
    ours = {0: Tally(4, 2), 1: Tally(2, 2), 2: Tally(1, 0)}
    assert list(pass_at_k_scores(ours)) == [1], "the third has one sample"
    assert list(pass_at_k_scores({0: Tally(60, 1), 1: Tally(50, 0)})) == [1, 5, 10, 50]
    assert pass_at_k_scores(ours)[1].value == pytest.approx((0.5 + 1 + 0) / 3)
    difference = pass_at_k_differences(ours, {0: Tally(4, 1), 2: Tally(1, 1), 9: Tally(1, 1)}, [1])[1]
    assert (difference.value, difference.problems) == ((0.25 - 1) / 2, 2)
    assert difference.low < difference.value < difference.high
    same = pass_at_k_differences(ours, ours, pass_at_k_scores(ours))[1]
    assert (same.value, same.low, same.high) == (0, 0, 0)
