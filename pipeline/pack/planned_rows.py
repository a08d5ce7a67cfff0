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
        return packed_columns(conditions_of(parallel=self.alignment.unpadded, weighted=weighted, shared=self.branches))

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
    heads: int = 0
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
            for source, one in self.items():
                if source < len(sums):
                    now = getattr(one, name)
                    setattr(one, name, now + type(now)(sums[source]))


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
        self._documents, self._segments, self._pieces, self._form = documents, segments, pieces, form
        self._row_offsets = row_offsets
        self._padded = form.alignment.padded(np.ascontiguousarray(pieces["length"]), row_offsets)
        self.tokens: NDArray[np.int64] = sums_of(self._padded, row_offsets)
        """(R,) tokens of each row, with alignment padding."""

    def batches(self, account: Account) -> Iterator[pa.RecordBatch]:
        """Lay out and count all rows, some at a time."""
        ends, first = np.cumsum(self.tokens), 0
        while first < len(ends):
            base = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, base + CHUNK_TOKENS, side="right")))
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
        here = slice(*self._row_offsets[[first, last]].tolist())
        pieces, offsets = self._pieces[here], self._row_offsets[first : last + 1] - here.start
        names = ("document", "start", "length", "repeated", "parent")
        doc_ids, starts, lengths, repeated, parents = (np.ascontiguousarray(pieces[name]) for name in names)
        some, form, segments = self._documents.at(doc_ids), self._form, self._segments
        sources = segments.sources[some.segment]
        if form.pairs is not None:
            batch, heads = _lay_out_pairs(some, segments, doc_ids, form.pairs)
            if account is not None:
                account.count(sources, trained=some.supervised_kept - heads, heads=heads, tokens=lengths)
            return batch
        span_ends, supervised = segments.spans(some)
        weights = None
        if (how := form.weights) is not None:
            weights = RunWeights(segments.weights(some), np.array(how.sources)[sources], how.by_document)
        planned = PlannedPieces(
            tokens=segments.tokens(some, starts, lengths),
            starts=starts,
            lengths=lengths,
            repeated=repeated,
            doc_ids=doc_ids,
            row_offsets=offsets,
            span_ends=span_ends,
            span_supervised=supervised,
            span_offsets=offsets_of(some.span_count),
            weights=weights,
            branches=_branches(some, starts, parents) if form.branches else None,
        )
        laid = lay_out(planned, form.alignment, form.pad_id)
        if account is not None:
            padded = self._padded[here]
            account.count(
                sources,
                trained=laid.trained,
                heads=laid.heads,
                padding=padded - lengths,
                tokens=padded,
                cuts=_cuts_through_turns(some, segments, np.where(parents > 0, 0, starts + repeated), starts + lengths),
                together=_copies_together(some, doc_ids, starts, offsets),
                **({} if laid.weights is None else {"weight": laid.weights}),
            )
        return laid.batch


def _branches(some: Documents, starts: NDArray[np.int32], parents: NDArray[np.int32]) -> Branches:
    """Which of D pieces continue others; `some` are their documents."""
    return Branches(parents, np.where(parents > 0, starts - some.low, 0).astype(np.int32))


def _lay_out_pairs(
    some: Documents, segments: Segments, doc_ids: NDArray[np.int64], limits: Limits
) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Return the rows of R pairs, one each, and (R,) their completion tokens without a loss: without a prompt, nothing
    predicts a completion's first token.
    """
    lengths = pair_lengths(segments.spans(some)[0])
    cut = cut_pairs(lengths, limits)
    begins, kept = cut.begins, cut.kept
    chosen, rejected = lengths.prompt + begins.chosen, lengths.prompt + lengths.chosen + begins.rejected
    starts, lengths_kept = (begins.prompt, chosen, rejected), (kept.prompt, kept.chosen, kept.rejected)
    columns = [
        lists(offsets_of(length), np.concatenate(segments.tokens(some, start, length)), field.type)
        for start, length, field in zip(starts, lengths_kept, list(PREFERENCE)[:3], strict=True)
    ]
    columns.append(lists(np.arange(len(doc_ids) + 1), doc_ids, PREFERENCE.field("doc_ids").type))
    heads = np.where(kept.prompt == 0, 2, 0).astype(np.int64)
    return pa.RecordBatch.from_arrays(columns, schema=PREFERENCE), heads


def _cuts_through_turns(
    some: Documents, segments: Segments, begins: NDArray[np.int32], ends: NDArray[np.int32]
) -> NDArray[np.int64]:
    """(D,) cuts of each piece through a trained turn: before its first token that no earlier piece has, and after the
    last one that the limits keep. A cut between two pieces counts with the second one.

    Args:
        some: (D,) the document of each piece.
        begins, ends: (D,) that first token (0 for a piece that continues another one, which loses nothing), and one
            past the piece's last token.
    """
    front, back = begins > 0, (ends == some.high) & (ends < some.length)
    out = np.zeros(len(begins), np.int64)
    for which, places in ((front, begins), (back, ends)):
        here = np.flatnonzero(which)
        if len(here):
            index = segments.index(some.at(here))
            out[here] += index.through_turn(index.bases[:-1] + places[here])
    return out


def _copies_together(
    some: Documents, doc_ids: NDArray[np.int64], starts: NDArray[np.int32], row_offsets: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(D,) whether another copy of the same piece comes before it in its row.

    Args:
        some, doc_ids, starts: (D,) the document of each piece, and its first token there.
        row_offsets: (R + 1,) first piece of each row, then D.
    """
    out = np.zeros(len(doc_ids), np.bool_)
    if (some.copies > 1).any():
        row = np.repeat(np.arange(len(row_offsets) - 1), np.diff(row_offsets))
        order = np.lexsort((starts, doc_ids, row))
        keys = np.stack([row, doc_ids, starts])[:, order]
        out[order[1:]] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    return out
