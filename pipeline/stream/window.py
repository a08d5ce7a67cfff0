"""The windows of a stream: which blocks each has, and its rows, which are planned first and laid out in any order.

Selection, planning and layout use the same functions as a run. Shapes: `D` pieces, `R` rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.errors import InputError
from ...schemas.ragged import offsets_of
from ..encode.driver import Encoded
from ..inputs.blocks import InputFile
from ..pack.ledger import account_rows
from ..pack.pack import loss_weights, needs_weights, select
from ..pack.window_plan import compose, window_seed

BLOCK_ORDER = 2**63
"""Number that seeds an epoch's order of blocks. It differs from all window numbers, which seed the order of rows."""


class Blocks:
    """All blocks of all inputs, numbered in the order in which `packtrain run` encodes them, and divided into windows.

    Each epoch orders the blocks by the seed and cuts them into windows of at most a given number of source bytes. A
    block's window is known without encoding any block, so a stream can start at any window.

    Args:
        files: the scanned inputs.
        window_bytes: maximum source bytes of a window; a larger block becomes a separate window.
        seed: the seed of the order.
    """

    def __init__(self, files: Sequence[InputFile], window_bytes: int, seed: int) -> None:
        self.files = tuple(files)
        self.window_bytes = window_bytes
        self.seed = seed
        # Of two files with 3 and 2 blocks, block 4 is block 1 of file 1:
        #     number     0 1 2 3 4
        #     _file      0 0 0 1 1
        #     _index     0 1 2 0 1
        counts = [len(file.blocks) for file in files]
        self._file = np.repeat(np.arange(len(files)), counts)
        self._index = np.arange(len(self._file)) - offsets_of(counts)[self._file]
        self.sizes: NDArray[np.int64] = np.array(
            [block.end - block.start for file in files for block in file.blocks], dtype=np.int64
        )
        """(blocks,) source bytes."""
        source_names = dict.fromkeys(file.source for file in files)
        number_of_source = {name: number for number, name in enumerate(source_names)}
        # The names of sources as numbers, in the order in which they first occur.
        self._sources = [number_of_source[file.source] for file in files for _ in file.blocks]
        """(blocks,) the number of each block's source."""

    def windows(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the windows of an epoch in order, each as the numbers of its blocks, ascending.

        Blocks are permuted within their source, and sources are interleaved evenly, so that every window has each
        source in proportion.
        """
        # Seeded by epoch and purpose: `BLOCK_ORDER` keeps it apart from the seeds of the order of rows.
        seed = window_seed(window_seed(self.seed, epoch), BLOCK_ORDER)
        # A run measures blocks and windows in tokens; here both are in source bytes, because nothing is encoded yet.
        return compose(totals=self.sizes, sources=self._sources, limit=self.window_bytes, seed=seed)

    @property
    def not_taken(self) -> dict[str, int]:
        """Rows beyond `max_rows`, by source; no block contains them."""
        rows = Counter[str]()
        for file in self.files:
            rows[file.source] += file.not_taken
        return dict(rows)

    def select(self, numbers: NDArray[np.int64]) -> list[InputFile]:
        """Return the files of some blocks, in their order, each with only these blocks.

        Args:
            numbers: the blocks, ascending.
        """
        file_numbers = self._file[numbers]
        selected = []
        for file_number in np.unique(file_numbers).tolist():
            file = self.files[file_number]
            blocks_of_file = self._index[numbers[file_numbers == file_number]].tolist()
            blocks = tuple(file.blocks[index] for index in blocks_of_file)
            # Rows in no block are counted once for an epoch; see `not_taken`.
            selected.append(replace(file, blocks=blocks, not_taken=0))
        return selected


class PlannedWindow:
    """The packed rows of one window, planned as a run does but not yet laid out.

    Args:
        place: (epoch, number of the window in it).
        encoded: the window's encoded blocks.
        pad_id: the token for alignment padding.
        split: the split to pack. The ledger counts documents of the other split as dropped, with the name of that split
            as the reason.
        seed: the seed of the order.
        pairs: whether the documents are preference pairs.

    Raises:
        InputError: messages or examples have weights, and the configuration does not say so.
        IntegrityError: the ledger does not close.
    """

    def __init__(
        self,
        place: tuple[int, int],
        config: RunConfig,
        encoded: Encoded,
        pad_id: int,
        split: str,
        seed: int,
        *,
        pairs: bool = False,
    ) -> None:
        selected = select(config, encoded, scratch=encoded.cache.scratch.root, pairs=pairs, pad_id=pad_id, only=split)
        # A run looks at all data to decide whether rows have loss_weights. A stream cannot, and all its batches must
        # have the same columns, so that the configuration alone decides.
        weighted = needs_weights(config) or any("weight" in source.keys for source in config.sources)
        if selected.form.weights is not None and not weighted:
            raise InputError(
                "messages have a `weight` that is not 1, which a stream cannot know before it reaches them: every "
                "batch has loss_weights, or none; set loss.column=always, or remove the weights"
            )
        form = replace(selected.form, weights=loss_weights(config) if weighted else None)
        selected = replace(selected, form=form)
        self.epoch, self.number = place
        # The order of rows has a seed for each window of each epoch, so that no two epochs have the same order.
        row_seed = window_seed(window_seed(seed, self.epoch), self.number)
        # A run has several windows in one table; here the table holds the blocks of this window alone.
        blocks = np.arange(len(selected.table.block_sources))
        # A run also records the certificate, which says how good the packing is; a stream has no manifest for it.
        _, self._rows = selected.rows(split, blocks, row_seed)
        self.tokens: NDArray[np.int64] = self._rows.tokens
        """(R,) tokens of each row, with alignment padding."""
        self.ledger = selected.ledger
        # A run gives the counts of each of its shards. A window stands for a single one, whose rows are counted here.
        account_rows(self.ledger, [self._rows.count()])
        self.ledger.check()

    @property
    def rows(self) -> int:
        """Number of rows; may be 0."""
        return len(self.tokens)

    def lay_out(self, first: int, last: int) -> pa.RecordBatch:
        """Lay out rows `first` to `last - 1` as a batch with the columns of a packed shard. Doc ids count
        within the window, which has a document table of its own.
        """
        return self._rows.lay_out(first, last)
