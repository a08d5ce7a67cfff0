"""The windows of a stream. Of a planned one, rows can be laid out in any order, and the ledger is closed.

Selection, planning and layout use the same functions as a run. Shapes: `D` pieces, `R` rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.errors import InputError
from ...schemas.ragged import offsets_of
from ..dataset.documents import Address
from ..encode.driver import Encoded
from ..inputs.blocks import InputFile
from ..pack.ledger import account_rows
from ..pack.pack import loss_weights, select, weighs
from ..pack.rows import Account, PlannedRows
from ..pack.segments import Segments
from ..pack.table import place_of
from ..pack.window_plan import arrange, compose, pieces_of, planned_pieces, window_seed
from ..store.open_store import scratch_of

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
        self.files, self.window_bytes, self.seed = tuple(files), window_bytes, seed
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


DOC_BITS = 32
"""A doc id is the block's number, shifted left by this many bits, plus the document's place in the block. It is the
same in every window and epoch, and is known without encoding earlier blocks.
"""


@dataclass(frozen=True, slots=True)
class RowDocument:
    """The origin of a piece in a row."""

    row: int
    """Number of the row in its window."""
    doc_id: int
    id: str
    """The example's id, as in a run's `documents.parquet`."""
    source: str
    file: str
    line: int
    start: int
    """First token of the piece within its document."""
    tokens: int
    """Tokens of the piece, without alignment padding."""


class PlannedWindow:
    """The packed rows of one window, planned as a run does but not yet laid out.

    Args:
        place: (epoch, number of the window in it).
        encoded: the window's encoded blocks.
        pad_id: the token for alignment padding.
        blocks: (parts,) the blocks' numbers.
        split: the split to pack. Documents of the other split are counted as dropped; the reason is that split's name.
        seed: the seed of the order.

    Raises:
        InputError: a document is too long under `truncate.overlong: error`; or messages or examples have weights, and
            the configuration does not say so.
        IntegrityError: the ledger does not close.
    """

    def __init__(
        self,
        place: tuple[int, int],
        config: RunConfig,
        encoded: Encoded,
        pad_id: int,
        blocks: NDArray[np.int64],
        split: str,
        seed: int,
    ) -> None:
        selected = select(config, encoded, scratch_of(encoded.cache).root, pad_id=pad_id, only=split)
        # As those of a run, but decided without looking at the data.
        weighted = weighs(config) or any("weight" in source.keys for source in config.sources)
        if selected.form.weights is not None and not weighted:
            raise InputError(
                "messages have a `weight` that is not 1, which a stream cannot know before it reaches them: every "
                "batch has loss_weights, or none; set loss.column=always, or remove the weights"
            )
        table = selected.table
        self.epoch, self.number = place
        self.ledger = selected.ledger
        self._names, self._places = [source.name for source in config.sources], table.places
        pieces = pieces_of(table, split, np.arange(len(blocks)))
        plan = arrange(pieces, config, window_seed(window_seed(seed, self.epoch), self.number))
        self._pieces, self._row_offsets = planned_pieces(plan, pieces), plan.row_offsets
        self._part = np.searchsorted(table.origins.starts, self._pieces.documents, side="right") - 1
        self._index = self._pieces.documents - table.origins.starts[self._part]  # of the document in its part
        self._doc_ids = (blocks[self._part] << DOC_BITS) + self._index
        form = replace(selected.form, weights=loss_weights(config) if weighted else None)
        segments = Segments.of(table, config)
        self._rows = PlannedRows(table.documents, segments, self._pieces, self._row_offsets, form, self._doc_ids)
        self.tokens: NDArray[np.int64] = self._rows.tokens
        """(R,) tokens of each row, with alignment padding."""
        account = Account()
        for _ in self._rows.batches(account):
            pass  # all rows are laid out once, some at a time, to count what they hold
        account_rows(self.ledger, self._names, [account])
        self.ledger.check()

    @property
    def rows(self) -> int:
        """Number of rows; may be 0."""
        return len(self.tokens)

    def lay_out(self, first: int, last: int) -> pa.RecordBatch:
        """Lay out rows `first` to `last - 1`, as `schemas.rows.packed_schema`."""
        return self._rows.lay_out(first, last)

    def documents(self, first: int, last: int) -> list[RowDocument]:
        """Return the origins of all pieces in rows `first` to `last - 1`."""
        out = []
        for row in range(first, last):
            for piece in range(*self._row_offsets[row : row + 2].tolist()):
                place = self._places[self._part[piece]]
                file, line, sub = place_of(place, int(self._index[piece]))
                address = Address(self._names[place.source], file, line, sub)
                start, tokens = int(self._pieces.starts[piece]), int(self._pieces.lengths[piece])
                where = (address.source, file, line)
                out.append(RowDocument(row, int(self._doc_ids[piece]), address.id, *where, start, tokens))
        return out
