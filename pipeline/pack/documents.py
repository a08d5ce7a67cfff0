"""documents.parquet: which example, source, file and line every packed document came from."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.arrays import numbers, strings, view
from ...schemas.dataset.manifest import FileRecord
from ...schemas.dataset.names import DOCUMENT_TABLE
from ...schemas.rows import DOCUMENTS
from ..encode.parts import EncodedPart
from ..store.open_store import Store
from .table import NAME as TABLE
from .table import open_table


@dataclass(frozen=True, slots=True)
class DocumentsTask:
    """Write the table of packed documents, with a row group for each segment that has some."""

    out: Store
    cache: Store
    sources: tuple[str, ...]

    def __str__(self) -> str:
        return DOCUMENT_TABLE

    def run(self) -> FileRecord:
        """Write it, with one part in memory at a time."""
        with self.out.draft() as draft:
            with pq.ParquetWriter(pa.PythonFile(draft.file, mode="w"), DOCUMENTS, compression="zstd") as writer:
                for group in self._groups():
                    writer.write_table(group)
            written = draft.size_and_hash
            self.out.put(draft, DOCUMENT_TABLE)
        return FileRecord(DOCUMENT_TABLE, written.bytes, written.hash)

    def _groups(self) -> Iterator[pa.Table]:
        """Yield the packed documents of each segment."""
        documents, origins = open_table(self.out.local(TABLE))
        first = 0
        for stored, owner, lines in zip(origins.parts, origins.sources, origins.lines, strict=True):
            for batch in EncodedPart(self.cache.local(stored)).batches:
                rows = np.flatnonzero(documents.copies[first : first + batch.num_rows])
                doc_ids, name = rows + first, self.sources[owner]
                first += batch.num_rows
                if not len(rows):
                    continue
                index, line = lines.find_all(documents.line[doc_ids])
                file = strings(lines.files).take(numbers(index))
                source = strings([name]).take(numbers(np.zeros(len(rows), np.int32)))
                sub, group = numbers(documents.sub[doc_ids]), batch.column("group").take(numbers(rows))
                ids, tokens = example_ids(source, file, numbers(line), sub), numbers(documents.length[doc_ids])
                columns = [numbers(doc_ids), ids, source, file, numbers(line), group, tokens]
                yield pa.Table.from_arrays(columns, schema=DOCUMENTS)


def example_ids(sources: pa.Array, files: pa.Array, lines: pa.Array, subs: pa.Array) -> pa.Array:
    """Return the example ids: `source/file:line`, plus `/number` if a row gave several examples."""
    # Arrow scalars, because pyarrow imports pandas (if installed) to convert Python's.
    colon, slash = strings([":", "/"])
    import pyarrow.compute as pc  # imported here, because other tasks do not need it

    stems = pc.binary_join_element_wise(sources, files, slash)
    places = pc.binary_join_element_wise(stems, pc.cast(lines, pa.string()), colon)
    numbered = pc.binary_join_element_wise(places, pc.cast(subs, pa.string()), slash)
    return pc.if_else(numbers(view(subs) < 0), places, numbered)
