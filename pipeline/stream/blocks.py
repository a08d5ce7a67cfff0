"""Divides the inputs' blocks into windows, from the scan alone.

Each epoch orders the blocks by the seed and cuts them into windows of at most a given number of source bytes. A block's
window is known without encoding any block, so a stream can start at any window.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of
from ..inputs.blocks import InputFile
from ..pack.windows import compose, window_seed

BLOCK_ORDER = 2**63
"""Number that seeds an epoch's order of blocks. It differs from all window numbers, which seed the order of rows."""


class Blocks:
    """All blocks of all inputs, numbered in the order in which `packtrain run` encodes them.

    Args:
        files: the scanned inputs.
        window_bytes: maximum source bytes of a window; a larger block becomes a separate window.
        seed: the seed of the order.
    """

    def __init__(self, files: Sequence[InputFile], window_bytes: int, seed: int) -> None:
        self.files = tuple(files)
        self.window_bytes = window_bytes
        self.seed = seed
        self._file = np.repeat(np.arange(len(files)), [len(file.blocks) for file in files])
        first = offsets_of([len(file.blocks) for file in files])
        self._index = np.arange(len(self._file)) - first[self._file]
        self.sizes: NDArray[np.int64] = np.array(
            [block.end - block.start for file in files for block in file.blocks], dtype=np.int64
        )
        """(blocks,) source bytes."""
        names = {name: number for number, name in enumerate(dict.fromkeys(file.source for file in files))}
        self._sources = [names[file.source] for file in files for _ in file.blocks]
        self._windows = lru_cache(maxsize=2)(self._cut)

    def windows(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the windows of an epoch in order, each as the numbers of its blocks, ascending.

        Blocks are permuted within their source, and sources are interleaved evenly, so that every window has each
        source in proportion.
        """
        return self._windows(epoch)

    def _cut(self, epoch: int) -> list[NDArray[np.int64]]:
        seed = window_seed(window_seed(self.seed, epoch), BLOCK_ORDER)
        return compose(self.sizes, self._sources, self.window_bytes, seed)

    @property
    def not_taken(self) -> dict[str, int]:
        """Rows beyond `max_rows`, by source; no block contains them."""
        out = Counter[str]()
        for file in self.files:
            out[file.source] += file.not_taken
        return dict(out)

    def select(self, numbers: NDArray[np.int64]) -> list[InputFile]:
        """Return the files of some blocks, each with only these blocks. `numbers` must be ascending."""
        out = []
        for index in np.unique(self._file[numbers]).tolist():
            file = self.files[index]
            mine = self._index[numbers[self._file[numbers] == index]]
            blocks = tuple(file.blocks[block] for block in mine.tolist())
            out.append(replace(file, blocks=blocks, not_taken=0))  # rows outside of blocks count once per epoch
        return out
