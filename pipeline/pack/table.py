"""The table of encoded documents: read from the parts once, decided in place, and mapped by everybody.

N documents, in the order of sources, files, blocks and rows: a document's index is its doc id. While a run selects, the
columns lie in an anonymous file, so that memory does not grow with N; then the table is put as one Arrow file, which
planning, the tasks of shards, explain and the report map.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import numbers, view
from ...schemas.dataset.manifest import FileRecord
from ...schemas.digests import text_number
from ...schemas.errors import IntegrityError
from ...schemas.ragged import offsets_of
from ...stages.mask.policy import Mask, supervised_turns
from ...stages.mask.span_index import SpanIndex
from ...stages.select.truncate import Limits, PairLengths, cut_pairs
from ...stages.tokenize.token_spans import IS_NEXT_STOP, IS_UNPROVED
from ..encode.parts import EncodedPart, PartPlace, Spans
from ..inputs.blocks import FileLines
from ..store.local import open_unnamed_file
from ..store.open_store import Store

if TYPE_CHECKING:  # workers import this to read the table, and should not import pydantic
    from ...schemas.config.config import RunConfig

NAME = "_run/documents.arrow"
SLICE = 1 << 20
"""Documents decided at once, so that what is computed of them takes some tens of MB."""
PIECE = np.dtype(
    [("document", np.int64), ("start", np.int32), ("length", np.int32), ("repeated", np.int32), ("parent", np.int32)]
)
"""A piece of a document: its tokens; how many of the first ones another piece has as well, untrained here; and how many
pieces before it the piece stands whose path it continues (`units`), or 0."""
Pieces: TypeAlias = NDArray[Any]
"""(M,) pieces, each a `PIECE`."""
HELD_OUT, NO_TURNS, HEAD, SPLIT, CONTAMINATED, WEIGHTED, SHARES = (1 << bit for bit in range(7))
"""Bits of `Documents.flags`: held out; assistant turns not located; the first token is supervised; cut into pieces
before packing; shares text with evaluation rows; some trained token has another loss weight than 1; its piece is in
`Table.units`."""


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """Columns of N documents. The last seven are decided by `outcomes.decide`.

    A preference pair counts as a document with all its tokens: the prompt once, and both completions, which are
    supervised. Its `low` is 0 and its `high` the number of tokens that the limits keep, although these need not be
    contiguous.
    """

    segment: NDArray[np.int32]
    """The record batch that holds the document, counted over all parts."""
    begin: NDArray[np.int32]
    """Where its tokens begin in the segment."""
    span_begin: NDArray[np.int32]
    span_count: NDArray[np.int32]
    line: NDArray[np.int32]
    """The row of its block that it was made of."""
    sub: NDArray[np.int32]
    """Which example of the row it is, or -1 for the only one."""
    length: NDArray[np.int32]
    """Tokens before any cut."""
    low: NDArray[np.int32]
    """First token that the limits keep."""
    high: NDArray[np.int32]
    """One past the last token that they keep."""
    supervised: NDArray[np.int32]
    """Supervised tokens."""
    supervised_kept: NDArray[np.int32]
    """Supervised tokens that the limits keep."""
    turns: NDArray[np.int16]
    """Trained assistant turns."""
    turns_without_stop: NDArray[np.int16]
    """Trained turns without an end-of-turn token."""
    next_stops: NDArray[np.int16]
    """Trained turns whose stop token is trained in the next message's header."""
    first_digest: NDArray[np.uint64]
    second_digest: NDArray[np.uint64]
    flags: NDArray[np.uint8]
    labels: NDArray[np.int32]
    """Trained labels of one copy, before a strategy cuts it."""
    supervised_packed: NDArray[np.int32]
    """Supervised tokens in what is packed of one copy, each counted once."""
    kept: NDArray[np.int32]
    """Tokens of one copy, each counted once; 0 if left out."""
    overlap: NDArray[np.int32]
    """Tokens that its pieces repeat."""
    shared: NDArray[np.int32]
    """First tokens of one copy that are stored in pieces of other documents; 0 without `pack.share`."""
    outcome: NDArray[np.uint8]
    """Why it is left out, as an index into `schemas.tables.reasons.OUTCOMES`; 0 if it is packed."""
    copies: NDArray[np.uint16]
    """How often it is packed; 0 if left out."""

    def __len__(self) -> int:
        return len(self.length)

    def at(self, rows: slice | NDArray[np.int64]) -> "Documents":
        """Some documents: views for a slice, copies for indices."""
        return Documents(*(getattr(self, name)[rows] for name in COLUMNS))

    def has(self, flag: int) -> NDArray[np.bool_]:
        """(N,) whether each has a flag."""
        out: NDArray[np.bool_] = (self.flags & flag) > 0
        return out


