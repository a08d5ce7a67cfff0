"""documents.parquet: which example, source, file and line every packed document came from."""

from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.manifest import FileRecord
from ...schemas.ragged import offsets_of
from ...schemas.rows import DOCUMENTS
from ...stages.arrays import booleans, numbers, strings, view
from ..encode.parts import EncodedPart
from ..inputs.blocks import FileLines
from ..store.checksummed import seal
from ..store.open import Store, StoredFile

NAME = "documents.parquet"
RECORD = "_run/documents.json"
GROUP_ROWS = 1 << 16
"""Documents per row group; small groups have a large overhead."""


@dataclass(frozen=True, slots=True)
class DocumentsPart:
    """The fields of a part that this task needs."""

    part: StoredFile
    source: str
    lines: FileLines


@dataclass(frozen=True, slots=True)
class DocumentsTask:
    """Write the table of packed documents."""

    out: Store
    cache: Store
    parts: tuple[DocumentsPart, ...]
    packed: str
    """Name of the layout file with one flag per document, which says whether it was packed."""

    @property
    def destination(self) -> Store:
        """The store for the task's record."""
        return self.out

    @property
    def record(self) -> str:
        """Name of the table's record."""
        return RECORD

    def run(self) -> FileRecord:
        """See `write_documents`."""
        return write_documents(self)

    def __str__(self) -> str:
        return NAME


def write_documents(task: DocumentsTask) -> FileRecord:
    """Run the task, with one part in memory at a time."""
    store = task.out
    with pa.memory_map(str(store.local(task.packed))) as source:
        packed = pa.ipc.open_file(source).read_all().column(0)
    with store.draft("", sha256=True) as draft:
        sink = pa.PythonFile(draft.file, mode="w")
        with pq.ParquetWriter(sink, DOCUMENTS, compression="zstd") as writer:
            groups = _RowGroups(writer)
            doc_id = 0
            for part in task.parts:
                file = -1
                for batch in EncodedPart(part.part.path(task.cache)).batches:
                    here = pa.concat_arrays(packed.slice(doc_id, batch.num_rows).chunks)
                    file = groups.add(batch, part, doc_id, here, file)
                    doc_id += batch.num_rows
            groups.write()
        put = draft.result
        store.put(draft, NAME, replace_damaged=True)
    record = FileRecord(NAME, put.bytes, put.hash, put.sha256)
    store.replace_bytes(RECORD, seal(msgspec.json.encode(record), RECORD))
    return record


class _RowGroups:
    """Collects rows of several parts, and writes them as one row group, with shared dictionaries for sources and files.

    A group ends at the end of a batch; in a part that several files share, at the end of a file, as if each file had a
    part of its own.
    """

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer
        self._group: list[pa.Table] = []
        self._waiting = 0

    def add(self, batch: pa.RecordBatch, part: DocumentsPart, doc_id: int, packed: pa.Array, file: int) -> int:
        """Add the packed documents of a batch.

        Args:
            doc_id: of the first document.
            packed: (N,) flags of the documents.
            file: of the last document before the batch, -1 if it is the part's first.

        Returns:
            The file of the last document.
        """
        index, _ = part.lines.find_all(view(batch.column("line")))
        shared = len(part.lines.files) > 1
        ends = np.flatnonzero(np.diff(index, prepend=file)) if shared else np.zeros(1, np.int64)
        counts = offsets_of(booleans(packed))
        first = 0
        while first < batch.num_rows:
            at = np.searchsorted(counts[ends], GROUP_ROWS - self._waiting + counts[first])
            last = int(ends[at]) if at < len(ends) else batch.num_rows
            if last > first:
                here = (batch.slice(first, last - first), part, doc_id + first, packed.slice(first, last - first))
                self._group.append(_documents(*here))
                self._waiting += int(counts[last] - counts[first])
            if at < len(ends):
                self.write()
                ends = ends[at + 1 :]
            first = last
        return int(index[-1]) if len(index) else file

    def write(self) -> None:
        """Write the group."""
        table = pa.concat_tables(self._group).unify_dictionaries() if self._group else None
        if table is not None and table.num_rows:
            self._writer.write_table(table)
        self._group, self._waiting = [], 0


def example_ids(stems: pa.Array, lines: pa.Array, subs: pa.Array) -> pa.Array:
    """Return the example ids: `source/file:line`, plus `/number` if a row gave several examples.

    Args:
        stems: `source/file` of each, or one for all.
    """
    # Arrow scalars, because pyarrow imports pandas (if installed) to convert Python's.
    colon, slash = strings([":", "/"])
    stem = stems[0] if len(stems) == 1 else stems
    import pyarrow.compute as pc  # imported here, because other tasks do not need it

    place = pc.binary_join_element_wise(stem, pc.cast(lines, pa.string()), colon)
    numbered = pc.binary_join_element_wise(place, pc.cast(subs, pa.string()), slash)
    return pc.if_else(numbers(view(subs) < 0), place, numbered)


def _documents(batch: pa.RecordBatch, part: DocumentsPart, doc_id: int, packed: pa.Array) -> pa.Table:
    index, lines = part.lines.find_all(view(batch.column("line")))
    taken = np.unique(index[booleans(packed)])
    if not len(taken):
        return DOCUMENTS.empty_table()
    files = [part.lines.files[file] for file in taken.tolist()]
    place = np.minimum(np.searchsorted(taken, index), len(taken) - 1)  # documents of other files are filtered out below
    stems = strings([f"{part.source}/{file}" for file in files])
    rows = batch.num_rows
    columns = [
        numbers(np.arange(doc_id, doc_id + rows)),
        example_ids(stems if len(files) == 1 else stems.take(numbers(place)), numbers(lines), batch.column("sub")),
        pa.DictionaryArray.from_arrays(numbers(np.zeros(rows, np.int32)), strings([part.source])),
        pa.DictionaryArray.from_arrays(numbers(place.astype(np.int32)), strings(files)),
        numbers(lines),
        batch.column("group"),
        numbers(np.diff(view(batch.column("input_ids").offsets))),
    ]
    return pa.Table.from_arrays(columns, schema=DOCUMENTS).filter(packed)
