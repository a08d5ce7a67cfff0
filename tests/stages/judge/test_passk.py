"""pass@k against counting subsets and exact fractions; intervals and p-values against their definitions."""

from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.judge.passk import PairedDifference, estimate, paired_difference, pass_at_k

from tests.support.examples import examples


def test_small_cases_that_a_person_can_check() -> None:
    assert pass_at_k(1, 1, 1) == 1.0
    assert pass_at_k(10, 0, 5) == 0.0
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(2, 1, 2) == 1.0
    assert pass_at_k(5, 2, 3) == pytest.approx(0.9)  # of 10 triples one, {3, 4, 5}, has no correct sample


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


@pytest.mark.parametrize("case", [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1), (0, 0, 1)])
def test_what_is_not_defined_is_refused(case: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="is not defined"):
        pass_at_k(*case)


def test_an_interval_is_that_of_the_normal_approximation_where_that_holds() -> None:
    values = np.array([1.0] * 400 + [0.0] * 600)
    found = estimate(values)
    error = 1.96 * (0.4 * 0.6 / 1000) ** 0.5
    assert found.value == 0.4
    assert found.low == pytest.approx(0.4 - error, abs=0.004)
    assert found.high == pytest.approx(0.4 + error, abs=0.004)


@pytest.mark.parametrize("n", [1, 2, 20, 1_000])
def test_none_and_all_have_the_exact_bounds_of_a_proportion(n: int) -> None:
    """With a chance of `high` each, n problems all fail with a probability of 2.5 %; and the other way round."""
    none, every = estimate(np.zeros(n)), estimate(np.ones(n))
    assert (none.value, none.low, every.value, every.high) == (0, 0, 1, 1)
    assert (1 - none.high) ** n == pytest.approx(0.025, rel=1e-5)
    assert every.low**n == pytest.approx(0.025, rel=1e-5)
    if n == 20:
        assert (round(none.high, 3), round(every.low, 3)) == (0.168, 0.832)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    chance = np.random.default_rng(5)
    covered = sum(
        one.low <= 0.3 <= one.high for one in (estimate((chance.random(120) < 0.3).astype(float)) for _ in range(100))
    )
    assert 88 <= covered <= 100


@given(st.lists(st.sampled_from((0.0, 0.25, 0.5, 1.0)), min_size=1, max_size=60))
@examples(60)
def test_an_interval_holds_the_mean_within_the_range_and_never_changes(values: list[float]) -> None:
    one = estimate(np.array(values))
    none, every = not any(values), min(values) == 1
    assert (0 if every else min(values)) <= one.low <= one.value + 1e-9
    assert one.value - 1e-9 <= one.high <= (1 if none else max(values))
    assert one == estimate(np.array(values))


def test_an_interval_is_the_bootstrap_written_out_in_plain_python() -> None:
    """Its numbers never change: a change of the generator would change the intervals of all earlier evaluations."""
    values = [0.0, 0.0, 0.1, 0.5, 1.0, 1.0, 0.0, 0.2]
    mask = 2**64 - 1

    def drawn(position: int) -> int:
        x = position * 0x9E3779B97F4A7C15 & mask
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return ((x ^ x >> 31) >> 32) * 8 >> 32

    means = sorted(sum(values[drawn(8 * at + one + 1)] for one in range(8)) / 8 for at in range(4_000))

    def quantile(share: float) -> float:
        below, part = divmod(share * 3_999, 1)
        return means[int(below)] * (1 - part) + means[int(below) + 1] * part

    found = estimate(np.array(values))
    assert [found.low, found.high] == pytest.approx([quantile(0.025), quantile(0.975)])
    assert (found.value, found.low, found.high) == (0.35, 0.0875, 0.65)


@given(st.lists(st.sampled_from((-1.0, -0.5, 0.5, 1.0)), min_size=1, max_size=8))
@examples(60)
def test_p_is_the_share_of_all_sign_flips_that_are_as_far_from_zero(values: list[float]) -> None:
    flips = [abs(sum(sign * one for sign, one in zip(signs, values, strict=True)))
             for signs in product((1, -1), repeat=len(values))]  # fmt: skip
    expected = sum(one >= abs(sum(values)) - 1e-12 for one in flips) / len(flips)
    assert paired_difference(np.array([*values, 0.0, 0.0])).p == pytest.approx(expected, abs=1e-9)


def test_many_differences_are_flipped_at_random() -> None:
    same = paired_difference(np.array([0.5, -0.5] * 100))
    assert same.p > 0.9
    assert same.value == 0.0
    better = paired_difference(np.array([0.2] * 60 + [0.0] * 40))
    assert better.p == pytest.approx(1 / 4001)
    assert better.value == pytest.approx(0.12)
    assert 0 < better.low < 0.12 < better.high


def test_random_flips_agree_with_all_flips() -> None:
    values = np.array([0.9, -0.4, 0.3, 0.8, -0.2, 0.5, 0.1, -0.6, 0.7, 0.2, 0.4, -0.3])
    exact = paired_difference(values)
    signs = np.array(list(product((1, -1), repeat=12)))
    assert exact.p == pytest.approx(float(np.mean(abs(signs @ values) >= abs(values.sum()) - 1e-12)))
    drawn = paired_difference(np.append(values, 1e-9))  # one more than are tried in full
    assert drawn.p == pytest.approx(exact.p, abs=0.03)


def test_equal_evaluations_do_not_differ() -> None:
    assert paired_difference(np.zeros(5)) == PairedDifference(0.0, 0.0, 0.0, 1.0, 5)
