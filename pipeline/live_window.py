"""One window of a stream, planned: its rows can be laid out in any order, and its account is closed.

Legend: `D` pieces, `R` rows. Everything that decides what a row holds is the run's own: what stays of a document
(`packing`), which piece stands in which row (`stages.plan`), and how a row is laid out (`stages.layout`).
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.config import RunConfig
from ..schemas.errors import IntegrityError
from ..schemas.layout import Certificate, LayoutPlan
from ..schemas.ledger import Ledger
from ..stages.arrays import numbers, view
from ..stages.layout import Pieces, lay_out
from ..stages.mask import asked_tokens
from ..stages.plan import plan_rows
from ..stages.sections import Sections
from .accounts import account_cuts
from .catalogue import Catalogue
from .documents import example_ids
from .packing import Packing
from .parts import EncodedPart
from .planning import inner_cuts, permute_rows
from .windows import window_seed

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
        blocks: NDArray[np.int64],
        catalogue: Catalogue,
        sections: Sections,
        plan: LayoutPlan,
        packing: Packing,
    ) -> None:
        self.epoch, self.number = place
        self.certificate: Certificate = plan.certificate
        self.ledger = Ledger()
        self._names = [source.name for source in config.sources]
        self._places = packing.encoded.places
        self._align, self._pad_id = config.pack.align, packing.pad_id
        self._parts = [EncodedPart(part.path) for part in self._places]
        self._segments = [segment for part in self._parts for segment in part.segments(packing.mask)]
        document = sections.documents[plan.order]
        self._part = np.searchsorted(catalogue.part_starts, document, side="right") - 1
        self._in_part = document - catalogue.part_starts[self._part]
        self._doc_ids = (blocks[self._part] << DOC_BITS) + self._in_part
        self._segment = np.searchsorted(catalogue.segment_starts, document, side="right") - 1
        self._starts = plan.starts.astype(np.int32) + sections.starts[plan.order]
        self._repeated = sections.repeats[plan.order]
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
                repeated=self._repeated[here],
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
        """(D,) tokens of each piece that the mask asks for here, and (D,) whether its first is one of them."""
        coded = self._runs(0, len(self._lengths))
        offsets = np.zeros(len(self._lengths) + 1, dtype=np.int64)
        np.cumsum(self._run_counts, out=offsets[1:])
        ends = np.where(coded >= 0, coded, ~coded)
        fresh = self._starts + self._repeated
        asked, first = asked_tokens(coded >= 0, ends, offsets, fresh, self._starts + self._lengths)
        return asked, first & (self._repeated == 0)


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
    chosen = packing.choose(catalogue)
    aside = "train" if split == "holdout" else "holdout"
    chosen.selection.leave_out(catalogue.held_out if split == "train" else ~catalogue.held_out, aside)
    sections = chosen.sections(chosen.packed)
    plan = plan_rows(
        sections.lengths,
        config.truncate.max_length,
        config.pack.strategy,
        max_docs=config.pack.max_docs,
        align=config.pack.align,
    )
    if config.pack.shuffle:
        plan = permute_rows(plan, window_seed(window_seed(seed, place[0]), place[1]))
    window = PlannedWindow(place, config, blocks, catalogue, sections, plan, packing)
    ledger = packing.opened(chosen, {split: np.ones(len(catalogue), dtype=np.bool_)})
    account_cuts(ledger, packing.names, packing.turns_cut(chosen, *inner_cuts(plan, sections)))
    window.account(ledger)
    ledger.check()
    window.ledger = ledger
    return window
