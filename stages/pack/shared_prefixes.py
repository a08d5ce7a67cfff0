"""Which documents of a group begin with the same tokens, so that a row can store and compute these once.

1. Sort the documents by their tokens. Each then shares most with the one before it: a sorted list is a trie.
2. A document shares the first k tokens of the one before it if they are equal, and at least `FEWEST_SHARED`. These k
   tokens end before the document's first trained token, so that each label belongs to one document; and at least one
   token of the document comes after them.
3. Its piece begins with the last shared token, which predicts the first token of its own: so the piece has
   `length - (k - 1)` tokens, and k - 1 tokens of other pieces come before them.
4. Its parent is the piece that holds the last of these k - 1 tokens, not an ancestor of it: one form for each content.
5. Documents that share are a unit, which stands in one row. A document that would make the unit longer than a row
   begins another one, with all its tokens.

With the documents `a b c`, `a b c d` and `a b e` (no token trained before the last), in this order:

    document     shares k    piece      tokens before it    parent
    a b c        0           a b c
    a b c d      3           c d        a b                 the piece before
    a b e        2           b e        a                   two pieces before

Stored are `sum(length - k + 1)` tokens, as by any other trie, plus the one repeated token of each branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST_SHARED = 2
"""A single common token would be repeated anyway, so nothing is gained by sharing it."""


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """The pieces of K documents, one each, in the order of a row: units one after another, parents before children."""

    order: NDArray[np.int64]
    """(K,) the document of each piece."""
    shared: NDArray[np.int64]
    """(K,) how many of the document's first tokens it shares (k); 0 for the first piece of a unit."""
    parents: NDArray[np.int64]
    """(K,) how many pieces before it its parent stands; 0 for the first piece of a unit."""

    @property
    def begins_unit(self) -> NDArray[np.bool_]:
        """(K,) whether the piece is the first one of its unit."""
        out: NDArray[np.bool_] = self.parents == 0
        return out

    @property
    def shares_tokens(self) -> NDArray[np.bool_]:
        """(K,) whether the piece shares tokens with another: its unit has several pieces."""
        is_branch = self.parents > 0
        out: NDArray[np.bool_] = is_branch | np.append(is_branch[1:], False)
        return out


def share_prefixes(
    documents: Sequence[NDArray[np.int32]], first_trained: NDArray[np.integer], capacity: int, align: int = 1
) -> SharedPrefixes:
    """Find what the documents of a group share. Takes O(tokens · log K); a process sorts some 10 M tokens a second.

    Args:
        documents: the tokens of K documents, each with 1 to `capacity` of them.
        first_trained: (K,) the first trained token of each; at least its length if there is none.
        capacity: most tokens that a unit may store.
        align: every piece takes a multiple of this; divides `capacity`.
    """
    # Big-endian bytes of tokens, which are never negative, sort as the tokens do. `sorted` is stable, so that equal
    # documents keep their order.
    order = sorted(range(len(documents)), key=lambda index: documents[index].astype(">i4").tobytes())
    shared = np.zeros(len(order), np.int64)
    parents = np.zeros(len(order), np.int64)
    # The path of the piece before: (piece, how many of the path's tokens are in it or before it), from the root on.
    path: list[tuple[int, int]] = []
    stored = 0  # tokens of the unit so far, with padding
    for number, index in enumerate(order):
        document = documents[index]
        # Shared tokens end before the first trained one, and leave the document at least one token of its own.
        limit = min(int(first_trained[index]), len(document) - 1)
        common = 0
        if number:
            common = _count_common(document[:limit], documents[order[number - 1]])
        branch_length = _padded(len(document) - common + 1, align)  # with the repeated token
        if common < FEWEST_SHARED or stored + branch_length > capacity:  # the document begins a unit
            path = [(number, len(document))]
            stored = _padded(len(document), align)
            continue
        prefix = common - 1
        # Leave out pieces of which this document continues nothing: those before them hold all of its prefix. With
        # `a b c`, `a b c d` and `a b e`, the path of the second piece is (0, 2) (1, 4). The third document continues 1
        # token, which piece 0 holds, so piece 1 goes, and the path becomes (0, 1) (2, 3).
        while len(path) > 1 and path[-2][1] >= prefix:
            path.pop()
        parent = path[-1][0]
        path[-1] = (parent, prefix)  # what the parent holds behind the prefix is not on the new path
        path.append((number, len(document)))
        shared[number] = common
        parents[number] = number - parent
        stored += branch_length
    return SharedPrefixes(np.array(order, np.int64), shared, parents)


def _padded(length: int, align: int) -> int:
    """The tokens that a piece takes in its row."""
    return -(-length // align) * align


def _count_common(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """How many first tokens are equal."""
    size = min(len(left), len(right))
    different = left[:size] != right[:size]
    return int(different.argmax()) if different.any() else size
