"""Runs laid end to end answer as the flags of single tokens do."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.rows import ASSISTANT_KINDS, RunKind
from packtrain.stages.mask.run_index import RunIndex

Run = tuple[int, RunKind, int, bool]
"""(tokens, kind, turn, asked)."""


def index_of(documents: list[list[Run]]) -> RunIndex:
    runs = [run for document in documents for run in document]
    return RunIndex.of(
        np.array([sum(run[0] for run in document) for document in documents], np.int64),
        np.array([len(document) for document in documents], np.int64),
        np.concatenate([np.cumsum([run[0] for run in document]) for document in documents]).astype(np.int32),
        np.array([run[1] for run in runs], np.int8),
        np.array([run[2] for run in runs], np.int16),
        np.array([run[3] for run in runs], np.bool_),
    )


CHAT: list[Run] = [
    (3, RunKind.PROMPT, 0, False),
    (4, RunKind.HISTORY, 1, True),
    (1, RunKind.HISTORY_END, 1, True),
    (5, RunKind.USER, 2, False),
    (2, RunKind.HISTORY, 3, True),
    (3, RunKind.PROMPT, 4, False),  # a tool's result
    (2, RunKind.ASSISTANT, 5, True),
    (1, RunKind.END, 5, True),
    (1, RunKind.COMPLETION, 5, True),
]
TEXT: list[Run] = [(1, RunKind.SPECIAL, 0, False), (6, RunKind.TEXT, 0, True)]


def test_a_chat_and_a_text() -> None:
    index = index_of([CHAT, TEXT])
    assert index.bases.tolist() == [0, 22, 29]
    users, turns = index.turn_places()
    assert users.tolist() == [8]
    assert turns.tolist() == [8, 15, 21]
    places = np.arange(1, 29)
    through = [p for p, t in zip(places.tolist(), index.through_turn(places), strict=True) if t]
    assert [p for p in through if p != 22] == [4, 5, 6, 7, 14, 19, 20], "within turns 1, 3 and 5; in no text"


@st.composite
def some_documents(draw: st.DrawFn) -> list[list[Run]]:
    run = st.tuples(st.integers(0, 4), st.sampled_from(RunKind), st.integers(0, 2), st.booleans())
    return draw(st.lists(st.lists(run, min_size=1, max_size=5), min_size=1, max_size=4))


@given(some_documents())
def test_as_single_tokens_do(documents: list[list[Run]]) -> None:
    index = index_of(documents)
    tokens = [run for document in documents for run in document for _ in range(run[0])]
    places = np.arange(len(tokens) + 1)
    flags = [run[3] for run in tokens]
    assert index.supervised_before(places).tolist() == [sum(flags[:place]) for place in range(len(tokens) + 1)]
    assert index.supervised_at(places[:-1]).tolist() == flags
    inner = places[1:-1]
    said = set(ASSISTANT_KINDS)

    def through(one: Run, other: Run) -> bool:
        like = one[1] == other[1] or {one[1], other[1]} <= said
        return like and one[2] == other[2] and one[3] and other[3] and other[1] != RunKind.TEXT

    assert index.through_turn(inner).tolist() == [through(tokens[p - 1], tokens[p]) for p in inner.tolist()]
    for places_of_kind in index.turn_places():
        assert (np.diff(places_of_kind) > 0).all()
        assert not np.isin(places_of_kind, index.bases).any()