COLUMNS: dict[str, np.dtype[Any]] = {
    name: np.dtype(get_args(get_args(kind)[1])[0]) for name, kind in get_type_hints(Documents).items()
}
"""The type of each column."""


@dataclass(frozen=True, slots=True)
class Origins:
    """The parts of the documents, in order; stored with the table. A segment is a record batch of a part."""

    parts: list[FileRecord]
    sources: list[int]
    """The source of each part."""
    lines: list[FileLines]
    documents: list[int]
    """Documents of each part."""
    segments: list[int]
    """Segments of each part."""

    @property
    def starts(self) -> NDArray[np.int64]:
        """(parts + 1,) first document of each part, then N."""
        return offsets_of(self.documents)

    def bounds(self, sources: int) -> NDArray[np.int64]:
        """(sources + 1,) first document of each source, then N; parts are in the order of sources."""
        return self.starts[np.searchsorted(self.sources, np.arange(sources + 1))]

    def place(self, documents: Documents, doc_id: int) -> tuple[int, str, int, int]:
        """The source of a document, the label of its file, its line there, and which example of the row it is."""
        part = int(np.searchsorted(self.starts, doc_id, side="right")) - 1
        file, line = self.lines[part].find(int(documents.line[doc_id]))
        return self.sources[part], self.lines[part].files[file], line, int(documents.sub[doc_id])

    def documents_at(self, documents: Documents, source: int, file: str, line: int) -> list[int]:
        """The doc ids of the examples that were made of a line of a file."""
        out = list[int]()
        for part, (first, last) in enumerate(zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)):
            row = self.lines[part].row_of(file, line) if self.sources[part] == source else None
            if row is not None:
                out += (np.flatnonzero(documents.line[first:last] == row) + first).tolist()
        return out


@dataclass(slots=True, eq=False)
class Table:
    """All documents of a run, and where they are."""

    documents: Documents
    places: Sequence[PartPlace]
    """The parts."""
    origins: Origins
    bounds: NDArray[np.int64]
    """(sources + 1,) first document of each source, then N."""
    block_starts: NDArray[np.int64]
    """(blocks + 1,) first document of each block, then N. A block is a part, or a file of a part that several share."""
    block_sources: list[int]
    masks: tuple[Mask, ...]
    """The mask of each source."""
    pieces: Pieces = field(default_factory=lambda: np.zeros(0, PIECE))
    """(S,) the pieces of split documents, in order; mapped. Decided by `outcomes.decide`."""
    units: Pieces = field(default_factory=lambda: np.zeros(0, PIECE))
    """The pieces of documents that share tokens, unit by unit; mapped. Decided by `units.share_in_rows`."""

    def slices(self) -> Iterator[tuple[int, slice]]:
        """Yield (source, documents) for at most `SLICE` documents at a time."""
        for source, (first, last) in enumerate(zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True)):
            for at in range(first, last, SLICE):
                yield source, slice(at, min(at + SLICE, last))

    def put(self, out: Store) -> None:
        """Put the table, once all is decided."""
        columns = [numbers(getattr(self.documents, name)) for name in COLUMNS]
        schema = pa.schema([(name, column.type) for name, column in zip(COLUMNS, columns, strict=True)])
        schema = schema.with_metadata({"origins": msgspec.json.encode(self.origins)})
        put_arrow(out, NAME, pa.RecordBatch.from_arrays(columns, schema=schema))


