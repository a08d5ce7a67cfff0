"""Arrays that batches are made in, used again when nobody holds them any more.

The allocator gives large arrays back to the system, so a fresh one costs a page fault for every four KiB: batches of
32 rows of 4,096 tokens were made at a fifth of the speed without this.
"""

import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

_KEPT = 64
"""Idle arrays kept, at most."""


class Buffers:
    """Hands out int64 arrays. Threads may share it.

    An array comes back by itself: when the last tensor, view or person that holds it lets it go. Nothing is ever
    overwritten that somebody could still look at.
    """

    def __init__(self) -> None:
        # Last in, first out: the array that was let go last is still in the processor's cache.
        self._idle: deque[NDArray[np.int64]] = deque(maxlen=_KEPT)
        self._lent: dict[int, weakref.ref[NDArray[np.int64]]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {}  # another process has memory of its own

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__()  # type: ignore[misc]

    def take(self, size: int) -> NDArray[np.int64]:
        """(1, size) with anything in it. Hand this very array on: a view of it would not keep it."""
        try:
            whole = self._idle.pop()
        except IndexError:
            whole = np.empty(size, dtype=np.int64)
        if len(whole) < size:
            whole = np.empty(size + size // 8, dtype=np.int64)
        lent = whole[None, :size]
        idle, table = self._idle, self._lent

        def back(reference: "weakref.ref[NDArray[np.int64]]") -> None:
            del table[id(reference)]
            idle.append(whole)

        # Every view of `lent` has `whole` as its base, not `lent` itself; torch.from_numpy holds what it is given.
        # A bare reference, because weakref.finalize costs as much as a third of a small batch.
        reference = weakref.ref(lent, back)
        table[id(reference)] = reference
        return lent
