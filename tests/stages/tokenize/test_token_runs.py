"""Runs over characters become runs over tokens."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.rows import RunKind
from packtrain.stages.template.rendered import Runs
from packtrain.stages.tokenize.token_runs import TextRuns
from packtrain.stages.tokenize.token_spans import Boundaries

P, C, U = RunKind.PROMPT, RunKind.COMPLETION, RunKind.USER
H, HE, A, E = RunKind.HISTORY, RunKind.HISTORY_END, RunKind.ASSISTANT, RunKind.END
SAID = (H, HE, A, E)
T, TC = RunKind.THOUGHT, RunKind.TOOL_CALL


def located(ends: list[int], tokens: list[int]) -> tuple[list[int], list[bool]]:
    """By eye: of each place, the first token that ends behind it, and whether that begins before it."""
    bounds = np.cumsum([0, *tokens])
    first = [int(np.searchsorted(bounds[1:], end, side="right")) for end in ends]
    return first, [bool(index < len(tokens) and bounds[index] < end) for index, end in zip(first, ends, strict=True)]


def runs_of(documents: list[tuple[list[tuple[int, RunKind]], list[int]]], prefix: list[int]) -> tuple[Any, list[int]]:
    """The token runs of documents given as (run length in characters, kind) and token lengths in characters."""
    given: list[Runs] = []
    found: list[int] = []
    crossing: list[bool] = []
    for runs, tokens in documents:
        ends = np.cumsum([size for size, _ in runs]).tolist()
        kinds = tuple(int(kind) for _, kind in runs)
        given.append(Runs(tuple(ends), kinds, tuple(range(len(runs))), (True,) * len(runs)))
        inner = sorted({end for end in ends if 0 < end < ends[-1]})
        first, straddles = located(inner, tokens)
        found += first
        crossing += straddles
    batch = TextRuns.of(given)
    bounds, offsets = batch.bounds()
    assert len(bounds) == offsets[-1] == len(found)
    lengths = np.array([len(tokens) for _, tokens in documents], np.int64) + prefix
    where = Boundaries(np.array(found, np.int64), np.array(crossing, np.bool_), np.ones(len(documents), np.bool_))
    lists, straddles_per = batch.tokens(where, lengths, np.array(prefix, np.int64))
    return [[(run["end"], RunKind(run["kind"])) for run in row] for row in lists.to_pylist()], straddles_per.tolist()


@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from([P, C, U, *SAID])), min_size=1, max_size=6),
    st.lists(st.integers(1, 4), max_size=24),
)
def test_a_token_is_what_overlaps_it(runs: list[tuple[int, RunKind]], tokens: list[int]) -> None:
    """What is said if it overlaps any of that; else the last that it overlaps."""
    total = sum(size for size, _ in runs)
    cut: list[int] = []
    for size in tokens:
        if sum(cut) < total:
            cut.append(min(size, total - sum(cut)))
    if sum(cut) < total:
        cut.append(total - sum(cut))
    ((row,), _) = runs_of([(runs, cut)], [0])
    spelled = [kind for size, kind in runs for _ in range(size)]
    begin, got = 0, []
    for end, kind in row:
        got += [kind] * (end - begin)
        begin = end
    assert len(got) == len(cut)
    place = 0
    for kind, size in zip(got, cut, strict=True):
        overlapped = spelled[place : place + size]
        assert kind in overlapped
        assert (kind in SAID) == any(one in SAID for one in overlapped)
        place += size


def test_a_token_of_two_parts_of_a_turn_belongs_to_the_later_one() -> None:
    """And it is not counted: only what is trained by every mask and what is not can be cut apart by a token."""
    runs = Runs((2, 5, 8, 9), (P, T, A, E), (0, 1, 1, 1), (True,) * 4)
    #  characters PP TTT AAA E; tokens PP TT TA AA E
    batch = TextRuns.of([runs])
    where = Boundaries(np.array([1, 2, 4]), np.array([False, True, False]), np.array([True]))
    lists, straddles = batch.tokens(where, np.array([5]), np.array([0]))
    assert [(run["end"], RunKind(run["kind"])) for run in lists.to_pylist()[0]] == [(1, P), (2, T), (4, A), (5, E)]
    assert (straddles.tolist(), batch.divisions) == ([0], 1)
    # The same between an answer and a call; but a call that begins another turn is counted, as is another flag.
    for turns, trains, counted in (
        ((0, 1, 1, 1), (True,) * 4, 0),
        ((0, 1, 2, 2), (True,) * 4, 1),
        ((0, 1, 1, 1), (True, True, False, True), 1),
    ):
        batch = TextRuns.of([Runs((2, 5, 8, 9), (P, A, TC, E), turns, trains)])
        lists, straddles = batch.tokens(where, np.array([5]), np.array([0]))
        assert [run["end"] for run in lists.to_pylist()[0]] == [1, 2, 4, 5]
        assert (straddles.tolist(), batch.divisions) == ([counted], 1 - counted)
