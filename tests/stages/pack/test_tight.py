"""`tight` needs at most the rows of `bfd`, the bound at most the fewest rows of any plan, and both hold every piece."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.stages.pack.bounds import bound_of_whole_pieces, size_counts
from packtrain.stages.pack.plan_rows import plan_rows
from packtrain.stages.pack.tight import tight_rows

from tests.support.examples import examples


def fewest_rows(sizes: list[int], capacity: int, max_docs: int | None = None) -> int:
    """The optimum, by trying everything: the largest piece left into each different row, or into a new one."""
    sizes = sorted(sizes, reverse=True)
    best = len(sizes)

    def search(at: int, rows: tuple[tuple[int, int], ...]) -> None:
        nonlocal best
        if len(rows) >= best:
            return
        if at == len(sizes):
            best = len(rows)
            return
        for row in dict.fromkeys(rows):
            space, held = row
            if space >= sizes[at] and (max_docs is None or held < max_docs):
                others = list(rows)
                others.remove(row)
                search(at + 1, tuple(sorted([*others, (space - sizes[at], held + 1)])))
        search(at + 1, tuple(sorted([*rows, (capacity - sizes[at], 1)])))

    search(0, ())
    return best


@st.composite
def problems(draw: st.DrawFn, most: int = 9) -> tuple[list[int], int]:
    """Few sizes and a capacity; often near a half or a third of it, where packing is hard."""
    capacity = draw(st.sampled_from([5, 10, 12, 30, 99, 100, 1000, 5000]))
    near = st.sampled_from([capacity // 2, capacity // 3, capacity // 4, capacity - 1])
    wide = st.integers(1, capacity)
    close = st.builds(lambda middle, off: min(capacity, max(1, middle + off)), near, st.integers(-3, 3))
    return draw(st.lists(st.one_of(wide, close), min_size=1, max_size=most)), capacity


@examples(300)
@given(problems(), st.none() | st.integers(1, 4))
def test_rows_and_bound_beside_the_optimum(problem: tuple[list[int], int], max_docs: int | None) -> None:
    sizes, capacity = problem
    bound = bound_of_whole_pieces(size_counts(np.array(sizes), capacity), max_docs)
    optimum = fewest_rows(sizes, capacity, max_docs)
    plain = plan_rows(sizes, capacity, max_docs=max_docs).certificate
    certificate = plan_rows(sizes, capacity, "tight", max_docs=max_docs).certificate
    assert bound == certificate.bound == plain.bound <= optimum <= certificate.rows <= plain.rows
    if max_docs is not None and max_docs < 3:
        assert certificate.rows == optimum


@examples(250)
@given(problems(60), st.none() | st.integers(1, 9))
def test_pieces_in_rows_and_never_more_rows(problem: tuple[list[int], int], max_docs: int | None) -> None:
    given_sizes, capacity = problem
    sizes = np.array(given_sizes, dtype=np.int32)
    counts = size_counts(sizes, capacity)
    placement = tight_rows(sizes, counts, max_docs)
    assert sorted(placement.order.tolist()) == list(range(len(sizes)))
    assert np.add.reduceat(sizes[placement.order], placement.row_offsets[:-1]).max() <= capacity
    rows = len(placement.row_offsets) - 1
    assert rows <= plan_rows(sizes, capacity, max_docs=max_docs).rows
    if max_docs is not None:
        assert np.diff(placement.row_offsets).max() <= max_docs
    again = tight_rows(sizes, counts, max_docs)
    assert again.order.tolist() == placement.order.tolist()


def lognormal(random: np.random.Generator, number: int, mean: float, sigma: float) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = np.exp(random.standard_normal(number) * sigma + np.log(mean) - sigma**2 / 2)
    return drawn


def bimodal(random: np.random.Generator, number: int, capacity: int) -> NDArray[np.float64]:
    """Seven short answers to three long documents, which fill more than half of a row."""
    long = random.normal(0.6 * capacity, 0.08 * capacity, number)
    return np.where(random.random(number) < 0.3, long, lognormal(random, number, 250, 0.5))


FAMILIES: dict[str, Callable[[np.random.Generator, int, int], NDArray[np.float64]]] = {
    "lognormal": lambda random, number, capacity: lognormal(random, number, 0.4 * capacity, 1.0),
    "bimodal": bimodal,
    "uniform": lambda random, number, capacity: random.integers(1, capacity + 1, number).astype(np.float64),
}


@pytest.mark.slow
def test_rows_near_the_bound() -> None:
    """27 cases; column generation proves a bound of 76,263 rows for them, and best-fit-decreasing takes 76,308."""
    plain = tight = bound = 0
    for (_, family), number, capacity in itertools.product(FAMILIES.items(), (200, 2000, 20_000), (1024, 4096, 32_768)):
        drawn = family(np.random.default_rng([number, capacity]), number, capacity)
        lengths = np.clip(np.rint(drawn), 1, capacity).astype(np.int64)
        before, after = plan_rows(lengths, capacity), plan_rows(lengths, capacity, "tight")
        assert after.certificate.bound <= after.rows <= before.rows
        plain, tight, bound = plain + before.rows, tight + after.rows, bound + after.certificate.bound
    assert (plain, bound) == (76_308, 76_237)
    assert tight <= 1.0015 * bound
    assert tight <= 76_290


def test_few_pieces_are_tried_in_several_ways() -> None:
    """Of small sets one row is a percent: where filling once misses the bound by it, trying again finds some."""
    above = 0
    for seed in range(8):
        drawn = np.random.default_rng([seed, 200]).normal(1024 / 4, 1024 / 20, 200)
        certificate = plan_rows(np.clip(np.rint(drawn), 1, 1024).astype(np.int64), 1024, "tight").certificate
        above += certificate.rows - certificate.bound
    assert above <= 1  # 3 with a single try


def test_a_limit_on_documents_that_best_fit_handles_badly() -> None:
    """Lognormal documents of which three fit a row, at most four to a row."""
    drawn = np.exp(np.random.default_rng(4).standard_normal(2000) + np.log(0.2 * 4096))
    lengths = np.clip(drawn, 1, 4096).astype(int)
    plain = plan_rows(lengths, 4096, max_docs=4).certificate
    tight = plan_rows(lengths, 4096, "tight", max_docs=4).certificate
    assert plain.rows > 1.05 * plain.bound
    assert tight.rows < 1.015 * tight.bound
