"""The columns of a run's documents: filled from the parts, decided in place, and mapped by planning and by workers.

N documents, in the order of sources, files, blocks and rows: a document's index is its doc id. While a run selects, the
columns lie in an anonymous file, so that memory does not grow with N. Then they are put as one Arrow file, from which
the tasks of a run write shards and documents.parquet. Nothing reads that file after the run: what is kept of a document
is in documents.parquet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import numbers, view
from ...schemas.dataset.manifest import FileRecord
from ...schemas.ragged import offsets_of
from ...stages.mask.policy import Mask
from ..encode.parts import PartPlace
from ..inputs.blocks import FileLines
from ..store.local import open_unnamed_file
from ..store.open_store import Store
from .spools import TrainedSpans

NAME = "_run/layout/documents.arrow"
"""The file of the columns, below the output's folder."""
SLICE = 1 << 20
"""Documents decided at once, so that what is computed of them takes some tens of MB."""
PIECE = np.dtype(
    [("document", np.int64), ("start", np.int32), ("length", np.int32), ("repeated", np.int32), ("parent", np.int32)]
)
"""A piece of a document. `document` is a doc id, `start` the piece's first token in the document, `length` its tokens;
`repeated` of its first tokens stand in another piece as well, and have no label in this one; `parent` is how many
pieces before it the piece stands whose path it continues, or 0 for none. Of a preference pair, each side is a piece,
and `start` counts from the side's first kept token."""
Pieces: TypeAlias = NDArray[Any]
"""(M,) pieces, each a `PIECE`."""
HELD_OUT, NO_TURNS, FIRST_SUPERVISED, SPLIT, CONTAMINATED, WEIGHTED, SHARES = (1 << bit for bit in range(7))
"""Bits of `Documents.flags`: held out; assistant turns not located; the first token is supervised; cut into pieces
before packing; shares text with evaluation rows; some trained token has another loss weight than 1; shares tokens with
other documents of its row."""
GROUP = "group"
"""The column of the file that is not one of `Documents`; it is there if some document has a group."""


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """Columns of N documents. `read_parts` fills them; the last nine are final after `outcomes.decide`, which sets some
    bits of `flags`, too.

    A preference pair counts as a document with all its tokens: the prompt once, and both completions, which are
    supervised. Its `low` is 0 and its `high` the number of tokens that the limits keep, although these need not be
    contiguous: they are `high - supervised_kept` of the prompt, `chosen_kept` of the chosen completion, and others.
    """

    segment: NDArray[np.int32]
    """The record batch that holds the document, counted over all parts."""
    begin: NDArray[np.int32]
    """Where its tokens begin in the segment."""
    span_begin: NDArray[np.int32]
    """Its first span in the segment."""
    span_count: NDArray[np.int32]
    """How many spans it has; at least one, even without tokens."""
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
    chosen_kept: NDArray[np.int32]
    """Tokens of a pair's chosen completion that the limits keep; 0 for other documents."""
    turns: NDArray[np.int16]
    """Trained assistant turns."""
    turns_without_stop: NDArray[np.int16]
    """Trained turns without an end-of-turn token."""
    next_stops: NDArray[np.int16]
    """Trained turns whose stop token is trained in the next message's header."""
    first_digest: NDArray[np.uint64]
    """The first 8 bytes of its digest, by which equal examples are found."""
    second_digest: NDArray[np.uint64]
    """The other 8 bytes."""
    flags: NDArray[np.uint8]
    """Bits: `HELD_OUT` and others."""
    labels: NDArray[np.int32]
    """Trained labels of one copy, before a strategy cuts it."""
    kept_digest: NDArray[np.uint64]
    """Which tokens of it are kept: see `stages.select.kept_tokens`."""
    trained_digest: NDArray[np.uint64]
    """Which tokens of it have a trained label."""
    supervised_packed: NDArray[np.int32]
    """Supervised tokens in what is packed of one copy, each counted once."""
    kept: NDArray[np.int32]
    """Tokens of one copy, each counted once; 0 if left out."""
    overlap: NDArray[np.int32]
    """Tokens that its pieces repeat: of a pair, those of its prompt that its row stores a second time."""
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
        flagged: NDArray[np.bool_] = (self.flags & flag) > 0
        return flagged


# A hint NDArray[np.int32] is `ndarray[shape, dtype[int32]]`: the type is the argument of its second argument.
COLUMNS: dict[str, np.dtype[Any]] = {
    name: np.dtype(get_args(get_args(kind)[1])[0]) for name, kind in get_type_hints(Documents).items()
}
"""The type of each column."""


