"""The sweep against the planner itself, label by label."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.forecast.length_stats import LengthStats
from packtrain.stages.forecast.sweep import SweepOptions, sweep
from packtrain.stages.pack.plan_rows import plan_rows
from packtrain.stages.select.truncate import Keep

Documents = list[list[bool]]
"""For each token of each document, whether the mask selects it."""


def stats_of(documents: Documents) -> LengthStats:
    owners, begins, ends = [], [], []
    for number, asked in enumerate(documents):
        marks = np.flatnonzero(np.diff([0, *map(int, asked), 0]))
        owners += [number] * (len(marks) // 2)
        begins += marks[::2].tolist()
        ends += marks[1::2].tolist()
    lengths = [len(one) for one in documents]
    columns = [np.array(column, dtype=np.int32) for column in (lengths, owners, begins, ends)]
    return LengthStats(columns[0], columns[1], columns[2], columns[3])


def labels_of(asked: list[bool], begin: int, end: int) -> int:
    """Labels of a piece: its first token has none."""
    return sum(asked[begin + 1 : end])


Stretch = tuple[int, int, int]
"""Document, first token, one past the last."""


def stretches(documents: Documents, strategy: str, limit: int, options: SweepOptions) -> list[Stretch]:
    """What is packed, before the strategy cuts it."""
    cuts = options.split or strategy == "bfd_split"
    out = []
    for number, one in enumerate(documents):
        if not one or (not options.keep_untrained and not labels_of(one, 0, len(one))):
            continue
        if cuts or len(one) <= limit:
            found = [(0, len(one))]
        elif options.drop:
            found = []
        else:
            found = [(len(one) - limit, len(one))] if options.keep is Keep.END else [(0, limit)]
        out += [(number, a, b) for a, b in found if options.keep_untrained or labels_of(one, a, b)]
    return out


def brute(documents: Documents, strategy: str, limit: int, options: SweepOptions) -> dict[str, int]:
    """The same figures from a real plan, piece by piece."""
    cuts, wide = options.split or strategy == "bfd_split", options.align
    stays = stretches(documents, strategy, limit, options)
    pieces = list[Stretch]()
    plan = plan_rows(
        np.array([end - begin for _, begin, end in stays], dtype=np.int32),
        limit,
        "bfd_split" if cuts else "bfd",
        align=wide,
        max_docs=options.max_docs,
    )
    for order, start, length in zip(plan.order, plan.starts, plan.lengths, strict=True):
        begin = stays[order][1] + int(start)
        pieces.append((stays[order][0], begin, begin + int(length)))
    packed = {number for number, _, _ in pieces}
    several = {number for number in packed if [one[0] for one in pieces].count(number) > 1}
    long = {number for number in packed if len(documents[number]) > limit}
    tokens = sum(end - begin for _, begin, end in pieces)
    padded = [-(-(end - begin) // wide) * wide for _, begin, end in pieces]
    labels = sum(labels_of(documents[number], begin, end) for number, begin, end in pieces)
    return {
        "documents": len(packed),
        "documents_cut": len(several) if cuts else len(long),
        "documents_lost": sum(bool(one) for one in documents) - len(packed),
        "pieces": len(pieces),
        "rows": plan.rows,
        "bound": plan.certificate.bound,
        "tokens": tokens,
        "tokens_lost": sum(map(len, documents)) - tokens,
        "labels": labels,
        "labels_lost": sum(labels_of(one, 0, len(one)) for one in documents) - labels,
        "padding": sum(padded) - tokens,
    }


documents = st.lists(st.lists(st.booleans(), max_size=40), max_size=12)
options = st.builds(
    SweepOptions,
    keep=st.sampled_from(Keep),
    drop=st.booleans(),
    split=st.booleans(),
    keep_untrained=st.booleans(),
    max_docs=st.none() | st.integers(1, 3),
    align=st.sampled_from([1, 2, 4]),
)


@given(documents, st.sampled_from([4, 8, 16, 32]), options)
def test_it_counts_what_the_planner_makes(documents: Documents, limit: int, options: SweepOptions) -> None:
    stats = stats_of(documents)
    for found in sweep(stats, [limit], ["bfd", "bfd_split"], options):
        expected = brute(documents, found.strategy, limit, options)
        assert {key: getattr(found, key) for key in expected} == expected, found.strategy
        assert found.bound <= found.rows


def test_figures_that_can_be_checked_by_eye() -> None:
    # Lengths 5, 3 and 2; a prompt of one token each.
    stats = stats_of([[False] + [True] * 4, [False] + [True] * 2, [False, True]])
    by = {found.strategy: found for found in sweep(stats, [4], ["bfd", "bfd_split", "wrapped"], SweepOptions())}
    assert (stats.tokens, stats.labels) == (10, 7)
    bfd = by["bfd"]
    assert (bfd.rows, bfd.tokens_lost, bfd.documents_cut, bfd.labels_lost) == (3, 1, 1, 1)  # 4 | 3 | 2
    assert bfd.fill == 9 / 12
    split = by["bfd_split"]  # 4 | 3 + 1 | 2
    assert (split.rows, split.pieces, split.tokens_lost, split.labels_lost) == (3, 4, 0, 1)
    wrapped = by["wrapped"]  # about the same: 4 | 1 + 3 | 2
    assert (wrapped.rows, wrapped.pieces, wrapped.documents_cut, wrapped.labels_lost) == (3, 4, 1, 1)


def test_alignment_fills_nothing() -> None:
    # 5, 3 and 2 tokens take 8, 4 and 4 of two rows of 8.
    stats = stats_of([[False] + [True] * 4, [False] + [True] * 2, [False, True]])
    (found,) = sweep(stats, [8], ["bfd"], SweepOptions(align=4))
    assert (found.rows, found.bound, found.tokens, found.padding) == (2, 2, 10, 6)
    assert found.fill == 10 / 16


@pytest.mark.parametrize(("align", "max_docs"), [(1, None), (4, None), (1, 3)])
def test_tight_has_the_rows_of_its_plan(align: int, max_docs: int | None) -> None:
    random = np.random.default_rng(align)
    documents = [[False] + [True] * int(length) for length in random.integers(20, 90, 400)]
    stats = stats_of(documents)
    (found,) = sweep(stats, [128], ["tight"], SweepOptions(align=align, max_docs=max_docs))
    (plain,) = sweep(stats, [128], ["bfd"], SweepOptions(align=align, max_docs=max_docs))
    certificate = plan_rows(stats.lengths, 128, "tight", align=align, max_docs=max_docs).certificate
    assert (found.rows, found.bound) == (certificate.rows, certificate.bound)
    assert plain.bound <= found.bound <= found.rows <= plain.rows
    assert (found.tokens, found.labels) == (plain.tokens, plain.labels)


@pytest.mark.parametrize("make", [lambda: stats_of([]), lambda: stats_of([[], []])])
def test_nothing_at_all(make: Callable[[], LengthStats]) -> None:
    for found in sweep(make(), [256, 512], ["bfd", "bfd_split", "wrapped", "none", "tight"], SweepOptions()):
        assert (found.rows, found.tokens, found.fill) == (0, 0, 0.0)
