"""The sweep against the planner itself, label by label."""

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packtrain.stages.plan import Strategy, plan_rows
from packtrain.stages.sweep import STRATEGIES, Outcome, Stock, SweepOptions, sweep
from packtrain.stages.truncate import Keep

Documents = list[list[bool]]
"""Of each token of each document, whether the mask asks for it."""


def stock_of(documents: Documents) -> Stock:
    owners, begins, ends = [], [], []
    for number, asked in enumerate(documents):
        marks = np.flatnonzero(np.diff([0, *map(int, asked), 0]))
        owners += [number] * (len(marks) // 2)
        begins += marks[::2].tolist()
        ends += marks[1::2].tolist()
    as_int = [np.array(column, dtype=np.int32) for column in ([len(one) for one in documents], owners, begins, ends)]
    return Stock(*as_int)


def labels_of(asked: list[bool], begin: int, end: int) -> int:
    """Labels of a piece: its first token has none."""
    return sum(asked[begin + 1 : end])


def brute(documents: Documents, strategy: str, limit: int, options: SweepOptions) -> dict[str, int]:
    """The same figures from a real plan, piece by piece."""
    cuts = strategy in ("wrapped", "bfd_split")
    if cuts:
        stays = [(0, len(one)) for one in documents]
    elif options.keep is Keep.END:
        stays = [(max(0, len(one) - limit), len(one)) for one in documents]
    else:
        stays = [(0, min(limit, len(one))) for one in documents]
    left = [
        number
        for number, (begin, end) in enumerate(stays)
        if end > begin
        and (options.keep_untrained or labels_of(documents[number], begin, end) > 0)
        and (cuts or not options.drop or len(documents[number]) <= limit)
    ]
    lengths = np.array([stays[number][1] - stays[number][0] for number in left], dtype=np.int32)
    if strategy in ("padded", "padding_free"):
        batches = -(-len(left) // options.batch)
        pieces = [(number, *stays[number]) for number in left]
        rows = batches
    else:
        plan = plan_rows(
            lengths,
            limit,
            cast(Strategy, strategy),
            align=options.align,
            max_docs=options.max_docs if strategy != "wrapped" else None,
        )
        pieces = []
        for order, start, length in zip(plan.order, plan.starts, plan.lengths, strict=True):
            begin = stays[left[order]][0] + int(start)
            pieces.append((left[order], begin, begin + int(length)))
        rows = plan.rows
    number_of = [number for number, _, _ in pieces]
    lost = [number for number in left if sum(e - b for n, b, e in pieces if n == number) < len(documents[number])]
    several = {number for number in left if number_of.count(number) > 1}
    return {
        "documents": len(left),
        "documents_cut": len(several) if cuts else len(lost),
        "documents_lost": sum(bool(one) for one in documents) - len(left),
        "pieces": len(pieces),
        "rows": rows,
        "tokens": sum(end - begin for _, begin, end in pieces),
        "labels": sum(labels_of(documents[number], begin, end) for number, begin, end in pieces),
    }


documents = st.lists(st.lists(st.booleans(), max_size=40), max_size=12)
options = st.builds(
    SweepOptions,
    batch=st.integers(1, 4),
    keep=st.sampled_from(Keep),
    drop=st.booleans(),
    keep_untrained=st.booleans(),
    max_docs=st.none() | st.integers(1, 3),
    align=st.sampled_from([1, 2, 4]),
)


@settings(deadline=None)
@given(documents, st.sampled_from([4, 8, 16, 32]), options)
def test_it_counts_what_the_planner_makes(documents: Documents, limit: int, options: SweepOptions) -> None:
    if options.align > 1:
        strategies = [strategy for strategy in STRATEGIES if strategy != "wrapped"]
    else:
        strategies = list(STRATEGIES)
    for found in sweep(stock_of(documents), [limit], strategies, options):
        expected = brute(documents, found.strategy, limit, options)
        assert {key: getattr(found, key) for key in expected} == expected, found.strategy
        assert found.tokens + found.tokens_lost == sum(map(len, documents))
        assert found.bound <= found.rows
        assert found.tokens <= found.slots or found.slots == found.tokens == 0


def test_figures_that_can_be_checked_by_eye() -> None:
    # Lengths 5, 3 and 2; a prompt of one token each.
    stock = stock_of([[False] + [True] * 4, [False] + [True] * 2, [False, True]])
    by = {found.strategy: found for found in sweep(stock, [4], options=SweepOptions(batch=2, seed=1))}
    assert (stock.tokens, stock.labels) == (10, 7)
    bfd = by["bfd"]
    assert (bfd.rows, bfd.tokens_lost, bfd.documents_cut, bfd.labels_lost) == (3, 1, 1, 1)  # 4 | 3 | 2
    assert (bfd.slots, bfd.squares, bfd.fill) == (12, 16 + 9 + 4, 9 / 12)
    split = by["bfd_split"]  # 4 | 3 + 1 | 2
    assert (split.rows, split.pieces, split.tokens_lost, split.labels_lost, split.squares) == (
        3,
        4,
        0,
        1,
        16 + 9 + 4 + 1,
    )
    wrapped = by["wrapped"]  # 4 | 1 + 3 | 2: one label at the head of the second row
    assert (wrapped.rows, wrapped.pieces, wrapped.documents_cut, wrapped.labels_lost) == (3, 4, 1, 1)
    free = by["padding_free"]
    assert (free.rows, free.slots, free.squares) == (2, 9, 29)
    padded = by["padded"]
    assert padded.rows == 2
    assert padded.slots in {4 + 4 + 2, 4 + 4 + 3, 3 + 3 + 4}


def test_flops_are_those_of_the_textbook() -> None:
    one = Outcome("bfd", 8, 1, 0, 0, 1, 1, 1, 8, 0, 8, 7, 0, 64)
    attention, total = one.flops(parameters=1000, layers=2, hidden=10)
    assert attention == 3 * (2 * 2 * 10 * 64 / 2) * 2  # scores and values, half of the square, thrice, two layers
    assert total == attention + 6 * 1000 * 8
    loose = Outcome("bfd", 8, 1, 0, 0, 1, 1, 1, 5, 0, 8, 4, 0, 25)
    assert loose.flops(1000, 2, 10)[1] == loose.flops(1000, 2, 10)[0] + 6 * 1000 * 5, "rows are not filled up"
    padded = Outcome("padded", 8, 1, 0, 0, 1, 1, 1, 5, 0, 8, 4, 0, 64)
    assert padded.flops(1000, 2, 10)[1] == padded.flops(1000, 2, 10)[0] + 6 * 1000 * 8


@pytest.mark.parametrize("make", [lambda: stock_of([]), lambda: stock_of([[], []])])
def test_nothing_at_all(make: Callable[[], Stock]) -> None:
    for found in sweep(make(), [256, 512]):
        assert (found.rows, found.tokens, found.fill, found.gap) == (0, 0, 0.0, 0.0)
