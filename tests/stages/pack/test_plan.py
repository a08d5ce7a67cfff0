"""A plan holds every token it should, once, and its certificate tells the truth."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.schemas.layout import LayoutPlan
from packtrain.schemas.tables.strategies import STRATEGIES as TABLE
from packtrain.stages.pack.plan_rows import plan_rows

from tests.support.examples import examples

STRATEGIES = tuple(TABLE)

lengths_and_limits = st.tuples(st.lists(st.integers(0, 70), max_size=60), st.integers(2, 64), st.integers(0, 200))
lengths_and_capacity = st.tuples(st.lists(st.integers(0, 70), max_size=60), st.sampled_from([2, 3, 8, 20, 64]))


def rows_of(plan: LayoutPlan) -> list[list[tuple[int, int, int]]]:
    """Every row as its pieces, each (document, first token, last token + 1)."""
    pieces = list(zip(plan.order.tolist(), plan.starts.tolist(), (plan.starts + plan.lengths).tolist(), strict=True))
    ends = plan.row_offsets.tolist()
    return [pieces[a:b] for a, b in pairwise(ends)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@examples(120)
@given(lengths_and_capacity)
def test_every_token_once(strategy: str, problem: tuple[list[int], int]) -> None:
    lengths, capacity = problem
    plan = plan_rows(lengths, capacity, strategy)
    covered: dict[int, list[tuple[int, int]]] = {}
    for row in rows_of(plan):
        assert row, "no row is empty"
        assert sum(stop - start for _, start, stop in row) <= capacity
        for document, start, stop in row:
            assert start < stop
            covered.setdefault(document, []).append((start, stop))
    wanted = {i: n for i, n in enumerate(lengths) if n}
    if strategy in ("bfd", "tight", "none"):
        wanted = {i: min(n, capacity) for i, n in wanted.items()}
    assert covered.keys() == wanted.keys()
    for document, pieces in covered.items():
        pieces.sort()
        assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
        assert pieces[-1][1] == wanted[document]
        if strategy == "bfd_split":
            assert all(start % capacity == 0 for start, _ in pieces)
    certificate = plan.certificate
    assert certificate.tokens == sum(wanted.values()) == int(plan.lengths.sum())
    assert -(-certificate.tokens // capacity) <= certificate.bound <= certificate.rows == plan.rows
    assert plan.row_offsets[-1] == len(plan.order) == certificate.pieces
    types = [a.dtype for a in (plan.order, plan.starts, plan.lengths, plan.row_offsets)]
    assert types == [np.int64, np.int64, np.int32, np.int64]


@pytest.mark.parametrize("strategy", STRATEGIES)
@examples(120)
@given(lengths_and_limits)
def test_rows_may_be_longer_than_documents(strategy: str, problem: tuple[list[int], int, int]) -> None:
    lengths, limit, more = problem
    plan = plan_rows(lengths, limit, strategy, row_length=limit + more)
    cuts = strategy in ("bfd_split", "wrapped")
    short = lengths if cuts else [min(length, limit) for length in lengths]
    same = plan_rows(short, limit + more, strategy)
    assert rows_of(plan) == rows_of(same)
    assert plan.certificate == same.certificate
    longest = max((stop - start for row in rows_of(plan) for _, start, stop in row), default=0)
    assert longest <= (limit + more if cuts else limit)


@examples(120)
@given(
    st.lists(st.integers(1, 64), max_size=50),
    st.sampled_from([1, 2, 8, 16]),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_align_is_packing_of_padded_lengths(lengths: list[int], align: int, max_docs: int | None) -> None:
    padded = [-(-n // align) * align for n in lengths]
    plan = plan_rows(lengths, 64, align=align, max_docs=max_docs)
    same = plan_rows(padded, 64, max_docs=max_docs)
    assert plan.order.tolist() == same.order.tolist()
    assert plan.row_offsets.tolist() == same.row_offsets.tolist()
    assert plan.lengths.tolist() == [lengths[i] for i in plan.order]
    assert plan.certificate.bound == same.certificate.bound <= plan.rows
    if max_docs is not None:
        assert np.diff(plan.row_offsets).max(initial=0) <= max_docs


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"max_length": 1}, "max_length: 1 "),
        ({"max_length": 0}, "max_length"),
        ({"max_length": 8.0}, "max_length"),
        ({"max_length": 1 << 40}, "max_length"),
        ({"strategy": "ffd"}, "strategy: 'ffd' is not known"),
        ({"max_docs": 0}, "max_docs"),
        ({"align": 0}, "align"),
        ({"align": 3}, "align: 3 does not divide max_length 8"),
        ({"row_length": 7}, "row_length: 7 is less than max_length 8"),
        ({"row_length": 1 << 25}, "row_length"),
        ({"row_length": 9, "align": 2}, "align: 2 does not divide row_length 9"),
        ({"strategy": "wrapped", "max_docs": 2}, "strategy wrapped"),
        ({"strategy": "wrapped", "align": 2}, "strategy wrapped"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        plan_rows([1, 2], **{"max_length": 8, **options})


@pytest.mark.parametrize(
    "lengths",
    [[1.5], [[1], [2]], [3, -1], ["a"]],
)
def test_lengths_that_cannot_be(lengths: Any) -> None:
    with pytest.raises(InputError, match="integers of 0 or more"):
        plan_rows(lengths, 8)
