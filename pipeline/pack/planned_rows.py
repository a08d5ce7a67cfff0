"""Lays out the rows of a plan: gathers the tokens and spans of its pieces from mapped parts, and counts what they hold.

Shapes: D pieces, R rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import lists
from ...schemas.layout import Alignment
from ...schemas.ragged import offsets_of, sums_of
from ...schemas.tables.columns import PREFERENCE, Per, RowColumn, conditions_of, packed_columns, schema_of_columns
from ...stages.pack.row_columns import Branches, PlannedPieces, RunWeights, lay_out
from ...stages.select.truncate import Limits, cut_pairs
from .pairs import pair_lengths
from .segments import Segments
from .table import Documents, Pieces

PAIR_TOKEN_BYTES = 4
"""Bytes per token of a preference pair: a token stands in one of its columns."""
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
    """The limits of preference pairs; None for packed rows."""
    branches: bool = False
    """Whether documents share tokens."""

    @property
    def packed_columns(self) -> tuple[RowColumn, ...]:
        """The columns of a packed row."""
        weighted = self.weights is not None
        return packed_columns(
            conditions_of(parallel=self.alignment.unpadded, weighted=weighted, shared=self.branches, pairs=False)
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of a row."""
        return PREFERENCE if self.pairs is not None else schema_of_columns(self.packed_columns)

    @property
    def token_bytes(self) -> int:
        """Bytes per token of a row."""
        if self.pairs is not None:
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
        """Add counts of pieces.

        Args:
            sources: (D,) the source of each piece.
            counts: (D,) by the names of `Written`.
        """
        for source in np.unique(sources).tolist():
            self.setdefault(source, Written())
        for name, column in counts.items():
            sums = np.bincount(sources, weights=column)
            for source, written in self.items():
                if source < len(sums):
                    total = getattr(written, name)
                    # bincount sums as floats; all but weights are whole numbers.
                    setattr(written, name, total + type(total)(sums[source]))


