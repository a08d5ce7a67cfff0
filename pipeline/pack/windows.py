"""Windows: the documents that are planned together.

A window holds whole blocks: parts, or files of a part that several small files share.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...schemas.fingerprint import GOLDEN, mix

WINDOW_TOKENS = 4_000_000_000
"""Default tokens of a window. Most datasets fit into one window; its plan takes about 500 MB."""


def compose(totals: NDArray[np.int64], sources: Sequence[int], limit: int, seed: int) -> list[NDArray[np.int64]]:
    """Group the blocks of one split into windows: the blocks of each window, ascending.

    With several windows, blocks are assigned in an order chosen by the seed, interleaving the sources, so that every
    window has blocks of every source.

    Args:
        totals: (blocks,) packed tokens of each block.
        sources: (blocks,) source of each block.
        limit: maximum tokens of a window; a block with more tokens becomes a separate window.
    """
    if int(totals.sum()) <= limit:
        return [np.arange(len(totals))]  # one window even without blocks, because an empty split still has one shard
    owners = np.array(sources)
    keys = mix64(np.arange(len(totals), dtype=np.uint64), seed)
    # The relative position of a block in its source; sorting by it interleaves sources of any sizes evenly.
    share = np.zeros(len(totals))
    for source in np.unique(owners):
        mine = np.flatnonzero(owners == source)
        mine = mine[np.argsort(keys[mine], kind="stable")]
        share[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
    windows: list[NDArray[np.int64]] = []
    window: list[int] = []
    size = 0
    for block in np.lexsort((owners, share)).tolist():
        if window and size + int(totals[block]) > limit:
            windows.append(_rising(window))
            window, size = [], 0
        window.append(block)
        size += int(totals[block])
    if window and size:
        windows.append(_rising(window))
    return windows


def _rising(blocks: list[int]) -> NDArray[np.int64]:
    return np.array(sorted(blocks), dtype=np.int64)


def mix64(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return SplitMix64 of each value under a seed: (N,) 64-bit numbers that look independent."""
    with np.errstate(over="ignore"):
        return mix((values + np.uint64(1)) * GOLDEN + np.uint64(seed % 2**64))


def window_seed(seed: int, number: int) -> int:
    """Return the seed of one window's order. Seed and number are mixed, not added, because SplitMix64 seeds must not
    differ by its step.
    """
    return int(mix64(np.array([number], dtype=np.uint64), seed)[0])