@dataclass(frozen=True, slots=True)
class Origins:
    """The parts of the documents, in order; stored with the columns. A segment is a record batch of a part."""

    parts: list[FileRecord]
    sources: list[int]
    """The source of each part."""
    lines: list[FileLines]
    """Of each part, which line of which file each row of its block is."""
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
        # Parts of the sources 0 0 2 that start at 0, 40 and 58, and end at 90: source 1 has none, so 0 58 58 90.
        return self.starts[np.searchsorted(self.sources, np.arange(sources + 1))]

    def place(self, documents: Documents, doc_id: int) -> tuple[int, str, int, int]:
        """The source of a document, the label of its file, its line there, and which example of the row it is."""
        part = int(np.searchsorted(self.starts, doc_id, side="right")) - 1
        file, line = self.lines[part].find(int(documents.line[doc_id]))
        return self.sources[part], self.lines[part].files[file], line, int(documents.sub[doc_id])


@dataclass(slots=True, eq=False)
class Table:
    """All documents of a run, and where they are."""

    documents: Documents
    places: Sequence[PartPlace]
    """The parts, in order: in which file each lies, and of which source it is."""
    origins: Origins
    bounds: NDArray[np.int64]
    """(sources + 1,) first document of each source, then N."""
    block_starts: NDArray[np.int64]
    """(blocks + 1,) first document of each block, then N. A block is a part, or a file of a part that several share."""
    block_sources: list[int]
    """(blocks,) the source of each block."""
    masks: tuple[Mask, ...]
    """The mask of each source."""
    groups: pa.Array | None = None
    """(N,) the group of each document, "" if it has none; mapped. None if no document has a group."""
    group_keys: NDArray[np.uint64] | None = None
    """(N,) equal for documents that may share tokens; mapped. None unless `pack.share` is `group`: see `units`."""
    trained_spans: TrainedSpans | None = None
    """Of a sample of the documents, for the report; None if none was asked for."""
    pieces: Pieces = field(default_factory=lambda: np.zeros(0, PIECE))
    """(S,) the pieces of documents that are not packed as one whole piece: first of those that were split, in their
    order, then of those that share tokens, unit by unit (`units`); mapped. Decided by `outcomes.decide`."""

    def slices(self) -> Iterator[tuple[int, slice]]:
        """Yield (source, slice of doc ids), for at most `SLICE` documents of one source at a time."""
        for source, (first, last) in enumerate(zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True)):
            for begin in range(first, last, SLICE):
                yield source, slice(begin, min(begin + SLICE, last))

    def put(self, out: Store) -> None:
        """Put the columns for the tasks of the run, once all is decided."""
        columns = {name: numbers(getattr(self.documents, name)) for name in COLUMNS}
        if self.groups is not None:
            columns[GROUP] = self.groups
        schema = pa.schema([(name, column.type) for name, column in columns.items()])
        schema = schema.with_metadata({"origins": msgspec.json.encode(self.origins)})
        put_arrow(out, NAME, pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))


def put_arrow(store: Store, name: str, batch: pa.RecordBatch) -> FileRecord:
    """Put a record batch as a mappable Arrow file."""
    with store.draft() as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
        written = draft.size_and_hash
        store.put(draft, name)
    return FileRecord(name, written.bytes, written.hash)


def open_table(path: Path) -> tuple[Documents, Origins, pa.Array | None]:
    """Map what `Table.put` wrote: the documents, their parts, and their groups if some have one."""
    with pa.memory_map(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    # The file is closed, and stays mapped as long as something uses the memory of the batch.
    batch.validate()
    origins = msgspec.json.decode((batch.schema.metadata or {})[b"origins"], type=Origins)
    groups = batch.column(GROUP) if GROUP in batch.schema.names else None
    return Documents(*(view(batch.column(name)) for name in COLUMNS)), origins, groups


def scratch_documents(rows: int, scratch: Path) -> Documents:
    """Columns of zeros to be filled; of more than `SLICE` rows, in an anonymous file, which memory need not hold.

    Args:
        scratch: a folder for the anonymous file.
    """
    if rows <= SLICE:
        return Documents(*(np.zeros(rows, kind) for kind in COLUMNS.values()))
    # Each column begins at a multiple of 64 bytes, as Arrow wants it.
    widths = [-(-kind.itemsize * rows // 64) * 64 for kind in COLUMNS.values()]
    file = open_unnamed_file(scratch, sum(widths))
    data = np.memmap(file, np.uint8, "r+", shape=(sum(widths),))
    columns = zip(COLUMNS.values(), offsets_of(widths)[:-1].tolist(), strict=True)
    return Documents(*(data[begin : begin + rows * kind.itemsize].view(kind) for kind, begin in columns))