class PlannedRows:
    """R rows of a plan, whose tokens are gathered when they are laid out.

    Args:
        documents: of the table.
        pieces: D pieces, row by row.
        row_offsets: (R + 1,) first piece of each row, then D.
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
        """Lay out rows `first` to `last - 1`, and count them if asked to."""
        if first == last:
            return pa.RecordBatch.from_pylist([], self._form.schema)
        form = self._form
        segments = self._segments
        # Rows 3 and 4 with row offsets [..., 7, 9, 12, ...] are pieces 7 to 11; their offsets become [0, 2, 5].
        first_piece, last_piece = self._row_offsets[[first, last]].tolist()
        pieces = self._pieces[first_piece:last_piece]
        row_offsets = self._row_offsets[first : last + 1] - first_piece
        doc_ids = np.ascontiguousarray(pieces["document"])
        starts = np.ascontiguousarray(pieces["start"])
        lengths = np.ascontiguousarray(pieces["length"])
        repeated = np.ascontiguousarray(pieces["repeated"])
        parents = np.ascontiguousarray(pieces["parent"])
        documents = self._documents.at(doc_ids)
        sources = segments.sources[documents.segment]
        if form.pairs is not None:
            batch, first_tokens = _lay_out_pairs(documents, segments, doc_ids, form.pairs)
            if account is not None:
                trained = documents.supervised_kept - first_tokens
                account.count(sources, trained=trained, first_tokens=first_tokens, tokens=lengths)
            return batch
        span_ends, supervised = segments.spans(documents)
        weights = None
        if form.weights is not None:
            source_weights = np.array(form.weights.sources)[sources]
            weights = RunWeights(segments.weights(documents), source_weights, form.weights.by_document)
        planned = PlannedPieces(
            tokens=segments.tokens(documents, starts, lengths),
            starts=starts,
            lengths=lengths,
            repeated=repeated,
            doc_ids=doc_ids,
            row_offsets=row_offsets,
            span_ends=span_ends,
            span_supervised=supervised,
            span_offsets=offsets_of(documents.span_count),
            weights=weights,
            branches=_branches(documents, starts, parents) if form.branches else None,
        )
        laid_out = lay_out(planned, form.alignment, form.pad_id)
        if account is not None:
            padded = self._padded[first_piece:last_piece]
            # A piece that continues another one has no cut at its first token.
            fresh_begins = np.where(parents > 0, 0, starts + repeated)
            counts: dict[str, NDArray[Any]] = {
                "trained": laid_out.trained,
                "first_tokens": laid_out.heads,
                "padding": padded - lengths,
                "tokens": padded,
                "cuts": _cuts_through_turns(documents, segments, fresh_begins, starts + lengths),
                "together": _copies_together(documents, doc_ids, starts, row_offsets),
            }
            if laid_out.weights is not None:
                counts["weight"] = laid_out.weights
            account.count(sources, **counts)
        return laid_out.batch


def _branches(documents: Documents, starts: NDArray[np.int32], parents: NDArray[np.int32]) -> Branches:
    """Which of D pieces continue others.

    Args:
        documents: (D,) the document of each piece.
    """
    return Branches(parents, np.where(parents > 0, starts - documents.low, 0).astype(np.int32))


def _lay_out_pairs(
    documents: Documents, segments: Segments, doc_ids: NDArray[np.int64], limits: Limits
) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Return the rows of R pairs, one each, and (R,) their completion tokens without a loss: without a prompt, nothing
    predicts a completion's first token.
    """
    span_ends, _ = segments.spans(documents)
    lengths = pair_lengths(span_ends)
    cut = cut_pairs(lengths, limits)
    # A pair's tokens are stored as prompt, chosen, rejected; each part loses tokens at its beginning or its end.
    part_starts = (np.zeros_like(lengths.prompt), lengths.prompt, lengths.prompt + lengths.chosen)
    columns = []
    for start, begin, kept, field in zip(
        part_starts, cut.begins.parts, cut.kept.parts, list(PREFERENCE)[:3], strict=True
    ):
        tokens = np.concatenate(segments.tokens(documents, start + begin, kept))
        columns.append(lists(offsets_of(kept), tokens, field.type))
    columns.append(lists(np.arange(len(doc_ids) + 1), doc_ids, PREFERENCE.field("doc_ids").type))
    first_tokens = np.where(cut.kept.prompt == 0, 2, 0).astype(np.int64)
    return pa.RecordBatch.from_arrays(columns, schema=PREFERENCE), first_tokens


def _cuts_through_turns(
    documents: Documents, segments: Segments, begins: NDArray[np.int32], ends: NDArray[np.int32]
) -> NDArray[np.int64]:
    """(D,) cuts of each piece through a trained turn: before its first token that no earlier piece has, and after the
    last one that the limits keep. A cut between two pieces counts with the second one.

    Args:
        documents: (D,) the document of each piece.
        begins, ends: (D,) that first token (0 for a piece that continues another one, which loses nothing), and one
            past the piece's last token.
    """
    cut_before = begins > 0
    cut_after = (ends == documents.high) & (ends < documents.length)
    counts = np.zeros(len(begins), np.int64)
    for is_cut, places in ((cut_before, begins), (cut_after, ends)):
        pieces = np.flatnonzero(is_cut)
        if len(pieces):
            spans = segments.index(documents.at(pieces))
            counts[pieces] += spans.through_turn(spans.bases[:-1] + places[pieces])
    return counts


def _copies_together(
    documents: Documents, doc_ids: NDArray[np.int64], starts: NDArray[np.int32], row_offsets: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(D,) whether another copy of the same piece comes before it in its row.

    Args:
        documents, doc_ids, starts: (D,) the document of each piece, and its first token there.
        row_offsets: (R + 1,) first piece of each row, then D.
    """
    together = np.zeros(len(doc_ids), np.bool_)
    if (documents.copies > 1).any():  # else sorting would find nothing
        row = np.repeat(np.arange(len(row_offsets) - 1), np.diff(row_offsets))
        order = np.lexsort((starts, doc_ids, row))
        keys = np.stack([row, doc_ids, starts])[:, order]
        together[order[1:]] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    return together
