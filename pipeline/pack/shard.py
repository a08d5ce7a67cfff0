"""The task of one shard: gathers the planned pieces from mapped parts, lays them out, puts the shard and its record."""

from collections.abc import Iterator
from dataclasses import dataclass, field
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
from ...schemas.ragged import offsets_of
from ...schemas.rows import PREFERENCE, packed_schema
from ...stages.arrays import lists
from ...stages.mask.policy import Mask
from ...stages.pack.layout import LaidOut, PlannedPieces, lay_out
from ...stages.select.preference_limits import PairLimits
from ..store.checksummed import seal, unseal
from ..store.open import Store
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
    """What rows hold, by the number of its source."""

    trained: dict[int, int]
    """Trained labels."""
    heads: dict[int, int]
    """Labels lost at first tokens of pieces."""
    padding: dict[int, int]
    """Alignment padding."""
    tokens: dict[int, int]
    """All tokens, with padding."""
    cuts: dict[int, int]
    """Cuts through trained turns."""
    together: dict[int, int]
    """Further copies of documents in one row."""
    weights: dict[int, float] = field(default_factory=dict)
    """Sums of the loss weights of trained labels; empty without weights."""


@dataclass(frozen=True, slots=True)
class PackResult:
    """A shard, and its counts for the ledger."""

    shard: ShardRecord
    written: Written
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
    def destination(self) -> Store:
        """The store that holds the task's record."""
        return self.out

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
        trained = sum(written.trained.values())
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
        padded = self.alignment.padded(pieces.lengths, row_offsets)
        ends = np.cumsum(padded, dtype=np.int64)[row_offsets[1:] - 1]
        account.tokens, account.max_docs = int(ends[-1]), int(np.diff(row_offsets).max())
        for first, last in chunks_of(ends):
            here = slice(int(row_offsets[first]), int(row_offsets[last]))
            chunk = pieces.at(here)
            some = documents.at(chunk.documents)
            sources = owners[some.segment]
            if self.pairs is not None:
                batch, heads = lay_out_pairs(some, segments, chunk.documents, self.pairs)
                nothing = np.zeros_like(heads)
                account.add(sources, some.asked_kept - heads, heads, nothing, chunk.lengths, nothing, nothing)
                yield batch
                continue
            offsets = row_offsets[first : last + 1] - row_offsets[first]
            laid = lay_out_pieces(
                some, segments, chunk, chunk.documents, offsets, self.alignment, self.pad_id, self.weights, sources
            )
            account.add_laid(laid, some, segments, chunk, offsets, padded[here], sources)
            yield laid.batch


def lay_out_pieces(
    some: Documents,
    segments: Segments,
    pieces: Pieces,
    doc_ids: NDArray[np.int64],
    row_offsets: NDArray[np.int64],
    alignment: Alignment,
    pad_id: int,
    weights: LossWeights | None,
    sources: NDArray[np.int64],
) -> LaidOut:
    """Lay out the planned pieces of some rows.

    Args:
        some: (D,) the document of each piece.
        doc_ids, sources: (D,) the id and the source of each piece's document.
        row_offsets: (R + 1,) first piece of each row, then D.
    """
    run_ends, supervised = segments.runs(some)
    planned = PlannedPieces(
        tokens=segments.tokens(some, pieces.starts, pieces.lengths),
        starts=pieces.starts,
        lengths=pieces.lengths,
        repeated=pieces.repeated,
        doc_ids=doc_ids,
        row_offsets=row_offsets,
        run_ends=run_ends,
        run_supervised=supervised,
        run_offsets=offsets_of(some.run_count),
        run_weights=segments.weights(some) if weights is not None else None,
        scales=np.array(weights.sources)[sources] if weights is not None else None,
        by_document=weights is not None and weights.by_document,
    )
    return lay_out(planned, alignment, pad_id)


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


def chunks_of(ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end (one past the last row) of each group that is laid out at once.

    Args:
        ends: (R,) running sum of the rows' tokens.
    """
    first = 0
    while first < len(ends):
        base = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, base + CHUNK_TOKENS, side="right")))
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
    """(D,) whether another copy of the same piece comes before it in its row; see `lay_out_pieces`."""
    out = np.zeros(len(pieces.documents), np.bool_)
    if (some.copies > 1).any():
        row = np.repeat(np.arange(len(row_offsets) - 1), np.diff(row_offsets))
        order = np.lexsort((pieces.starts, pieces.documents, row))
        keys = np.stack([row, pieces.documents, pieces.starts])[:, order]
        out[order[1:]] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    return out


class Account:
    """Counts what is laid out, by source: trained labels, lost first labels, padding, tokens, cuts through turns,
    copies in one row.
    """

    def __init__(self) -> None:
        self.tokens = self.max_docs = 0
        self._weights: dict[int, float] = {}
        self._totals = np.zeros((6, 0), np.int64)

    def add(self, sources: NDArray[np.int64], *counts: NDArray[Any]) -> None:
        """Add the counts of each piece."""
        more = np.stack([np.bincount(sources, weights=one).astype(np.int64) for one in counts])
        size = max(more.shape[1], self._totals.shape[1])
        totals = np.zeros((len(counts), size), np.int64)
        for one in (self._totals, more):
            totals[:, : one.shape[1]] += one
        self._totals = totals

    def add_laid(
        self,
        laid: LaidOut,
        some: Documents,
        segments: Segments,
        pieces: Pieces,
        row_offsets: NDArray[np.int64],
        padded: NDArray[np.int32],
        sources: NDArray[np.int64],
    ) -> None:
        """Add what was laid out of pieces; see `lay_out_pieces`.

        Args:
            padded: (D,) the tokens of each piece with its padding.
        """
        cuts = cuts_through_turns(some, segments, pieces.starts + pieces.repeated, pieces.starts + pieces.lengths)
        together = copies_together(some, pieces, row_offsets)
        self.add(sources, laid.trained, laid.heads, padded - pieces.lengths, padded, cuts, together)
        if laid.weights is None:
            return
        sums = np.bincount(sources, weights=laid.weights)
        for source in np.flatnonzero(sums).tolist():
            self._weights[source] = self._weights.get(source, 0.0) + float(sums[source])

    def written(self) -> Written:
        """The totals."""
        trained, heads, padding, tokens, cuts, together = (
            {source: int(row[source]) for source in np.flatnonzero(row).tolist()} for row in self._totals
        )
        return Written(trained, heads, padding, tokens, cuts, together, self._weights)


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
    return documents, np.repeat(origins.sources, origins.segments), segments


def forget_table() -> None:
    """Release the mapped files."""
    _opened.cache_clear()
