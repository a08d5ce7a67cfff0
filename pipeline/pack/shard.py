"""The task of one shard: gathers the planned pieces from mapped parts, lays them out, puts the shard and its record."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...schemas.alignment import Alignment
from ...schemas.errors import IntegrityError
from ...schemas.jsontext import decode_note
from ...schemas.manifest import ShardRecord
from ...schemas.ragged import offsets_of, sums_of
from ...schemas.rows import PREFERENCE, packed_schema
from ...stages.arrays import lists
from ...stages.mask.policy import Mask
from ...stages.pack.row_columns import PlannedPieces, lay_out
from ...stages.select.preference_limits import PairLimits
from ..store.checksummed import seal, unseal
from ..store.open_store import Store
from .arrow_files import read_rows
from .segments import Segments
from .table import NAME, Documents, open_table, pair_lengths
from .window_plan import Pieces, ShardPlan

CHUNK_TOKENS = 1 << 18
"""Number of tokens laid out at once: three columns of 1 MiB fit into the processor's cache, and make a good record
batch.
"""


@dataclass(frozen=True, slots=True)
class Written:
    """What rows hold of one source."""

    trained: int
    """Trained labels."""
    heads: int
    """Labels lost at first tokens of pieces."""
    padding: int
    """Alignment padding."""
    tokens: int
    """All tokens, with padding."""
    cuts: int
    """Cuts through trained turns."""
    together: int
    """Further copies of documents in one row."""
    weight: float
    """The sum of the loss weights of trained labels; 0 without weights."""


@dataclass(frozen=True, slots=True)
class PackResult:
    """A shard, and its counts for the ledger."""

    shard: ShardRecord
    written: dict[int, Written]
    """By the number of the source."""
    record: str
    """Name of the record of this result."""


@dataclass(frozen=True, slots=True)
class LossWeights:
    """What the loss weights of runs are multiplied by."""

    sources: tuple[float, ...]
    """The weight of each source."""
    by_document: bool
    """Whether the weights of a piece are divided by its number of trained labels."""


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to write: some rows of a window's layout."""

    out: Store
    cache: Store
    layout: str
    """Name of the window's layout in `out`, where the table is."""
    prefix: str
    """Folder of the split's shards: `shards`, or `train/shards` and `holdout/shards`."""
    shard: ShardPlan
    masks: tuple[Mask, ...]
    """The mask of each source."""
    alignment: Alignment
    pad_id: int
    format: str
    weights: LossWeights | None = None
    """None for rows without `loss_weights`."""
    pairs: PairLimits | None = None
    """The limits of preference pairs; None for packed rows."""

    @property
    def record(self) -> str:
        """Name of the shard's record."""
        return f"_run/{self.prefix}/{self.shard.index:05d}.json"

    def __str__(self) -> str:
        return f"{self.prefix}, shard {self.shard.index} (rows {self.shard.first_row:,} to {self.shard.last_row:,})"

    def run(self) -> PackResult:
        """Lay out, write, put the shard, put its record.

        Raises:
            IntegrityError: an earlier run of the task wrote a different shard.
        """
        account = Account()
        schema = packed_schema(unpadded=self.alignment.unpadded, weights=self.weights is not None)
        if self.pairs is not None:
            schema = PREFERENCE
        with self.out.draft(self.prefix) as draft:
            sink = pa.PythonFile(draft.file, mode="w")
            if self.format == "arrow":
                # A stream, not a file, because datasets.load_from_disk reads streams.
                writer: Any = pa.ipc.new_stream(sink, schema)
            else:
                writer = pq.ParquetWriter(sink, schema, compression="zstd", store_schema=True)
            with writer:
                for batch in self._batches(account, schema):
                    writer.write_batch(batch)
            put = draft.result
            name = f"{self.prefix}/{self.shard.index:05d}-{put.hash[:16]}.{self.format}"
            self.out.put(draft, name, replace_damaged=True)
        rows = self.shard.last_row - self.shard.first_row
        written = account.written()
        trained = sum(one.trained for one in written.values())
        shard = ShardRecord(name, put.bytes, put.hash, rows, account.tokens, trained, account.max_docs)
        result = PackResult(shard, written, self.record)
        self._note(result)
        return result

    def _note(self, result: PackResult) -> None:
        data = seal(msgspec.json.encode(result), self.record)
        if self.out.put_bytes(self.record, data):
            return
        there = unseal(self.out.read(self.record), self.record)
        if there is None:
            self.out.replace_bytes(self.record, data)
        elif (earlier := decode_note(there, PackResult)).shard != result.shard:
            raise IntegrityError(
                f"packing is not deterministic: {self} was {earlier.shard.name} before and is {result.shard.name} now; "
                "please report it with the configuration"
            )

    def _batches(self, account: "Account", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        shard = self.shard
        if shard.first_row == shard.last_row:
            yield pa.RecordBatch.from_pylist([], schema)  # datasets cannot open a stream without a batch
            return
        table = self.out.local(NAME)
        stamp = table.stat()
        documents, owners, segments = _opened(table, (stamp.st_ino, stamp.st_mtime_ns), self.cache, self.masks)
        row_offsets = read_rows(self.out.local(f"{self.layout}-rows.arrow"), shard.first_row, shard.last_row + 1)[0]
        row_offsets = row_offsets - shard.first_piece
        pieces = Pieces(*read_rows(self.out.local(f"{self.layout}-pieces.arrow"), shard.first_piece, shard.last_piece))
        rows = PlannedRows(documents, owners, segments, pieces, row_offsets, self.alignment, self.pad_id, self.weights)
        account.tokens, account.max_docs = int(rows.tokens.sum()), int(np.diff(row_offsets).max())
        yield from rows.batches(account) if self.pairs is None else rows.pairs(account, self.pairs)


class PlannedRows:
    """R rows of a layout, whose tokens are gathered when they are laid out.

    Args:
        documents: of the table.
        owners: (segments,) the source of each segment.
        pieces: D pieces, row by row.
        row_offsets: (R + 1,) first piece of each row, then D.
        weights: None for rows without `loss_weights`.
        doc_ids: (D,) the ids of the pieces' documents; by default their places in the table.
    """

    def __init__(
        self,
        documents: Documents,
        owners: NDArray[np.int64],
        segments: Segments,
        pieces: Pieces,
        row_offsets: NDArray[np.int64],
        alignment: Alignment,
        pad_id: int,
        weights: LossWeights | None,
        doc_ids: NDArray[np.int64] | None = None,
    ) -> None:
        self._documents, self._owners, self._segments = documents, owners, segments
        self._pieces, self._row_offsets = pieces, row_offsets
        self._alignment, self._pad_id, self._weights = alignment, pad_id, weights
        self._doc_ids = pieces.documents if doc_ids is None else doc_ids
        self._padded = alignment.padded(pieces.lengths, row_offsets)
        self.tokens: NDArray[np.int64] = sums_of(self._padded, row_offsets)
        """(R,) tokens of each row, with alignment padding."""

    def batches(self, account: "Account") -> Iterator[pa.RecordBatch]:
        """Lay out all rows, some at a time."""
        for first, last in chunks_of(np.cumsum(self.tokens)):
            yield self.lay_out(first, last, account)

    def lay_out(self, first: int, last: int, account: "Account | None" = None) -> pa.RecordBatch:
        """Lay out rows `first` to `last - 1`, as `schemas.rows.packed_schema`."""
        here = slice(*self._row_offsets[[first, last]].tolist())
        pieces, offsets = self._pieces.at(here), self._row_offsets[first : last + 1] - here.start
        some, weights = self._documents.at(pieces.documents), self._weights
        sources = self._owners[some.segment]
        run_ends, supervised = self._segments.runs(some)
        planned = PlannedPieces(
            tokens=self._segments.tokens(some, pieces.starts, pieces.lengths),
            starts=pieces.starts,
            lengths=pieces.lengths,
            repeated=pieces.repeated,
            doc_ids=self._doc_ids[here],
            row_offsets=offsets,
            run_ends=run_ends,
            run_supervised=supervised,
            run_offsets=offsets_of(some.run_count),
            run_weights=self._segments.weights(some) if weights is not None else None,
            scales=np.array(weights.sources)[sources] if weights is not None else None,
            by_document=weights is not None and weights.by_document,
        )
        laid = lay_out(planned, self._alignment, self._pad_id)
        if account is not None:
            cuts = cuts_through_turns(
                some, self._segments, pieces.starts + pieces.repeated, pieces.starts + pieces.lengths
            )
            padded, together = self._padded[here], copies_together(some, pieces, offsets)
            padding = padded - pieces.lengths
            account.add(sources, laid.trained, laid.heads, padding, padded, cuts, together, weights=laid.weights)
        return laid.batch

    def pairs(self, account: "Account", limits: PairLimits) -> Iterator[pa.RecordBatch]:
        """Lay out rows of one preference pair each."""
        for first, last in chunks_of(np.cumsum(self.tokens)):
            pieces = self._pieces.at(slice(first, last))
            some = self._documents.at(pieces.documents)
            batch, heads = lay_out_pairs(some, self._segments, pieces.documents, limits)
            none = np.zeros_like(heads)
            trained = some.asked_kept - heads
            account.add(self._owners[some.segment], trained, heads, none, pieces.lengths, none, none)
            yield batch


def lay_out_pairs(
    some: Documents, segments: Segments, doc_ids: NDArray[np.int64], limits: PairLimits
) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Return the rows of R pairs, one each, and (R,) their completion tokens without a loss: without a prompt, nothing
    predicts a completion's first token.
    """
    lengths = pair_lengths(segments.runs(some)[0])
    cut = limits.cut(lengths)
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


def chunks_of(ends: NDArray[np.int64], most: int = CHUNK_TOKENS) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end (one past the last row) of each group that is handled at once.

    Args:
        ends: (R,) running sum of the rows' tokens, or of what `most` is of.
        most: tokens of a group, unless its only row has more.
    """
    first = 0
    while first < len(ends):
        base = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, base + most, side="right")))
        yield first, last
        first = last


