"""documents.parquet: which example, source, file and line every packed document came from."""

from collections.abc import Iterator
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
from ..store.open_store import Store
from .table import NAME as TABLE
from .table import open_table

NAME = "documents.parquet"
RECORD = "_run/documents.json"
GROUP_ROWS = 1 << 16
"""Documents per row group; small groups have a large overhead."""


@dataclass(frozen=True, slots=True)
class DocumentsTask:
    """Write the table of packed documents, in row groups of `GROUP_ROWS`."""

    out: Store
    cache: Store
    sources: tuple[str, ...]

    @property
    def record(self) -> str:
        """Name of the table's record."""
        return RECORD

    def __str__(self) -> str:
        return NAME

    def run(self) -> FileRecord:
        """Write it, with one part and one row group in memory at a time."""
        with self.out.draft("") as draft:
            with pq.ParquetWriter(pa.PythonFile(draft.file, mode="w"), DOCUMENTS, compression="zstd") as writer:
                for group in self._groups():
                    writer.write_table(_encoded(group))
            put = draft.result
            self.out.put(draft, NAME, replace_damaged=True)
        record = FileRecord(NAME, put.bytes, put.hash)
        self.out.replace_bytes(RECORD, seal(msgspec.json.encode(record), RECORD))
        return record

    def _groups(self) -> Iterator[pa.Table]:
        waiting: list[pa.Table] = []
        rows = 0
        for some in self._parts():
            waiting.append(some)
            rows += some.num_rows
            while rows >= GROUP_ROWS:
                table = pa.concat_tables(waiting)
                yield table.slice(0, GROUP_ROWS)
                waiting, rows = [table.slice(GROUP_ROWS)], rows - GROUP_ROWS
        if rows:
            yield pa.concat_tables(waiting)

    def _parts(self) -> Iterator[pa.Table]:
        """Yield the packed documents of each segment."""
        documents, origins = open_table(self.out.local(TABLE))
        first = 0
        for stored, source, lines in zip(origins.parts, origins.sources, origins.lines, strict=True):
            for batch in EncodedPart(stored.path(self.cache)).batches:
                rows = np.flatnonzero(documents.copies[first : first + batch.num_rows])
                doc_ids, name = rows + first, self.sources[source]
                first += batch.num_rows
                if not len(rows):
                    continue
                index, line = lines.find_all(view(batch.column("line"))[rows])
                taken, place = np.unique(index, return_inverse=True)
                files = [lines.files[file] for file in taken.tolist()]
                stems, which = strings([f"{name}/{file}" for file in files]), numbers(place.astype(np.int32))
                sub, group = (batch.column(column).take(numbers(rows)) for column in ("sub", "group"))
                columns = [
                    numbers(doc_ids),
                    example_ids(stems if len(files) == 1 else stems.take(which), numbers(line), sub),
                    pa.DictionaryArray.from_arrays(numbers(np.zeros(len(rows), np.int32)), strings([name])),
                    pa.DictionaryArray.from_arrays(which, strings(files)),
                    numbers(line),
                    group,
                    numbers(documents.length[doc_ids]),
                ]
                yield pa.Table.from_arrays(columns, schema=DOCUMENTS)


def _encoded(group: pa.Table) -> pa.Table:
    """The group with dictionaries of its own, which do not depend on how its rows were collected."""
    for name in ("source", "file"):
        index = group.schema.get_field_index(name)
        column = group.column(index).cast(pa.string()).combine_chunks().dictionary_encode()
        group = group.set_column(index, group.schema.field(index), column)
    return group


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
