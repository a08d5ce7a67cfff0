"""documents.parquet: which example, source, file and line every packed document came from."""

from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.manifest import FileRecord
from ...schemas.rows import DOCUMENTS
from ...stages.arrays import numbers, strings, view
from ..encode.parts import EncodedPart
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
    file: str
    first_line: int


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
            group: list[pa.Table] = []
            doc_id = waiting = 0
            for part in task.parts:
                for batch in EncodedPart(part.part.path(task.cache)).batches:
                    here = packed.slice(doc_id, batch.num_rows)
                    table = _documents(batch, part, doc_id, pa.concat_arrays(here.chunks))
                    group.append(table)
                    waiting += table.num_rows
                    doc_id += batch.num_rows
                    if waiting >= GROUP_ROWS:
                        _write(writer, group)
                        group, waiting = [], 0
            _write(writer, group)
        put = draft.result
        store.put(draft, NAME, replace_damaged=True)
    record = FileRecord(NAME, put.bytes, put.hash, put.sha256)
    store.replace_bytes(RECORD, seal(msgspec.json.encode(record)))
    return record


def _write(writer: pq.ParquetWriter, group: list[pa.Table]) -> None:
    """Write several batches as one row group, with shared dictionaries for sources and files."""
    table = pa.concat_tables(group).unify_dictionaries() if group else None
    if table is not None and table.num_rows:
        writer.write_table(table)


def example_ids(source: str, file: str, lines: pa.Array, subs: pa.Array) -> pa.Array:
    """Return the example ids: `source/file:line`, plus `/number` if a row gave several examples."""
    # Arrow scalars, because pyarrow imports pandas (if installed) to convert Python's.
    stem, colon, slash = strings([f"{source}/{file}", ":", "/"])
    import pyarrow.compute as pc  # imported here, because other tasks do not need it

    place = pc.binary_join_element_wise(stem, pc.cast(lines, pa.string()), colon)
    numbered = pc.binary_join_element_wise(place, pc.cast(subs, pa.string()), slash)
    return pc.if_else(numbers(view(subs) < 0), place, numbered)


def _documents(batch: pa.RecordBatch, part: DocumentsPart, doc_id: int, packed: pa.Array) -> pa.Table:
    lines = numbers(view(batch.column("line")).astype(np.int64) + part.first_line + 1)
    rows = batch.num_rows
    columns = [
        numbers(np.arange(doc_id, doc_id + rows)),
        example_ids(part.source, part.file, lines, batch.column("sub")),
        pa.DictionaryArray.from_arrays(numbers(np.zeros(rows, np.int32)), strings([part.source])),
        pa.DictionaryArray.from_arrays(numbers(np.zeros(rows, np.int32)), strings([part.file])),
        lines,
        batch.column("group"),
        numbers(np.diff(view(batch.column("input_ids").offsets))),
    ]
    return pa.Table.from_arrays(columns, schema=DOCUMENTS).filter(packed)
