"""Which runs a policy selects, and how many tokens of each document that gives."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.schemas.rows import RunKind
from packtrain.stages.mask.policy import (
    Mask,
    Policy,
    Thoughts,
    supervised_runs,
    supervised_tokens,
    supervised_turns,
    unlocated_documents,
)

Documents = list[list[tuple[int, bool]]]
"""Each document's runs, each (tokens, asked)."""

documents = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=5), min_size=1, max_size=8
)


def arrays(given_documents: Documents) -> tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.int64]]:
    """(runs,) flags, (runs,) ends in tokens of the document, (N + 1,) offsets."""
    flags = [flag for document in given_documents for _, flag in document]
    ends = [end for document in given_documents for end in np.cumsum([size for size, _ in document])]
    offsets = np.cumsum([0, *map(len, given_documents)])
    return np.array(flags, np.bool_), np.array(ends, np.int32), offsets.astype(np.int64)


def spelled(document: list[tuple[int, bool]]) -> list[bool]:
    """One flag a token."""
    return [flag for size, flag in document for _ in range(size)]


P, C, T, S = RunKind.PROMPT, RunKind.COMPLETION, RunKind.TEXT, RunKind.SPECIAL
H, HE, A, E = RunKind.HISTORY, RunKind.HISTORY_END, RunKind.ASSISTANT, RunKind.END
U, UP, UC = RunKind.USER, RunKind.UNPROVED, RunKind.UNPROVED_COMPLETION

# A conversation of two turns, one with more after its end; one not proved; a text; a pair of texts; a pair of tokens.
RUNS: list[list[tuple[RunKind, int]]] = [
    [(P, 0), (H, 1), (HE, 1), (U, 2), (A, 3), (E, 3), (A, 3), (C, 3)],
    [(UP, 0), (UC, 1)],
    [(S, -1), (T, -1)],
    [(P, -1), (C, -1)],
    [(P, 0), (H, 2), (HE, 2), (U, 3)],
    [(P, 0), (A, 1), (C, 2), (A, 3), (E, 3)],
]
EVERYTHING = [[1] * len(document) for document in RUNS]


def asked_of(mask: Mask) -> list[list[int]]:
    """Which of the runs above a mask selects."""
    kind = np.array([kind for document in RUNS for kind, _ in document], np.int8)
    turn = np.array([turn for document in RUNS for _, turn in document], np.int16)
    offsets = np.cumsum([0, *map(len, RUNS)])
    asked = supervised_runs(kind, turn, np.ones(len(kind), np.bool_), offsets, mask).astype(int)
    return [asked[low:high].tolist() for low, high in pairwise(offsets)]


@pytest.mark.parametrize(
    ("mask", "wanted"),
    [
        (
            Mask(Policy.COMPLETION),
            [[0, 0, 0, 0, 1, 1, 1, 1], [0, 1], [0, 1], [0, 1], [0, 0, 0, 0], [0, 1, 1, 1, 1]],
        ),
        (
            Mask(Policy.COMPLETION, train_end=False),
            [[0, 0, 0, 0, 1, 0, 1, 1], [0, 1], [0, 1], [0, 1], [0, 0, 0, 0], [0, 1, 1, 1, 0]],
        ),
        (
            Mask(Policy.ASSISTANT),
            [[0, 1, 1, 0, 1, 1, 1, 0], [0, 0], [0, 1], [0, 1], [0, 1, 1, 0], [0, 1, 0, 1, 1]],
        ),
        (
            Mask(Policy.ASSISTANT, train_end=False),
            [[0, 1, 0, 0, 1, 0, 1, 0], [0, 0], [0, 1], [0, 1], [0, 1, 0, 0], [0, 1, 0, 1, 0]],
        ),
        (
            Mask(Policy.LAST_ASSISTANT),
            [[0, 0, 0, 0, 1, 1, 1, 0], [0, 0], [0, 1], [0, 1], [0, 1, 1, 0], [0, 0, 0, 1, 1]],
        ),
        (Mask(Policy.ALL), EVERYTHING),
        (Mask(Policy.ALL, train_end=False), EVERYTHING),
    ],
)
def test_policies(mask: Mask, wanted: list[list[int]]) -> None:
    assert asked_of(mask) == wanted


def test_which_masks_need_turns() -> None:
    need = [mask for policy in Policy for end in (True, False) if (mask := Mask(policy, end)).needs_turns]
    assert need == [
        Mask(Policy.COMPLETION, train_end=False),
        *(Mask(policy, end) for policy in (Policy.ASSISTANT, Policy.LAST_ASSISTANT) for end in (True, False)),
    ]


