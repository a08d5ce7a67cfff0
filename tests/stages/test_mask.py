"""Which runs a policy asks for, and how many tokens of each document that makes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.schemas.rows import Kind
from packtrain.stages.mask import Mask, asked_runs, asked_tokens

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


def test_policies() -> None:
    kind = np.array([Kind.PROMPT, Kind.COMPLETION, Kind.TEXT, Kind.SPECIAL], np.int8)
    wanted = np.array([True, True, True, True])
    assert asked_runs(kind, wanted, Mask.COMPLETION).tolist() == [False, True, True, False]
    assert asked_runs(kind, wanted, Mask.ALL).tolist() == [True, True, True, True]


@pytest.mark.parametrize("policy", list(Mask))
def test_nobody_trains_what_a_person_took_out(policy: Mask) -> None:
    kind = np.array([*Kind], np.int8)
    assert not asked_runs(kind, np.zeros(len(kind), np.bool_), policy).any()


def test_every_policy_and_kind_is_known() -> None:
    """A kind that is added must be put somewhere by every policy, on purpose: count them here."""
    assert len(Kind) == 12
    assert len(Mask) == 2


def test_counts() -> None:
    #      P P C C C | T | S T T
    asked = np.array([False, True, True, False, True])
    ends = np.array([2, 5, 1, 1, 3], np.int32)
    offsets = np.array([0, 2, 3, 5], np.int64)
    count, first = asked_tokens(asked, ends, offsets)
    assert count.tolist() == [3, 1, 2]
    assert first.tolist() == [False, True, False]


def test_counts_of_a_part() -> None:
    asked = np.array([False, True, True, False, True])
    ends = np.array([2, 5, 1, 1, 3], np.int32)
    offsets = np.array([0, 2, 3, 5], np.int64)
    low, high = np.array([2, 0, 1], np.int32), np.array([4, 0, 3], np.int32)
    count, first = asked_tokens(asked, ends, offsets, low, high)
    assert count.tolist() == [2, 0, 2]
    assert first.tolist() == [True, False, True]  # nothing is first in an empty part


def test_no_document() -> None:
    nothing = np.zeros(0, np.int32)
    count, first = asked_tokens(np.zeros(0, np.bool_), nothing, np.zeros(1, np.int64), nothing, nothing)
    assert count.tolist() == first.tolist() == []


@given(documents)
def test_equals_one_flag_a_token(given_documents: Documents) -> None:
    count, first = asked_tokens(*arrays(given_documents))
    tokens = [spelled(document) for document in given_documents]
    assert count.tolist() == [sum(flags) for flags in tokens]
    assert first.tolist() == [flags[:1] == [True] for flags in tokens]


@given(documents, st.data())
def test_parts_equal_one_flag_a_token(given_documents: Documents, data: st.DataObject) -> None:
    tokens = [spelled(document) for document in given_documents]
    bounds = [sorted(data.draw(st.tuples(st.integers(0, len(flags)), st.integers(0, len(flags))))) for flags in tokens]
    low, high = np.array(bounds, np.int32).T
    count, first = asked_tokens(*arrays(given_documents), low, high)
    parts = [flags[a:b] for flags, (a, b) in zip(tokens, bounds, strict=True)]
    assert count.tolist() == [sum(flags) for flags in parts]
    assert first.tolist() == [flags[:1] == [True] for flags in parts]


@given(documents)
def test_the_whole_is_a_part(given_documents: Documents) -> None:
    flags, ends, offsets = arrays(given_documents)
    lengths = ends[offsets[1:] - 1]
    whole = asked_tokens(flags, ends, offsets)
    part = asked_tokens(flags, ends, offsets, np.zeros_like(lengths), lengths)
    assert np.array_equal(whole, part)
