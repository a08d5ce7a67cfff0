"""Documents that begin alike: pieces give every document back, store as little as a trie, and stand in one form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.pack.shared_prefixes import SharedPrefixes, share_prefixes

from tests.support.examples import examples

Tokens = list[int]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Tokens], list[int], int]:
    """Documents over a small alphabet, many of which begin alike; their first trained tokens; and a capacity."""
    documents: list[Tokens] = []
    for _ in range(draw(st.integers(1, 12))):
        continues = bool(documents) and draw(st.integers(0, 1)) == 1
        parent = documents[draw(st.integers(0, len(documents) - 1))] if continues else []
        cut = draw(st.integers(0, len(parent)))
        own = draw(st.lists(st.sampled_from([0, 1, 258, 2**30]), min_size=not cut, max_size=6))
        documents.append(parent[:cut] + own)
    is_prompt = draw(st.booleans())  # half of the groups are trained nowhere, and share as much as they can
    trained = [len(document) if is_prompt else draw(st.integers(0, len(document))) for document in documents]
    longest = max(map(len, documents))
    return documents, trained, draw(st.integers(longest, 3 * longest))


def shared(documents: list[Tokens], trained: list[int], capacity: int) -> SharedPrefixes:
    """What the documents share."""
    return share_prefixes([np.array(document, np.int32) for document in documents], np.array(trained), capacity)


def paths(documents: list[Tokens], found: SharedPrefixes) -> list[list[tuple[int, int]]]:
    """The path of each piece, as (piece, token of its document): only what pieces store, and their parents say."""
    out: list[list[tuple[int, int]]] = []
    for number, (index, count, parent) in enumerate(
        zip(found.order.tolist(), found.shared.tolist(), found.parents.tolist(), strict=True)
    ):
        prefix = max(count - 1, 0)
        piece = [(number, place) for place in range(prefix, len(documents[index]))]
        out.append((out[number - parent][:prefix] if parent else []) + piece)
    return out


@examples(300)
@given(groups())
def test_every_path_is_its_document(group: tuple[list[Tokens], list[int], int]) -> None:
    documents, trained, capacity = group
    found = shared(documents, trained, capacity)
    order = found.order.tolist()
    assert sorted(order) == list(range(len(documents)))
    for number, path in enumerate(paths(documents, found)):
        document = documents[order[number]]
        assert [documents[order[piece]][place] for piece, place in path] == document
        count, parent = int(found.shared[number]), int(found.parents[number])
        assert (count == 0) == (parent == 0)
        assert count <= min(trained[order[number]], len(document) - 1)
        if parent:  # the parent holds the last token of the prefix itself
            assert path[count - 2][0] == number - parent


@examples(300)
@given(groups())
def test_units_fit_and_a_unit_stores_what_a_trie_does(group: tuple[list[Tokens], list[int], int]) -> None:
    documents, trained, capacity = group
    found = shared(documents, trained, capacity)
    sizes = [len(documents[index]) - max(count - 1, 0) for index, count in zip(found.order, found.shared, strict=True)]
    begins = np.flatnonzero(found.begins_unit)
    assert np.add.reduceat(sizes, begins).max() <= capacity
    # Without a limit, and with labels at the last token alone, the stored tokens are the nodes of a trie in which each
    # branch repeats a token. Documents share from two tokens on, and keep one of their own.
    untrained = [len(document) for document in documents]
    free = shared(documents, untrained, sum(untrained))
    stored = sum(
        len(documents[index]) - max(count - 1, 0) for index, count in zip(free.order, free.shared, strict=True)
    )
    trie: set[tuple[int, ...]] = set()
    expected = 0
    for index in sorted(range(len(documents)), key=lambda index: (documents[index], index)):
        document = documents[index]
        prefixes = [tuple(document[:size]) for size in range(1, len(document) + 1)]
        common = sum(prefix in trie for prefix in prefixes[:-1])
        expected += len(document) if common < 2 else len(document) - common + 1
        trie.update(prefixes)
    assert stored == expected


@pytest.mark.parametrize(
    ("documents", "trained", "pieces"),
    [
        ([[1, 2, 3], [1, 2, 3, 4], [1, 2, 5]], [3, 4, 3], [(0, 0, 0), (1, 3, 1), (2, 2, 2)]),
        ([[1, 2, 3, 4], [1, 2, 3, 9]], [2, 2], [(0, 0, 0), (1, 2, 1)]),  # never beyond the first trained token
        ([[1, 2, 3], [1, 2, 3]], [3, 3], [(0, 0, 0), (1, 2, 1)]),  # equal documents keep a token of their own
        ([[1, 2], [1, 3]], [2, 2], [(0, 0, 0), (1, 0, 0)]),  # one token is not worth it
        # Each continues the one before it, which alone holds the last token of the prefix.
        ([[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]], [9, 9, 9], [(0, 0, 0), (1, 3, 1), (2, 5, 1)]),
        ([[256, 1, 1], [1, 1, 1]], [3, 3], [(1, 0, 0), (0, 0, 0)]),  # by the numbers of tokens
    ],
)
def test_examples(documents: list[Tokens], trained: list[int], pieces: list[tuple[int, int, int]]) -> None:
    found = shared(documents, trained, 99)
    assert list(zip(found.order.tolist(), found.shared.tolist(), found.parents.tolist(), strict=True)) == pieces
