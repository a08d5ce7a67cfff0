"""Reuses the arrays of batches once nothing refers to them.

The allocator returns large arrays to the system, so each new array causes a page fault for every 4 KiB. Without reuse,
batches of 32 rows of 4,096 tokens took five times as long.
"""

import weakref
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray

_KEPT = 32
"""Maximum number of idle arrays to keep."""


class Buffers:
    """A pool of int64 arrays. Thread-safe.

    An array returns to the pool when the last tensor or view of it is gone, so an array in use is never overwritten.
    """

    def __init__(self) -> None:
        # Last in, first out: the latest array is still in the processor's cache.
        self._idle: deque[NDArray[np.int64]] = deque(maxlen=_KEPT)
        self._lent: dict[int, weakref.ref[NDArray[np.int64]]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {}  # another process has its own memory

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__()  # type: ignore[misc]

    def take(self, size: int) -> NDArray[np.int64]:
        """Return an uninitialised (1, size) array. Any view keeps it, so several batches can share one array."""
        try:
            whole = self._idle.pop()
        except IndexError:
            whole = np.empty(max(size, 1), dtype=np.int64)
        if len(whole) < size:
            whole = np.empty(size + size // 8, dtype=np.int64)
        # A view of an array has the array's owner as its base, which outlives all views. The base of this one is a
        # buffer, so its own views have it as their base.
        lent: NDArray[np.int64] = np.frombuffer(whole.data, np.int64, size)
        idle, table = self._idle, self._lent

        def back(reference: "weakref.ref[NDArray[np.int64]]") -> None:
            del table[id(reference)]
            idle.append(whole)

        # A plain weak reference is used, because weakref.finalize takes as long as a third of a small batch.
        reference = weakref.ref(lent, back)
        table[id(reference)] = reference
        return lent[None]

    def tensor(self, size: int) -> torch.Tensor:
        """Return `take(size)` as a tensor."""
        return torch.from_numpy(self.take(size))