def test_documents_that_are_not_proved() -> None:
    kind = np.array([kind for document in RUNS for kind, _ in document], np.int8)
    offsets = np.cumsum([0, *map(len, RUNS)])
    assert unlocated_documents(kind, offsets).tolist() == [False, True, False, False, False, False]
    assert unlocated_documents(kind[:0], offsets[:1]).tolist() == []


@pytest.mark.parametrize(
    ("policy", "turns", "endless"),
    [
        (Policy.COMPLETION, [1, 0, 0, 0, 0, 2], [0, 0, 0, 0, 0, 1]),
        (Policy.ASSISTANT, [2, 0, 0, 0, 1, 2], [0, 0, 0, 0, 0, 1]),
        (Policy.LAST_ASSISTANT, [1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("train_end", [True, False])
def test_turns_are_counted(policy: Policy, turns: list[int], endless: list[int], train_end: bool) -> None:
    kind = np.array([kind for document in RUNS for kind, _ in document], np.int8)
    turn = np.array([turn for document in RUNS for _, turn in document], np.int16)
    offsets = np.cumsum([0, *map(len, RUNS)])
    asked = supervised_runs(kind, turn, np.ones(len(kind), np.bool_), offsets, Mask(policy, train_end))
    counted = supervised_turns(kind, turn, asked, offsets)
    assert [one.tolist() for one in counted] == [turns, endless]


def test_nothing_has_no_turns() -> None:
    nothing = np.zeros(0, np.int8)
    counted = supervised_turns(nothing, nothing.astype(np.int16), nothing.astype(np.bool_), np.zeros(1, np.int64))
    assert [one.tolist() for one in counted] == [[], []]


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("train_end", [True, False])
def test_nobody_trains_what_a_person_took_out(policy: Policy, train_end: bool) -> None:
    kind = np.array([*RunKind], np.int8)
    turn, offsets = np.zeros(len(kind), np.int16), np.array([0, len(kind)])
    nothing = np.zeros(len(kind), np.bool_)
    assert not supervised_runs(kind, turn, nothing, offsets, Mask(policy, train_end)).any()


def test_every_policy_and_kind_is_known() -> None:
    """A kind that is added must be put somewhere by every policy, on purpose: count them here."""
    assert len(RunKind) == 20
    assert len(Policy) == 4


TH, HT, TC, HC = RunKind.THOUGHT, RunKind.HISTORY_THOUGHT, RunKind.TOOL_CALL, RunKind.HISTORY_CALL


@pytest.mark.parametrize(
    ("policy", "thoughts", "tool_calls", "wanted"),
    [
        #                                     P HT H HC HE U TH A TC E
        ("assistant", "train", True, [0, 1, 1, 1, 1, 0, 1, 1, 1, 1]),
        ("assistant", "mask", True, [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]),
        ("assistant", "last", True, [0, 0, 1, 1, 1, 0, 1, 1, 1, 1]),
        ("assistant", "train", False, [0, 1, 1, 0, 1, 0, 1, 1, 0, 1]),
        ("last_assistant", "mask", False, [0, 0, 0, 0, 0, 0, 0, 1, 0, 1]),
        ("last_assistant", "last", True, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]),
        ("completion", "last", True, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]),
        ("completion", "mask", False, [0, 0, 0, 0, 0, 0, 0, 1, 0, 1]),
        ("all", "mask", False, [1, 0, 1, 0, 1, 1, 0, 1, 0, 1]),
        ("all", "last", True, [1, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_thoughts_and_calls(policy: str, thoughts: str, tool_calls: bool, wanted: list[int]) -> None:
    runs = [(P, 0), (HT, 1), (H, 1), (HC, 1), (HE, 1), (U, 2), (TH, 3), (A, 3), (TC, 3), (E, 3)]
    kind, turn = np.array([one for one, _ in runs], np.int8), np.array([one for _, one in runs], np.int16)
    mask = Mask(Policy(policy), True, Thoughts(thoughts), tool_calls)
    everything = np.ones(len(runs), np.bool_)
    # The same document twice: the last turn is that of each one.
    offsets = np.array([0, len(runs), 2 * len(runs)])
    got = supervised_runs(np.tile(kind, 2), np.tile(turn, 2), np.tile(everything, 2), offsets, mask)
    assert got.astype(int).tolist() == wanted * 2
    assert mask.needs_parts == (thoughts != "train" or not tool_calls)
    assert mask.needs_turns or not mask.needs_parts


def test_counts() -> None:
    #      P P C C C | T | S T T
    asked = np.array([False, True, True, False, True])
    ends = np.array([2, 5, 1, 1, 3], np.int32)
    offsets = np.array([0, 2, 3, 5], np.int64)
    count, first = supervised_tokens(asked, ends, offsets)
    assert count.tolist() == [3, 1, 2]
    assert first.tolist() == [False, True, False]


def test_counts_of_a_part() -> None:
    asked = np.array([False, True, True, False, True])
    ends = np.array([2, 5, 1, 1, 3], np.int32)
    offsets = np.array([0, 2, 3, 5], np.int64)
    low, high = np.array([2, 0, 1], np.int32), np.array([4, 0, 3], np.int32)
    count, first = supervised_tokens(asked, ends, offsets, low, high)
    assert count.tolist() == [2, 0, 2]
    assert first.tolist() == [True, False, True]  # nothing is first in an empty part


def test_no_document() -> None:
    nothing = np.zeros(0, np.int32)
    count, first = supervised_tokens(np.zeros(0, np.bool_), nothing, np.zeros(1, np.int64), nothing, nothing)
    assert count.tolist() == first.tolist() == []


@given(documents)
def test_equals_one_flag_a_token(given_documents: Documents) -> None:
    count, first = supervised_tokens(*arrays(given_documents))
    tokens = [spelled(document) for document in given_documents]
    assert count.tolist() == [sum(flags) for flags in tokens]
    assert first.tolist() == [flags[:1] == [True] for flags in tokens]


@given(documents, st.data())
def test_parts_equal_one_flag_a_token(given_documents: Documents, data: st.DataObject) -> None:
    tokens = [spelled(document) for document in given_documents]
    bounds = [sorted(data.draw(st.tuples(st.integers(0, len(flags)), st.integers(0, len(flags))))) for flags in tokens]
    low, high = np.array(bounds, np.int32).T
    count, first = supervised_tokens(*arrays(given_documents), low, high)
    parts = [flags[a:b] for flags, (a, b) in zip(tokens, bounds, strict=True)]
    assert count.tolist() == [sum(flags) for flags in parts]
    assert first.tolist() == [flags[:1] == [True] for flags in parts]


@given(documents)
def test_the_whole_is_a_part(given_documents: Documents) -> None:
    flags, ends, offsets = arrays(given_documents)
    lengths = ends[offsets[1:] - 1]
    whole = supervised_tokens(flags, ends, offsets)
    part = supervised_tokens(flags, ends, offsets, np.zeros_like(lengths), lengths)
    assert np.array_equal(whole, part)


NS, HNS = RunKind.STOP_IN_NEXT_HEADER, RunKind.HISTORY_STOP_IN_NEXT_HEADER
# hi | answer | <|user|> | header and question | answer | <|user|> | header: the turns of messages 1 and 3.
BORROWED = [(P, 0), (H, 1), (HNS, 1), (U, 2), (A, 3), (NS, 3), (C, 4)]


@pytest.mark.parametrize(
    ("mask", "flags", "wanted"),
    [
        (Mask(Policy.ASSISTANT), "1111111", "0100100"),
        (Mask(Policy.ASSISTANT, next_stops=True), "1111111", "0110110"),
        (Mask(Policy.ASSISTANT, train_end=False, next_stops=True), "1111111", "0100100"),
        (Mask(Policy.ASSISTANT, next_stops=True), "1110111", "0110110"),  # the question says `train: false`
        (Mask(Policy.ASSISTANT, next_stops=True), "1001111", "0000110"),  # the answer says it
        (Mask(Policy.LAST_ASSISTANT), "1111111", "0000100"),
        (Mask(Policy.LAST_ASSISTANT, next_stops=True), "1111111", "0000110"),
        (Mask(Policy.COMPLETION), "1111111", "0000111"),
        (Mask(Policy.COMPLETION), "1111110", "0000100"),  # a header counts with the message that it begins
        (Mask(Policy.COMPLETION, next_stops=True), "1111110", "0000110"),
        (Mask(Policy.ALL), "1111111", "1111111"),
        (Mask(Policy.ALL), "1110111", "1100111"),
        (Mask(Policy.ALL, next_stops=True), "1110111", "1100111"),
    ],
)
def test_stops_in_the_next_header(mask: Mask, flags: str, wanted: str) -> None:
    kind = np.array([kind for kind, _ in BORROWED], np.int8)
    turn = np.array([turn for _, turn in BORROWED], np.int16)
    train = np.array([flag == "1" for flag in flags])
    offsets = np.array([0, len(BORROWED)])
    asked = supervised_runs(kind, turn, train, offsets, mask)
    assert "".join(str(int(one)) for one in asked) == wanted
    turns, endless = supervised_turns(kind, turn, asked, offsets, next_stops=mask.next_stops)
    trained = wanted[1] + wanted[4]
    assert turns[0] == trained.count("1")
    if mask.next_stops and mask.train_end and mask.policy is not Policy.ALL:
        assert endless[0] == 0
