"""Which blocks of the inputs a stream packs together: windows, known from the scan alone.

An epoch's blocks are put in an order chosen by the seed and cut into windows of at most so many source bytes. No
block has to be encoded to know which window it stands in, so any window can be reached at once.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .sources import InputFile
from .windows import mix64, window_seed

BLOCK_ORDER = 2**63
"""Seeds the order of an epoch's blocks, where the number of a window seeds the order of its rows."""


class Blocks:
    """All blocks of all inputs, numbered in the order of sources, files and places: what `packtrain run` encodes.

    Args:
        files: as scanned.
        window_bytes: source bytes of a window, at most; a larger block is a window of its own.
        seed: of the order.
    """

    def __init__(self, files: Sequence[InputFile], window_bytes: int, seed: int) -> None:
        self.files = tuple(files)
        self.window_bytes = window_bytes
        self.seed = seed
        self._file = np.repeat(np.arange(len(files)), [len(file.blocks) for file in files])
        first = np.cumsum([0, *(len(file.blocks) for file in files)])
        self._index = np.arange(len(self._file)) - first[self._file]
        self.sizes: NDArray[np.int64] = np.array(
            [block.end - block.start for file in files for block in file.blocks], dtype=np.int64
        )
        """(blocks,) bytes."""
        names = {name: number for number, name in enumerate(dict.fromkeys(file.source for file in files))}
        self._sources = np.array([names[file.source] for file in files])[self._file]
        self._windows = lru_cache(maxsize=2)(self._cut)

    def __len__(self) -> int:
        return len(self.sizes)

    def windows(self, epoch: int) -> list[NDArray[np.int64]]:
        """The windows of an epoch in their order; each holds its blocks' numbers, ascending.

        Blocks are permuted within their source, and the sources interleaved evenly, so that every window holds
        each of them by its share.
        """
        return self._windows(epoch)

    def _cut(self, epoch: int) -> list[NDArray[np.int64]]:
        keys = mix64(np.arange(len(self), dtype=np.uint64), window_seed(window_seed(self.seed, epoch), BLOCK_ORDER))
        share = np.zeros(len(self))
        for source in np.unique(self._sources):
            mine = np.flatnonzero(self._sources == source)
            mine = mine[np.argsort(keys[mine], kind="stable")]
            share[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
        order = np.lexsort((self._sources, share))
        cuts, size = [0], 0
        for place, more in enumerate(self.sizes[order].tolist()):
            if size and size + more > self.window_bytes:
                cuts.append(place)
                size = 0
            size += more
        return [np.sort(part) for part in np.split(order.astype(np.int64), cuts[1:])]

    @property
    def not_taken(self) -> dict[str, int]:
        """Rows beyond `max_rows` by source, which stand in no block."""
        out = Counter[str]()
        for file in self.files:
            out[file.source] += file.not_taken
        return dict(out)

    def select(self, numbers: NDArray[np.int64]) -> list[InputFile]:
        """The files that hold these blocks, each with these blocks alone. `numbers` ascend."""
        out = []
        for index in np.unique(self._file[numbers]).tolist():
            file = self.files[index]
            mine = self._index[numbers[self._file[numbers] == index]]
            blocks = tuple(file.blocks[block] for block in mine.tolist())
            out.append(replace(file, blocks=blocks, not_taken=0))  # rows of no block are counted once an epoch
        return out
