"""One planned window of a stream: its rows can be laid out in any order, and its ledger is closed.

Selection, planning and layout use the same functions as a run. Shapes: `D` pieces, `R` rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.errors import InputError, IntegrityError
from ...schemas.layout import Certificate
from ...schemas.ragged import offsets_of, sums_of
from ...stages.arrays import numbers, strings, view
from ...stages.mask.policy import Mask, label_weights, supervised_tokens
from ..encode.driver import Encoded
from ..encode.parts import EncodedPart
from ..pack.documents import example_ids
from ..pack.pack import Selected, loss_weights, select, weighs
from ..pack.segments import Segments
from ..pack.shard import cuts_through_turns, lay_out_pieces
from ..pack.window_plan import arrange, pieces_of, planned_pieces
from ..pack.windows import window_seed
from ..store.open import scratch_of

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
    """The packed rows of one window, planned but not yet laid out. See `plan_window`."""

    def __init__(
        self, place: tuple[int, int], selected: Selected, blocks: NDArray[np.int64], split: str, seed: int
    ) -> None:
        config, table = selected.config, selected.table
        self.epoch, self.number = place
        self.ledger = selected.ledger
        self._names = [source.name for source in config.sources]
        self._places = table.places
        self._alignment, self._pad_id = config.pack.alignment, selected.pad_id
        self._loss = loss_weights(config) if stream_weighs(config) else None
        self._segments = Segments([part.path for part in table.places], table.origins.segments, Mask.of(config.mask))
        pieces = pieces_of(table, selected.split_pieces, split, np.arange(len(blocks)))
        plan = arrange(pieces.lengths, config, window_seed(window_seed(seed, place[0]), place[1]))
        self.certificate: Certificate = plan.certificate
        self._pieces = planned_pieces(plan, pieces)
        self._documents = table.documents.at(self._pieces.documents)
        self._part = np.searchsorted(table.origins.starts, self._pieces.documents, side="right") - 1
        self._sources = np.array(table.origins.sources, dtype=np.int64)[self._part]
        self._doc_ids = (blocks[self._part] << DOC_BITS) + (self._pieces.documents - table.origins.starts[self._part])
        self._row_offsets = plan.row_offsets
        self._padded = self._alignment.padded(plan.lengths, plan.row_offsets)
        self.tokens: NDArray[np.int64] = sums_of(self._padded, plan.row_offsets)
        """(R,) tokens of each row, with alignment padding."""
        self._asked, self._heads, self._weights = self._count_asked()

    @property
    def rows(self) -> int:
        """Number of rows; may be 0."""
        return len(self.tokens)

    def lay_out(self, first: int, last: int) -> pa.RecordBatch:
        """Lay out rows `first` to `last - 1`, as `schemas.rows.packed_schema`.

        Raises:
            IntegrityError: the rows have other labels than planned.
        """
        low, high = int(self._row_offsets[first]), int(self._row_offsets[last])
        here = slice(low, high)
        laid = lay_out_pieces(
            self._documents.at(here),
            self._segments,
            self._pieces.at(here),
            self._doc_ids[here],
            self._row_offsets[first : last + 1] - low,
            self._alignment,
            self._pad_id,
            self._loss,
            self._sources[here],
        )
        # The ledger was closed on the planned numbers, so every piece must have as many labels as planned.
        other = laid.weights is not None and not np.allclose(laid.weights, self._weights[here], rtol=1e-5, atol=0)
        if other or not np.array_equal(laid.trained, self._asked[here] - self._heads[here]):
            raise IntegrityError(
                f"rows {first} to {last - 1} of window {self.number}, epoch {self.epoch}, have other labels than "
                "planned; the cache or its disk is damaged: delete the cache and start again"
            )
        return laid.batch

    def documents(self, first: int, last: int) -> list[RowDocument]:
        """Return the origins of all pieces in rows `first` to `last - 1`."""
        low, high = int(self._row_offsets[first]), int(self._row_offsets[last])
        rows = np.repeat(np.arange(first, last), np.diff(self._row_offsets[first : last + 1]))
        out: dict[int, RowDocument] = {}
        for part in np.unique(self._part[low:high]).tolist():
            mine = low + np.flatnonzero(self._part[low:high] == part)
            place = self._places[part]
            batches = EncodedPart(place.path).batches
            columns = [np.concatenate([view(batch.column(name)) for batch in batches]) for name in ("line", "sub")]
            line, sub = (column[self._doc_ids[mine] & ((1 << DOC_BITS) - 1)] for column in columns)
            (file,) = place.lines.files  # a stream joins no files
            _, lines = place.lines.find_all(line)
            source = self._names[place.source]
            ids = example_ids(strings([f"{source}/{file}"]), numbers(lines), numbers(sub))
            for piece, name, number in zip(mine.tolist(), ids.to_pylist(), lines.tolist(), strict=True):
                out[piece] = RowDocument(
                    row=int(rows[piece - low]),
                    doc_id=int(self._doc_ids[piece]),
                    id=name,
                    source=source,
                    file=file,
                    line=number,
                    start=int(self._pieces.starts[piece]),
                    tokens=int(self._pieces.lengths[piece]),
                )
        return [out[piece] for piece in sorted(out)]

    def account(self) -> None:
        """Add the rows' labels, padding and cuts to the ledger, by source, and check that it closes.

        Raises:
            IntegrityError: it does not.
        """
        lengths, begins = self._pieces.lengths, self._pieces.starts + self._pieces.repeated
        cuts = cuts_through_turns(self._documents, self._segments, begins, self._pieces.starts + lengths)

        def by_source(values: NDArray[Any]) -> list[int]:
            return [int(one) for one in np.bincount(self._sources, weights=values, minlength=len(self._names))]

        asked, heads, written, padding = map(
            by_source, (self._asked, self._heads, self._padded, self._padded - lengths)
        )
        weights = np.bincount(self._sources, weights=self._weights, minlength=len(self._names))
        for index, (name, cut) in enumerate(zip(self._names, by_source(cuts), strict=True)):
            entry = self.ledger.sources[name]
            entry.labels_trained += asked[index] - heads[index]
            entry.weight_trained += float(weights[index])
            entry.labels_head += heads[index]
            entry.labels_not_asked += written[index] - asked[index]
            entry.tokens_packed += padding[index]
            entry.turns_cut += cut
            if padding[index]:
                created = entry.tokens_created
                created["alignment"] = created.get("alignment", 0) + padding[index]
        self.ledger.check()

    def _count_asked(self) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.float64]]:
        """Return (D,) how many tokens of each piece the mask selects here, (D,) whether the first token is one of
        them, and (D,) the sum of the weights of its labels; zeros for rows without weights.
        """
        some, pieces = self._documents, self._pieces
        ends, supervised = self._segments.runs(some)
        offsets, fresh, last = (
            offsets_of(some.run_count),
            pieces.starts + pieces.repeated,
            pieces.starts + pieces.lengths,
        )
        count, first = supervised_tokens(supervised, ends, offsets, fresh, last)
        head = first & (pieces.repeated == 0)
        if self._loss is None:
            return count, head, np.zeros(len(count))
        runs = self._segments.weights(some)
        weights = label_weights(runs, supervised, ends, offsets, fresh + (pieces.repeated == 0), last)
        weights *= np.array(self._loss.sources)[self._sources]
        return count, head, weights / np.maximum(count - head, 1) if self._loss.by_document else weights


def stream_weighs(config: RunConfig) -> bool:
    """Whether the rows of a stream have `loss_weights`: as those of a run, but decided without looking at the data."""
    return weighs(config) or any("weight" in source.keys for source in config.sources)


def plan_window(
    place: tuple[int, int],
    config: RunConfig,
    encoded: Encoded,
    pad_id: int,
    blocks: NDArray[np.int64],
    split: str,
    seed: int,
) -> PlannedWindow:
    """Plan one window as a run does, and close its ledger.

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
    selected = select(config, encoded, scratch_of(encoded.cache).root, pad_id=pad_id, only=split)
    if selected.weighted and not stream_weighs(config):
        raise InputError(
            "messages have a `weight` that is not 1, which a stream cannot know before it reaches them: every batch "
            "has loss_weights, or none; set loss.column=always, or remove the weights"
        )
    planned = PlannedWindow(place, selected, blocks, split, seed)
    planned.account()
    return planned