def put_arrow(store: Store, name: str, batch: pa.RecordBatch) -> FileRecord:
    """Put a record batch as a mappable Arrow file."""
    with store.draft() as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
        put = draft.size_and_hash
        store.put(draft, name)
    return FileRecord(name, put.bytes, put.hash)


def open_table(path: Path) -> tuple[Documents, Origins]:
    """Map a table that was put.

    Raises:
        ValueError, KeyError, OSError: it is damaged, or another version wrote it.
    """
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
    batch.validate()
    origins = msgspec.json.decode((batch.schema.metadata or {})[b"origins"], type=Origins)
    if sum(origins.documents) != batch.num_rows:
        raise ValueError("its parts have another number of documents")
    return Documents(*(view(batch.column(name)) for name in COLUMNS)), origins


def scratch_documents(rows: int, scratch: Path) -> Documents:
    """Columns of zeros to be filled; of more than `SLICE` rows, in an anonymous file."""
    if rows <= SLICE:
        return Documents(*(np.zeros(rows, kind) for kind in COLUMNS.values()))
    widths = [-(-kind.itemsize * rows // 64) * 64 for kind in COLUMNS.values()]
    data = np.memmap(open_unnamed_file(scratch, sum(widths)), np.uint8, "r+", shape=(sum(widths),))
    begins = offsets_of(widths).tolist()
    columns = zip(COLUMNS.values(), begins, strict=False)
    return Documents(*(data[at : at + rows * kind.itemsize].view(kind) for kind, at in columns))


def read_table(
    places: Sequence[PartPlace],
    sizes: Sequence[int],
    config: "RunConfig",
    limits: Limits,
    scratch: Path,
    *,
    pairs: bool = False,
) -> Table:
    """Read the lengths and spans of all parts, one part in memory at a time.

    Args:
        sizes: (parts,) documents of each part, as its record says.
        pairs: whether these are preference pairs.

    Raises:
        IntegrityError: a part has another number of documents.
    """
    documents = scratch_documents(sum(sizes), scratch)
    masks = tuple(Mask.of(config.mask_of(source)) for source in config.sources)
    marked = [np.frombuffer(place.contaminated, np.int64) for place in places]
    segments: list[int] = []
    blocks: list[int] = []
    first = segment = 0
    for place, size, keys in zip(places, sizes, marked, strict=True):
        part = EncodedPart(place.path)
        rows = sum(batch.num_rows for batch in part.batches)
        if rows != size:
            raise IntegrityError(
                f"the encoded part {place.part.name} has {rows:,} examples, but its record says {size:,}; delete both "
                "and run again to rebuild them"
            )
        blocks += _sizes_by_file(place, part, rows)
        segments.append(len(part.batches))
        for batch in part.batches:
            here = documents.at(slice(first, first + batch.num_rows))
            if batch.num_rows:
                _read(batch, here, limits, masks[place.source], pairs=pairs)
            here.segment[:] = segment
            here.line[:], here.sub[:] = view(batch.column("line")), view(batch.column("sub"))
            if len(keys):
                lines = (here.line.astype(np.int64) << 32) + here.sub + 1
                here.flags[np.isin(lines, keys)] |= CONTAMINATED
            if config.holdout.fraction > 0:
                here.flags[_held_out(batch, config.sources[place.source].name, config)] |= HELD_OUT
            first, segment = first + batch.num_rows, segment + 1
    origins = Origins(
        [place.part for place in places],
        [place.source for place in places],
        [place.lines for place in places],
        list(sizes),
        segments,
    )
    owners = [place.source for place in places for _ in place.lines.files]
    return Table(documents, places, origins, origins.bounds(len(config.sources)), offsets_of(blocks), owners, masks)


def _read(batch: pa.RecordBatch, here: Documents, limits: Limits, mask: Mask, *, pairs: bool) -> None:
    """Fill the columns of a segment's documents from their spans."""
    spans = Spans.of(batch, mask)
    ids, offsets = view(batch.column("input_ids").offsets), spans.offsets.astype(np.int64)
    here.begin[:], here.length[:] = ids[:-1], np.diff(ids)
    here.span_begin[:], here.span_count[:] = offsets[:-1], np.diff(offsets)
    if pairs:
        _cut_pairs(here, limits, spans)
    else:
        _cut(here, limits, spans)
    here.kept[:] = here.high - here.low
    here.supervised_packed[:] = here.supervised_kept
    next_stops = spans.supervised & IS_NEXT_STOP[spans.kind] & (mask.stop == "auto")
    here.next_stops[:] = np.add.reduceat(next_stops, offsets[:-1], dtype=np.int32)
    turns, without_stop = supervised_turns(spans.kind, spans.turn, spans.supervised, offsets, next_stops)
    here.turns[:] = turns
    here.turns_without_stop[:] = without_stop
    here.flags[np.logical_or.reduceat(IS_UNPROVED[spans.kind], offsets[:-1])] |= NO_TURNS
    if spans.weights is not None:
        here.flags[np.logical_or.reduceat(spans.supervised & (spans.weights != 1), offsets[:-1])] |= WEIGHTED
    digests = batch.column("digest")
    halves = np.frombuffer(digests.buffers()[1], np.uint64).reshape(-1, 2)[digests.offset :][: len(here)]
    here.first_digest[:], here.second_digest[:] = halves.T


def _cut(here: Documents, limits: Limits, spans: Spans) -> None:
    """What the limits keep of documents."""
    index = SpanIndex.of(here.length, here.span_count, spans.ends, spans.kind, spans.turn, spans.supervised)
    here.low[:], here.high[:] = limits.stretch(here.length)
    begins, before = index.bases[:-1], index.supervised_before
    low, high = begins + here.low, begins + here.high
    here.supervised[:] = before(begins + here.length) - before(begins)
    here.supervised_kept[:] = before(high) - before(low)
    here.flags[index.supervised_at(begins) & (here.length > 0)] |= HEAD
    here.labels[:] = here.supervised_kept - (index.supervised_at(low) & (low < high))


def _cut_pairs(here: Documents, limits: Limits, spans: Spans) -> None:
    """What the limits keep of preference pairs."""
    lengths = pair_lengths(spans.ends)
    cut = cut_pairs(lengths, limits)
    here.high[:], here.supervised[:], here.supervised_kept[:] = cut.kept.all, lengths.completions, cut.kept.completions
    here.flags[lengths.prompt == 0] |= HEAD
    here.labels[:] = here.supervised_kept - (cut.kept.prompt == 0)


def pair_lengths(ends: NDArray[np.int32]) -> PairLengths:
    """The lengths of pairs, from where their three spans end."""
    whole = ends.reshape(-1, 3)
    return PairLengths(whole[:, 0].copy(), whole[:, 1] - whole[:, 0], whole[:, 2] - whole[:, 1])


def _sizes_by_file(place: PartPlace, part: EncodedPart, documents: int) -> list[int]:
    """Documents of each file of a part."""
    if len(place.lines.files) == 1:
        return [documents]
    owners = [place.lines.find_all(view(batch.column("line")))[0] for batch in part.batches]
    counts = np.bincount(np.concatenate([np.zeros(0, np.int32), *owners]), minlength=len(place.lines.files))
    return [int(count) for count in counts]


def _held_out(batch: pa.RecordBatch, source: str, config: "RunConfig") -> NDArray[np.bool_]:
    """(N,) whether each document is held out, decided by a hash of its group or of its content.

    So adding data does not move documents, and equal examples are in the same split.
    """
    groups = batch.column("group").to_pylist() if config.holdout.by == "group" else [""] * batch.num_rows
    both = zip(groups, batch.column("digest").to_pylist(), strict=True)
    keys = (f"{source}\n{group}".encode() if group else digest for group, digest in both)
    limit = int(config.holdout.fraction * 2**64)
    return np.fromiter((text_number(key, config.seed) < limit for key in keys), np.bool_, batch.num_rows)
