"""Writes documents.parquet: where every example came from, and what became of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...schemas.arrays import numbers, strings, view
from ...schemas.dataset.manifest import FileRecord
from ...schemas.dataset.names import DOCUMENT_TABLE
from ...schemas.rows import DOCUMENTS, PACKED_OUTCOME
from ...schemas.tables.reasons import OUTCOMES
from ..store.open_store import Store
from .table import HELD_OUT, NAME, Documents, Origins, open_table

ROW_GROUP = 1 << 15
"""Documents of a row group: a reader that looks for some opens only their row groups, a few MB each."""


@dataclass(frozen=True, slots=True)
class DocumentsTask:
    """Write documents.parquet from the run's table of documents, one row group in memory at a time."""

    out: Store
    sources: tuple[str, ...]
    """The names of the sources, in order."""

    def __str__(self) -> str:
        return DOCUMENT_TABLE

    def run(self) -> FileRecord:
        """Write the table, and return the record of its file."""
        with self.out.draft() as draft:
            with pq.ParquetWriter(pa.PythonFile(draft.file, mode="w"), DOCUMENTS, compression="zstd") as writer:
                for row_group in self._row_groups():
                    writer.write_table(row_group, ROW_GROUP)
            written = draft.size_and_hash
            self.out.put(draft, DOCUMENT_TABLE)
        return FileRecord(DOCUMENT_TABLE, written.bytes, written.hash)

    def _row_groups(self) -> Iterator[pa.Table]:
        """Yield the rows of all documents, `ROW_GROUP` at a time."""
        documents, origins, groups = open_table(self.out.local(NAME))  # `NAME` is the file of the table's columns
        source_names = strings(self.sources)
        for first in range(0, len(documents), ROW_GROUP):
            batch = documents.at(slice(first, first + ROW_GROUP))
            part_of_each, files, lines = _file_places(origins, batch.line, first)
            sources = source_names.take(numbers(np.array(origins.sources, np.int64)[part_of_each]))
            if groups is None:  # no document of the run has one
                group_texts = strings([""] * len(batch))
            else:
                group_texts = groups.slice(first, len(batch)).cast(pa.string())
            packed = batch.copies > 0
            columns = {
                "doc_id": numbers(np.arange(first, first + len(batch))),
                "id": example_ids(sources, files, lines, numbers(batch.sub)),
                "source": sources,
                "file": files,
                "line": lines,
                "sub": numbers(batch.sub),
                "group": group_texts,
                "digest": _digests(batch),
                "tokens": numbers(batch.length),
                # Of a document that is left out, the table says what the limits would keep; the file says 0.
                "tokens_kept": numbers(np.where(packed, batch.kept, 0)),
                "tokens_trained": numbers(np.where(packed, batch.labels, 0)),
                "kept_digest": numbers(np.where(packed, batch.kept_digest, 0)),
                "trained_digest": numbers(np.where(packed, batch.trained_digest, 0)),
                "outcome": strings([PACKED_OUTCOME, *OUTCOMES[1:]]).take(numbers(batch.outcome)),
                "split": strings(["train", "holdout"]).take(numbers(batch.has(HELD_OUT).astype(np.int8))),
                "copies": numbers(batch.copies.astype(np.int32)),
            }
            yield pa.Table.from_arrays([columns[name] for name in DOCUMENTS.names], schema=DOCUMENTS)


def _file_places(origins: Origins, rows: NDArray[np.int32], first: int) -> tuple[NDArray[np.int64], pa.Array, pa.Array]:
    """(n,) the part of each of n neighbouring documents, the label of its file, and its line there, from 1.

    Args:
        rows: (n,) the row of its block that each document was made of.
        first: the doc id of the first document.
    """
    # Of parts that start at 0, 40 and 58, the documents 56 to 59 are of the parts 1 1 2 2.
    part_of_each = np.searchsorted(origins.starts, np.arange(first, first + len(rows)), side="right") - 1
    files: list[pa.Array] = []
    lines: list[NDArray[np.int64]] = []
    for part in np.unique(part_of_each).tolist():
        begin, end = np.searchsorted(part_of_each, [part, part + 1]).tolist()  # of part 2: from 2 up to 4
        file_numbers, lines_of_part = origins.lines[part].find_all(rows[begin:end])
        files.append(strings(origins.lines[part].files).take(numbers(file_numbers)))
        lines.append(lines_of_part)
    return part_of_each, pa.concat_arrays(files), numbers(np.concatenate(lines))


def _digests(documents: Documents) -> pa.Array:
    """(N,) the digests, of 16 bytes each, from their halves."""
    halves = np.stack([documents.first_digest, documents.second_digest], axis=1)
    return pa.Array.from_buffers(pa.binary(16), len(documents), [None, pa.py_buffer(halves)])


def example_ids(sources: pa.Array, files: pa.Array, lines: pa.Array, subs: pa.Array) -> pa.Array:
    """(N,) the example ids: `source/file:line`, plus `/number` if a row gave several examples."""
    # Arrow scalars, because pyarrow imports pandas (if installed) to convert Python's.
    colon, slash = strings([":", "/"])
    import pyarrow.compute as pc  # imported here, because other tasks do not need it

    stems = pc.binary_join_element_wise(sources, files, slash)
    places = pc.binary_join_element_wise(stems, pc.cast(lines, pa.string()), colon)
    numbered = pc.binary_join_element_wise(places, pc.cast(subs, pa.string()), slash)
    is_only_one = numbers(view(subs) < 0)  # -1 says that its row gave no other example
    return pc.if_else(is_only_one, places, numbered)
