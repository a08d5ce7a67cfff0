"""One window of a stream, planned: its rows can be laid out in any order, and its account is closed.

Legend: `D` pieces, `R` rows. Everything that decides what a row holds is the run's own: what stays of a document
(`packing`), which piece stands in which row (`stages.plan`), and how a row is laid out (`stages.layout`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.config import RunConfig
from ..schemas.errors import IntegrityError
from ..schemas.layout import Certificate, LayoutPlan
from ..schemas.ledger import Ledger
from ..stages.arrays import numbers, view
from ..stages.layout import Pieces, lay_out
from ..stages.mask import Mask, asked_tokens
from ..stages.plan import plan_rows
from ..stages.truncate import Kept
from .accounts import account_documents, open_ledger
from .catalogue import Catalogue
from .documents import example_ids
from .encoding import EncodedInputs
from .packing import Packing
from .parts import EncodedPart
from .planning import permute_rows, window_seed

DOC_BITS = 32
"""A document's id is its block's number times 2**32 plus its place in the block: the same in every window and epoch,
and known without encoding what stands before it."""


@dataclass(frozen=True, slots=True)
class Document:
    """Where a piece in a row came from."""

    row: int
    """Number of the row in its window."""
    doc_id: int
    id: str
    """As `documents.parquet` of a run calls the example."""
    source: str
    file: str
    line: int
    start: int
    """First token of the piece within its document."""
    tokens: int
    """Of the piece, alignment padding not counted."""


class PlannedWindow:
    """The packed rows of one window: planned, not laid out. See `plan_window`."""

    def __init__(
        self,
        place: tuple[int, int],
        config: RunConfig,
        encoded: EncodedInputs,
        blocks: NDArray[np.int64],
        catalogue: Catalogue,
        kept: Kept,
        documents: NDArray[np.int64],
        plan: LayoutPlan,
        pad_id: int,
    ) -> None:
        self.epoch, self.number = place
        self.certificate: Certificate = plan.certificate
        self.ledger = Ledger()
        self._names = [source.name for source in config.sources]
        self._places = encoded.places
        self._align, self._pad_id = config.pack.align, pad_id
        self._parts = [EncodedPart(part.path) for part in encoded.places]
        self._segments = [segment for part in self._parts for segment in part.segments(Mask(config.mask))]
        document = documents[plan.order]
        self._part = np.searchsorted(catalogue.part_starts, document, side="right") - 1
        self._in_part = document - catalogue.part_starts[self._part]
        self._doc_ids = (blocks[self._part] << DOC_BITS) + self._in_part
        self._segment = np.searchsorted(catalogue.segment_starts, document, side="right") - 1
        self._starts = plan.starts.astype(np.int32) + kept.starts[document]
        self._lengths = plan.lengths
        self._begins = catalogue.begins[document]
        self._run_begins = catalogue.run_begins[document]
        self._run_counts = catalogue.run_counts[document]
        self._row_offsets = plan.row_offsets
        self._padded = -(-plan.lengths // self._align) * self._align
        ends = np.zeros(len(document) + 1, dtype=np.int64)
        np.cumsum(self._padded, out=ends[1:])
        self.tokens: NDArray[np.int64] = np.diff(ends[plan.row_offsets])
        """(R,) tokens of each row, alignment padding included."""
        self._asked, self._heads = self._count_asked()

    @property
    def rows(self) -> int:
        """How many rows it has; may be none."""
        return len(self.tokens)

    def lay_out(self, first: int, last: int) -> pa.RecordBatch:
        """Rows first .. last - 1, as `schemas.rows.PACKED`.

        Raises:
            IntegrityError: what is laid out has other labels than were planned.
        """
        low, high = int(self._row_offsets[first]), int(self._row_offsets[last])
        here = slice(low, high)
        starts, lengths, run_counts = self._starts[here], self._lengths[here], self._run_counts[here]
        segments = [self._segments[number] for number in self._segment[here].tolist()]
        begins = (self._begins[here] + starts).tolist()
        ends = (self._begins[here] + starts + lengths).tolist()
        coded = self._runs(low, high)
        run_offsets = np.zeros(high - low + 1, dtype=np.int64)
        np.cumsum(run_counts, out=run_offsets[1:])
        laid = lay_out(
            Pieces(
                tokens=[s.tokens[a:b] for s, a, b in zip(segments, begins, ends, strict=True)],
                starts=starts,
                lengths=lengths,
                doc_ids=self._doc_ids[here],
                row_offsets=self._row_offsets[first : last + 1] - low,
                run_ends=np.where(coded >= 0, coded, ~coded),
                run_asked=coded >= 0,
                run_offsets=run_offsets,
            ),
            self._align,
            self._pad_id,
        )
        # The ledger was closed over what was planned; so what is laid out must agree with it, piece by piece.
        if not np.array_equal(laid.trained, self._asked[here] - self._heads[here]):
            raise IntegrityError(
                f"rows {first} to {last - 1} of window {self.number}, epoch {self.epoch}, have other labels than were "
                "planned; the cache or its disk is damaged: delete the cache and start again"
            )
        return laid.batch

    def documents(self, first: int, last: int) -> list[Document]:
        """What stands in rows first .. last - 1, piece by piece."""
        low, high = int(self._row_offsets[first]), int(self._row_offsets[last])
        rows = np.repeat(np.arange(first, last), np.diff(self._row_offsets[first : last + 1]))
        out: dict[int, Document] = {}
        for part in np.unique(self._part[low:high]).tolist():
            mine = low + np.flatnonzero(self._part[low:high] == part)
            place = self._places[part]
            batches = self._parts[part].batches
            columns = [np.concatenate([view(batch.column(name)) for batch in batches]) for name in ("line", "sub")]
            line, sub = (column[self._in_part[mine]] for column in columns)
            lines = line.astype(np.int64) + place.first_line + 1
            source = self._names[place.source]
            ids = example_ids(source, place.file, numbers(lines), numbers(sub))
            for piece, name, number in zip(mine.tolist(), ids.to_pylist(), lines.tolist(), strict=True):
                out[piece] = Document(
                    row=int(rows[piece - low]),
                    doc_id=int(self._doc_ids[piece]),
                    id=name,
                    source=source,
                    file=place.file,
                    line=number,
                    start=int(self._starts[piece]),
                    tokens=int(self._lengths[piece]),
                )
        return [out[piece] for piece in sorted(out)]

    def account(self, ledger: Ledger) -> None:
        """Add what stands in the rows: labels and padding, by source."""
        sources = np.array([place.source for place in self._places])[self._part]
        for index, name in enumerate(self._names):
            mine = sources == index
            heads = int(self._heads[mine].sum())
            trained = int(self._asked[mine].sum(dtype=np.int64)) - heads
            written = int(self._padded[mine].sum(dtype=np.int64))
            padding = written - int(self._lengths[mine].sum(dtype=np.int64))
            entry = ledger.sources[name]
            entry.labels_trained += trained
            entry.labels_head += heads
            entry.labels_not_asked += written - trained - heads
            entry.tokens_packed += padding
            if padding:
                entry.tokens_created["alignment"] = entry.tokens_created.get("alignment", 0) + padding

    def _runs(self, low: int, high: int) -> NDArray[np.int32]:
        """(runs,) the documents' runs of pieces low .. high - 1, one after another, as `parts.Segment` codes them."""
        numbers = self._segment[low:high].tolist()
        begins = self._run_begins[low:high].tolist()
        ends = (self._run_begins[low:high] + self._run_counts[low:high]).tolist()
        runs = [self._segments[n].runs[a:b] for n, a, b in zip(numbers, begins, ends, strict=True)]
        return np.concatenate(runs) if runs else np.zeros(0, dtype=np.int32)

    def _count_asked(self) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(D,) tokens of each piece that the mask asks for, and (D,) whether its first is one of them."""
        coded = self._runs(0, len(self._lengths))
        offsets = np.zeros(len(self._lengths) + 1, dtype=np.int64)
        np.cumsum(self._run_counts, out=offsets[1:])
        ends = np.where(coded >= 0, coded, ~coded)
        return asked_tokens(coded >= 0, ends, offsets, self._starts, self._starts + self._lengths)


def plan_window(
    place: tuple[int, int],
    config: RunConfig,
    packing: Packing,
    blocks: NDArray[np.int64],
    split: str,
    seed: int,
) -> PlannedWindow:
    """Plan one window and close its account.

    Args:
        place: epoch, and number of the window in it.
        packing: of the window's encoded blocks.
        blocks: (parts,) their numbers.
        split: whose rows; documents of the other one are left out, and counted as dropped under its name.
        seed: of the order.

    Raises:
        InputError: `truncate.overlong: error` and there is such a document.
        IntegrityError: the account does not close.
    """
    catalogue = packing.catalogue()
    stays = packing.keep(catalogue)
    mine = catalogue.held_out if split == "holdout" else ~catalogue.held_out
    kept = replace(stays, lengths=np.where(mine, stays.lengths, 0).astype(np.int32))
    documents = np.flatnonzero(kept.lengths)
    plan = plan_rows(
        kept.lengths[documents],
        config.truncate.max_length,
        config.pack.strategy,
        max_docs=config.pack.max_docs,
        align=config.pack.align,
    )
    if config.pack.shuffle:
        plan = permute_rows(plan, window_seed(window_seed(seed, place[0]), place[1]))
    window = PlannedWindow(place, config, packing.encoded, blocks, catalogue, kept, documents, plan, packing.pad_id)
    names = packing.names
    ledger = open_ledger(names, [part.source for part in packing.encoded.places], packing.encoded.records)
    account_documents(ledger, names, catalogue, kept, {split: np.ones(len(catalogue), dtype=np.bool_)})
    aside = "train" if split == "holdout" else "holdout"
    _set_aside(ledger, names, catalogue, (stays.lengths > 0) & ~mine, aside)
    window.account(ledger)
    ledger.check()
    window.ledger = ledger
    return window


def _set_aside(
    ledger: Ledger, names: Sequence[str], catalogue: Catalogue, which: NDArray[np.bool_], split: str
) -> None:
    """Count documents of the other split, whole: of this one's rows they are no part."""
    sources = catalogue.source_of(np.arange(len(catalogue), dtype=np.int64))
    for index, name in enumerate(names):
        here = which & (sources == index)
        if here.any():
            entry = ledger.sources[name]
            entry.examples_dropped[split] = int(here.sum())
            entry.tokens_dropped[split] = int(catalogue.lengths[here].sum(dtype=np.int64))
            entry.asked_dropped += int(catalogue.asked[here].sum(dtype=np.int64))
