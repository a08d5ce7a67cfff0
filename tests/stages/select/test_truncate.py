"""What stays of each document: one stretch, within every limit, whatever the limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.rows import RunKind
from packtrain.stages.select.truncate import Keep, Limits, Overlong
from packtrain.stages.tokenize.run_kinds import NO_COMPLETION, completion_starts

#             prompt, completion
DOCUMENTS = [(3, 2), (2, 7), (8, 1), (6, 0), (0, 9)]
TEXT = 9
"""Tokens of a text, the last document."""


def stretches(limits: Limits) -> list[tuple[int, int]]:
    """(first token, one past the last) of the documents and of the text."""
    lengths = np.array([prompt + completion for prompt, completion in DOCUMENTS] + [TEXT], np.int32)
    boundaries = np.array([prompt for prompt, _ in DOCUMENTS] + [NO_COMPLETION], np.int32)
    found = limits.stretch(lengths, boundaries if limits.needs_boundaries else None)
    return list(zip(found.low.tolist(), found.high.tolist(), strict=True))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(6), [(0, 5), (0, 6), (0, 6), (0, 6), (0, 6), (0, 6)]),
        (Limits(6, keep=Keep.END), [(0, 5), (3, 9), (3, 9), (0, 6), (3, 9), (3, 9)]),
        (Limits(6, Overlong.DROP), [(0, 5), (0, 9), (0, 9), (0, 6), (0, 9), (0, 9)]),
        (Limits(6, Overlong.WHOLE), [(0, 5), (0, 9), (0, 9), (0, 6), (0, 9), (0, 9)]),
        (Limits(9, max_prompt=2), [(1, 5), (0, 9), (6, 9), (4, 6), (0, 9), (0, 9)]),
        (Limits(9, max_completion=3), [(0, 5), (0, 5), (0, 9), (0, 6), (0, 3), (0, 9)]),
        (Limits(9, max_prompt=2, max_completion=1), [(1, 4), (0, 3), (6, 9), (4, 6), (0, 1), (0, 9)]),
        (Limits(3, max_prompt=2, max_completion=4), [(1, 4), (0, 3), (6, 9), (4, 6), (0, 3), (0, 3)]),
        (Limits(3, keep=Keep.END, max_prompt=2, max_completion=4), [(2, 5), (3, 6), (6, 9), (4, 6), (1, 4), (6, 9)]),
        (Limits(3, Overlong.SPLIT, max_prompt=2, max_completion=4), [(1, 5), (0, 6), (6, 9), (4, 6), (0, 4), (0, 9)]),
    ],
)
def test_what_stays(limits: Limits, expected: list[tuple[int, int]]) -> None:
    assert stretches(limits) == expected


def test_what_each_limit_takes() -> None:
    limits = Limits(3, max_prompt=2, max_completion=4)
    found = limits.stretch(np.array([9, 9], np.int32), np.array([4, NO_COMPLETION], np.int32))
    assert found.prompt_cut is not None
    assert found.completion_cut is not None
    assert (found.prompt_cut.tolist(), found.completion_cut.tolist()) == ([2, 0], [1, 0])
    assert (found.low.tolist(), found.high.tolist()) == ([2, 0], [5, 3])
    alone = Limits(3).stretch(np.array([9], np.int32), None)
    assert alone.prompt_cut is None
    assert alone.completion_cut is None


def test_a_limit_beyond_32_bits() -> None:
    found = Limits(2**24, max_completion=2**31 - 1).stretch(np.array([9], np.int32), np.array([4], np.int32))
    assert (found.low.tolist(), found.high.tolist()) == ([0], [9])


pairs = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=20)
limit = st.none() | st.integers(1, 14)


@given(pairs, st.integers(2, 20), st.sampled_from(Overlong), st.sampled_from(Keep), limit, limit)
def test_as_lists_do_it(
    rows: list[tuple[int, int]], most: int, overlong: Overlong, keep: Keep, prompt: int | None, completion: int | None
) -> None:
    lengths = np.array([sum(row) for row in rows], np.int32)
    limits = Limits(most, overlong, keep, prompt, completion)
    found = limits.stretch(lengths, np.array([row[0] for row in rows], np.int32))
    assert found.low.dtype == found.high.dtype == np.int32
    assert lengths.tolist() == [sum(row) for row in rows], "what was given is not changed"
    for (before, after), low, high in zip(rows, found.low.tolist(), found.high.tolist(), strict=True):
        tokens = list(range(before + after))
        first, second = tokens[:before], tokens[before:]
        if prompt is not None:
            first = first[-prompt:]
        if completion is not None:
            second = second[:completion]
        stays = first + second
        if overlong is Overlong.TRUNCATE:
            stays = stays[:most] if keep is Keep.START else stays[-most:]
        assert tokens[low:high] == stays


def test_where_completions_begin() -> None:
    """A document a line: its runs, and where its completion begins."""
    documents: list[tuple[list[tuple[int, RunKind]], int]] = [
        ([(4, RunKind.PROMPT), (6, RunKind.COMPLETION)], 4),
        ([(1, RunKind.SPECIAL), (4, RunKind.PROMPT), (6, RunKind.COMPLETION)], 4),
        (
            [
                (2, RunKind.PROMPT),
                (4, RunKind.HISTORY),
                (5, RunKind.HISTORY_END),
                (8, RunKind.USER),
                (9, RunKind.ASSISTANT),
            ],
            8,
        ),
        ([(3, RunKind.UNPROVED), (5, RunKind.UNPROVED_COMPLETION)], 3),
        ([(3, RunKind.PROMPT), (3, RunKind.ASSISTANT), (4, RunKind.END)], 3),
        ([(7, RunKind.PROMPT)], 7),
        ([(7, RunKind.COMPLETION)], 0),
        ([(1, RunKind.SPECIAL), (7, RunKind.TEXT)], NO_COMPLETION),
        ([(0, RunKind.TEXT)], NO_COMPLETION),
    ]
    runs = [run for each, _ in documents for run in each]
    found = completion_starts(
        np.array([kind for _, kind in runs], np.int8),
        np.array([end for end, _ in runs], np.int32),
        np.cumsum([0, *(len(each) for each, _ in documents)]),
    )
    assert found.tolist() == [begin for _, begin in documents]
    assert completion_starts(np.zeros(0, np.int8), np.zeros(0, np.int32), np.zeros(1, np.int64)).tolist() == []
