"""One planned window of a stream: its rows can be laid out in any order, and its ledger is closed.

Selection, planning and layout use the same functions as a run. Shapes: `D` pieces, `R` rows.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.config.hints import setting
from ...schemas.errors import InputError, IntegrityError
from ...schemas.layout import Certificate, LayoutPlan
from ...schemas.ledger import Ledger
from ...schemas.ragged import offsets_of, sums_of
from ...stages.arrays import numbers, strings, view
from ...stages.mask.policy import Mask, label_weights, supervised_tokens
from ..encode.driver import Encoded
from ..encode.parts import EncodedPart
from ..pack.accounts import account_cuts
from ..pack.documents import example_ids
from ..pack.driver import opened, surveyor_of, weighs
from ..pack.packed_task import lay_out_pieces
from ..pack.planning import arrange, columns_of, inner_cuts, piece_scales
from ..pack.segments import Segments
from ..pack.survey import cuts_by_packing
from ..pack.windows import Window, window_seed

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
        self,
        place: tuple[int, int],
        config: RunConfig,
        window: Window,
        plan: LayoutPlan,
        doc_ids: NDArray[np.int64],
        pad_id: int,
        weighted: bool,
    ) -> None:
        self.epoch, self.number = place
        self.certificate: Certificate = plan.certificate
        self.ledger = Ledger()
        self._names = [source.name for source in config.sources]
        self._places = window.parts
        self._alignment, self._pad_id = config.pack.alignment, pad_id
        self._segments = Segments(
            (part.path for part in window.parts), (part.source for part in window.parts), Mask.of(config.mask)
        )
        scales = piece_scales(plan, window, config) if weighted else None
        self._columns = columns_of(plan, window, slice(None), scales)
        document = window.sections.documents[plan.order]
        self._part = np.searchsorted(window.part_starts, document, side="right") - 1
        self._doc_ids = self._columns[0] = doc_ids[document]
        self._starts, self._lengths, self._repeated = self._columns[1:4]
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
        columns, row_offsets = [column[here] for column in self._columns], self._row_offsets[first : last + 1]
        laid = lay_out_pieces(columns, row_offsets, self._segments, self._alignment, self._pad_id)
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
                    start=int(self._starts[piece]),
                    tokens=int(self._lengths[piece]),
                )
        return [out[piece] for piece in sorted(out)]

    def account(self, ledger: Ledger) -> None:
        """Add the rows' labels and padding to the ledger, by source."""
        sources = np.array([place.source for place in self._places])[self._part]
        for index, name in enumerate(self._names):
            mine = sources == index
            heads = int(self._heads[mine].sum())
            trained = int(self._asked[mine].sum(dtype=np.int64)) - heads
            written = int(self._padded[mine].sum(dtype=np.int64))
            padding = written - int(self._lengths[mine].sum(dtype=np.int64))
            entry = ledger.sources[name]
            entry.labels_trained += trained
            entry.weight_trained += float(self._weights[mine].sum())
            entry.labels_head += heads
            entry.labels_not_asked += written - trained - heads
            entry.tokens_packed += padding
            if padding:
                entry.tokens_created["alignment"] = entry.tokens_created.get("alignment", 0) + padding

    def _count_asked(self) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.float64]]:
        """Return (D,) how many tokens of each piece the mask selects here, (D,) whether the first token is one of
        them, and (D,) the sum of the weights of its labels; zeros for rows without weights.
        """
        segments, _, run_begins, run_counts, *scales = self._columns[4:]
        ends, supervised = self._segments.runs(segments, run_begins, run_counts)
        offsets, fresh, last = offsets_of(run_counts), self._starts + self._repeated, self._starts + self._lengths
        count, first = supervised_tokens(supervised, ends, offsets, fresh, last)
        head = first & (self._repeated == 0)
        if not scales:
            return count, head, np.zeros(len(count))
        runs = self._segments.weights(segments, run_begins, run_counts)
        weights = label_weights(runs, supervised, ends, offsets, fresh + (self._repeated == 0), last)
        return count, head, weights * scales[0]


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
    surveyor = surveyor_of(config, encoded, Path())
    survey = surveyor.survey(opened(config, encoded), only=split)
    weighted = stream_weighs(config)
    if survey.weighted and not weighted:
        raise InputError(
            "messages have a `weight` that is not 1, which a stream cannot know before it reaches them: every batch "
            f"has loss_weights, or none; set {setting('loss.column', 'always')}, or remove the weights"
        )
    window = surveyor.window(np.arange(len(blocks)), split)
    plan = arrange(window.sections, config, window_seed(window_seed(seed, place[0]), place[1]))
    part = np.searchsorted(window.part_starts, np.arange(len(window.documents)), side="right") - 1
    doc_ids = (blocks[part] << DOC_BITS) + (window.documents - surveyor.starts[part])
    planned = PlannedWindow(place, config, window, plan, doc_ids, pad_id, weighted)
    names, ledger = [source.name for source in config.sources], survey.ledger
    account_cuts(ledger, names, survey.cuts)
    account_cuts(ledger, names, cuts_by_packing(window, *inner_cuts(plan, window.sections), config, len(names)))
    planned.account(ledger)
    ledger.check()
    planned.ledger = ledger
    return planned
