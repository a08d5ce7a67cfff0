"""Lays out the rows of a plan: gathers the tokens and spans of its pieces from mapped parts, and counts what they hold.

Shapes: D pieces, R rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.layout import Alignment
from ...schemas.ragged import offsets_of, sums_of
from ...schemas.tables.columns import PREFERENCE, Condition, Per, RowColumn, packed_columns, schema_of_columns
from ...stages.pack.row_columns import Branches, LaidOut, PlannedPieces, RunWeights, lay_out
from ...stages.select.truncate import Limits
from .pairs import lay_out_unpacked, plan_sides
from .segments import Segments
from .table import Documents, Pieces

PAIR_TOKEN_BYTES = 4
"""Bytes per token of a preference pair that is not packed: a token stands in one of its columns."""
CHUNK_TOKENS = 1 << 18
"""Number of tokens laid out at once: three columns of 1 MiB fit into the processor's cache, and make a good record
batch.
"""


@dataclass(frozen=True, slots=True)
class LossWeights:
    """What the loss weights of spans are multiplied by."""

    sources: tuple[float, ...]
    """The weight of each source."""
    by_document: bool
    """Whether the weights of a piece are divided by its number of trained labels."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """What the rows of a run look like."""

    alignment: Alignment
    pad_id: int
    """The token id for alignment padding."""
    weights: LossWeights | None = None
    """None for rows without `loss_weights`."""
    pairs: Limits | None = None
    """The limits of preference pairs; None for other documents."""
    branches: bool = False
    """Whether pieces share tokens."""

    @property
    def is_packed(self) -> bool:
        """Whether rows are packed; else each is a preference pair in columns of its own."""
        return self.pairs is None or self.pairs.both

    @property
    def packed_columns(self) -> tuple[RowColumn, ...]:
        """The columns of a packed row: some are there only under a condition."""
        is_met = {
            Condition.PARALLEL: self.alignment.unpadded,
            Condition.WEIGHTED: self.weights is not None,
            Condition.SHARED: self.branches,
            Condition.PAIRS: self.pairs is not None,
        }
        return packed_columns([condition for condition in Condition if is_met[condition]])

    @property
    def schema(self) -> pa.Schema:
        """The columns of a row."""
        return schema_of_columns(self.packed_columns) if self.is_packed else PREFERENCE

    @property
    def token_bytes(self) -> int:
        """Bytes per token of a row."""
        if not self.is_packed:
            return PAIR_TOKEN_BYTES
        return sum(column.value.bit_width // 8 for column in self.packed_columns if column.per is Per.TOKEN)


@dataclass(slots=True)
class Written:
    """What rows hold of one source."""

    trained: int = 0
    """Trained labels."""
    first_tokens: int = 0
    """Labels lost at first tokens of pieces."""
    padding: int = 0
    """Alignment padding."""
    tokens: int = 0
    """All tokens, with padding."""
    cuts: int = 0
    """Cuts through trained turns."""
    together: int = 0
    """Further copies of documents in one row."""
    weight: float = 0.0
    """The sum of the loss weights of trained labels; 0 without weights."""


class Account(dict[int, Written]):
    """Counts what is laid out, by the number of the source."""

    def count(self, sources: NDArray[np.int64], **counts: NDArray[Any]) -> None:
        """Add counts of D pieces.

        Args:
            sources: (D,) the source of each piece.
            counts: field of `Written` → (D,) the count of each piece, such as `trained=[3, 0, 7]`.
        """
        present = np.unique(sources).tolist()
        for name, column in counts.items():
            # Pieces of the sources 0 2 0 with the counts 5 1 3: sums 8 0 1.
            sums = np.bincount(sources, weights=column)
            for source in present:
                written = self.setdefault(source, Written())
                # Sums are floats, but only weights are not whole numbers.
                total = float(sums[source]) if name == "weight" else int(sums[source])
                setattr(written, name, getattr(written, name) + total)


class PlannedRows:
    """R rows of a plan, whose tokens are gathered when they are laid out.

    Args:
        documents: all documents of the table.
        segments: all segments of the table.
        pieces: D pieces, row by row.
        row_offsets: (R + 1,) first piece of each row, then D.
        form: what the rows look like: their padding, and which columns they have.
    """

    def __init__(
        self,
        documents: Documents,
        segments: Segments,
        pieces: Pieces,
        row_offsets: NDArray[np.int64],
        form: RowForm,
    ) -> None:
        self._documents = documents
        self._segments = segments
        self._pieces = pieces
        self._form = form
        self._row_offsets = row_offsets
        self._padded = form.alignment.padded(np.ascontiguousarray(pieces["length"]), row_offsets)
        self.tokens: NDArray[np.int64] = sums_of(self._padded, row_offsets)
        """(R,) tokens of each row, with alignment padding."""

    def batches(self, account: Account) -> Iterator[pa.RecordBatch]:
        """Lay out and count all rows, some at a time."""
        ends = np.cumsum(self.tokens)
        first = 0
        while first < len(ends):
            tokens_before = int(ends[first - 1]) if first else 0
            # At least one row, even if it alone has more tokens.
            last = max(first + 1, int(np.searchsorted(ends, tokens_before + CHUNK_TOKENS, side="right")))
            yield self.lay_out(first, last, account)
            first = last

    def count(self) -> Account:
        """Lay out all rows, some at a time, to count what they hold."""
        account = Account()
        for _ in self.batches(account):
            pass
        return account

    def lay_out(self, first: int, last: int, account: Account | None = None) -> pa.RecordBatch:
        """Lay out rows `first` to `last - 1`, and add what they hold to `account`, unless it is None."""
        if first == last:
            return pa.RecordBatch.from_pylist([], self._form.schema)
        form = self._form
        # Rows 3 and 4 with row offsets [..., 7, 9, 12, ...] are pieces 7 to 11; their offsets become [0, 2, 5].
        first_piece, last_piece = self._row_offsets[[first, last]].tolist()
        pieces = self._pieces[first_piece:last_piece]
        row_offsets = self._row_offsets[first : last + 1] - first_piece
        documents = self._documents.at(np.ascontiguousarray(pieces["document"]))
        # `both` says that both sides of a pair share a row. Without it, pairs are not packed.
        if form.pairs is not None and not form.pairs.both:
            return self._lay_out_unpacked(pieces, documents, form.pairs, account)
        if form.pairs is not None:
            planned = plan_sides(pieces, documents, self._segments, form.pairs, row_offsets)
        else:
            planned = self._plan_documents(pieces, documents, row_offsets)
        laid_out = lay_out(planned, form.alignment, form.pad_id, form.packed_columns)
        if account is not None:
            padded = self._padded[first_piece:last_piece]
            self._count(account, pieces, documents, row_offsets, padded, laid_out)
        return laid_out.batch

    def _plan_documents(self, pieces: Pieces, documents: Documents, row_offsets: NDArray[np.int64]) -> PlannedPieces:
        """Pieces of documents, with their tokens and spans.

        Args:
            documents: (D,) the document of each piece.
        """
        form = self._form
        segments = self._segments
        starts = np.ascontiguousarray(pieces["start"])
        lengths = np.ascontiguousarray(pieces["length"])
        span_ends, supervised = segments.spans(documents)
        weights = None
        if form.weights is not None:
            source_weights = np.array(form.weights.sources)[segments.sources[documents.segment]]
            weights = RunWeights(segments.weights(documents), source_weights, form.weights.by_document)
        return PlannedPieces(
            tokens=segments.tokens(documents, starts, lengths),
            starts=starts,
            lengths=lengths,
            repeated=np.ascontiguousarray(pieces["repeated"]),
            doc_ids=np.ascontiguousarray(pieces["document"]),
            row_offsets=row_offsets,
            span_ends=span_ends,
            span_supervised=supervised,
            span_offsets=offsets_of(documents.span_count),
            weights=weights,
            branches=_branches(documents, starts, pieces["parent"]) if form.branches else None,
        )

    def _count(
        self,
        account: Account,
        pieces: Pieces,
        documents: Documents,
        row_offsets: NDArray[np.int64],
        padded: NDArray[np.int32],
        laid_out: LaidOut,
    ) -> None:
        """Count what is laid out.

        Args:
            account: takes the counts.
            pieces: (D,) the pieces, row by row.
            documents: (D,) the document of each piece.
            row_offsets: (R + 1,) first piece of each row, then D.
            padded: (D,) tokens of each piece, with padding.
        """
        counts: dict[str, NDArray[Any]] = {
            "trained": laid_out.trained,
            "first_tokens": laid_out.heads,
            "padding": padded - pieces["length"],
            "tokens": padded,
        }
        if self._form.pairs is not None:
            # Pairs have no turns to cut. Copies of a pair are found by its chosen sides, every second piece, and count
            # with these: 1 0 for a pair that comes again.
            chosen_sides = pieces[::2]
            together = _copies_together(documents.at(slice(None, None, 2)), chosen_sides, row_offsets // 2)
            counts["together"] = np.stack([together, np.zeros_like(together)], axis=1).ravel()
        else:
            # Tokens 0 to 9 and 8 to 15 of a document, of which the second piece repeats 2, begin afresh at 0 and 10. A
            # piece that continues another one has no cut at its first token.
            fresh_begins = np.where(pieces["parent"] > 0, 0, pieces["start"] + pieces["repeated"])
            ends = pieces["start"] + pieces["length"]
            counts["cuts"] = _cuts_through_turns(documents, self._segments, fresh_begins, ends)
            counts["together"] = _copies_together(documents, pieces, row_offsets)
        if laid_out.weights is not None:
            counts["weight"] = laid_out.weights
        account.count(self._segments.sources[documents.segment], **counts)

    def _lay_out_unpacked(
        self, pieces: Pieces, pairs: Documents, limits: Limits, account: Account | None
    ) -> pa.RecordBatch:
        """Lay out preference pairs, one in a row, and add what they hold to `account`, unless it is None.

        Args:
            pairs: (R,) the pair of each row.
        """
        doc_ids = np.ascontiguousarray(pieces["document"])
        batch, first_tokens = lay_out_unpacked(pairs, self._segments, doc_ids, limits)
        if account is not None:
            trained = pairs.supervised_kept - first_tokens  # the tokens of both completions, but those without a loss
            sources = self._segments.sources[pairs.segment]
            account.count(sources, trained=trained, first_tokens=first_tokens, tokens=pieces["length"])
        return batch


def _branches(documents: Documents, starts: NDArray[np.int32], parents: NDArray[np.int32]) -> Branches:
    """Which of D pieces continue others. Such a piece of tokens 3 to 8, of a document kept from its token 1 on, has 2
    tokens before it.

    Args:
        documents: (D,) the document of each piece.
        starts: (D,) first token of each piece in its document.
        parents: (D,) how many pieces before it its parent stands, or 0.
    """
    return Branches(parents, np.where(parents > 0, starts - documents.low, 0).astype(np.int32))


def _cuts_through_turns(
    documents: Documents, segments: Segments, begins: NDArray[np.int32], ends: NDArray[np.int32]
) -> NDArray[np.int64]:
    """(D,) how many cuts through a trained turn each piece has, at its begin and at its end: 0, 1 or 2. A cut between
    two pieces of a document counts with the second one, so a piece's end counts only if nothing after it is kept.

    Args:
        documents: (D,) the document of each piece.
        begins: (D,) the first token of each piece that no earlier piece has; 0 for a piece that continues another one,
            since nothing is lost before it.
        ends: (D,) one past the last token of each piece.
    """
    cut_before = begins > 0
    cut_after = (ends == documents.high) & (ends < documents.length)
    counts = np.zeros(len(begins), np.int64)
    for is_cut, places in ((cut_before, begins), (cut_after, ends)):
        pieces = np.flatnonzero(is_cut)
        if len(pieces):
            spans = segments.index(documents.at(pieces))
            # The index has documents end to end: `bases` is where each begins in it.
            counts[pieces] += spans.through_turn(spans.bases[:-1] + places[pieces])
    return counts


def _copies_together(documents: Documents, pieces: Pieces, row_offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(D,) whether another copy of the same piece comes before it in its row.

    Args:
        documents: (D,) the document of each piece.
        row_offsets: (R + 1,) first piece of each row, then D.
    """
    doc_ids = np.ascontiguousarray(pieces["document"])
    starts = np.ascontiguousarray(pieces["start"])
    together = np.zeros(len(doc_ids), np.bool_)
    if (documents.copies > 1).any():  # else sorting would find nothing
        row = np.repeat(np.arange(len(row_offsets) - 1), np.diff(row_offsets))
        # Of pieces of one row, documents 8 5 8 and all starts 0: sorted 5 8 8, of which the last one, in the order of
        # the row, has another copy before it.
        order = np.lexsort((starts, doc_ids, row))
        keys = np.stack([row, doc_ids, starts])[:, order]
        together[order[1:]] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    return together