def cuts_through_turns(
    some: Documents, segments: Segments, begins: NDArray[np.int32], ends: NDArray[np.int32]
) -> NDArray[np.int64]:
    """(D,) cuts of each piece through a trained turn: before its first token, and after the last one that the limits
    keep. A cut between two pieces counts with the second one.

    Args:
        some: (D,) the document of each piece.
        begins, ends: (D,) the first token that no earlier piece has, and one past the last.
    """
    front, back = begins > 0, (ends == some.high) & (ends < some.length)
    out = np.zeros(len(begins), np.int64)
    for which, places in ((front, begins), (back, ends)):
        here = np.flatnonzero(which)
        if len(here):
            index = segments.index(some.at(here))
            out[here] += index.through_turn(index.bases[:-1] + places[here])
    return out


def copies_together(some: Documents, pieces: Pieces, row_offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(D,) whether another copy of the same piece comes before it in its row.

    Args:
        some: (D,) the document of each piece.
        row_offsets: (R + 1,) first piece of each row, then D.
    """
    out = np.zeros(len(pieces.documents), np.bool_)
    if (some.copies > 1).any():
        row = np.repeat(np.arange(len(row_offsets) - 1), np.diff(row_offsets))
        order = np.lexsort((pieces.starts, pieces.documents, row))
        keys = np.stack([row, pieces.documents, pieces.starts])[:, order]
        out[order[1:]] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    return out


class Account:
    """Counts what is laid out, by source."""

    def __init__(self) -> None:
        self.tokens = self.max_docs = 0
        self._totals: dict[int, list[float]] = {}

    def add(
        self, sources: NDArray[np.int64], *counts: NDArray[Any], weights: NDArray[np.float64] | None = None
    ) -> None:
        """Add the counts of each piece, in the order of `Written`.

        Args:
            weights: the sum of the weights of its labels.
        """
        every = (*counts, np.zeros(len(sources)) if weights is None else weights)
        columns = [np.bincount(sources, weights=one) for one in every]
        for source in np.unique(sources).tolist():
            more = [float(column[source]) for column in columns]
            self._totals[source] = [a + b for a, b in zip(self._totals.get(source, [0.0] * 7), more, strict=True)]

    def written(self) -> dict[int, Written]:
        """The totals, by the number of the source."""
        found = {}
        for source, (*counts, weight) in sorted(self._totals.items()):
            trained, heads, padding, tokens, cuts, together = map(int, counts)
            found[source] = Written(trained, heads, padding, tokens, cuts, together, weight)
        return found


@lru_cache(maxsize=1)
def _opened(
    table: Path, stamp: tuple[int, int], cache: Store, masks: tuple[Mask, ...]
) -> tuple[Documents, NDArray[np.int64], Segments]:
    """Map the table: its documents, (segments,) the source of each segment, and the segments. Kept for the next shard
    of the same run.

    Args:
        stamp: of the file; a process may work for several runs.
    """
    documents, origins = open_table(table)
    paths = [part.path(cache) for part in origins.parts]
    segments = Segments(paths, origins.segments, [masks[source] for source in origins.sources])
    return documents, origins.owners, segments


def forget_table() -> None:
    """Release the mapped files."""
    _opened.cache_clear()
