"""The one reader of documents.parquet: where the examples of a dataset came from, and what became of them."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..arrays import numbers, strings
from ..fingerprint import hash_bytes
from ..rows import DOCUMENTS
from .files import MappedFile, require_columns

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile


class DocumentOrigin(NamedTuple):
    """Where a document came from."""

    id: str
    """Its example's id: `source/file:line`."""
    source: str
    file: str
    line: int
    """In the file, from 1."""


def read_documents(
    file: MappedFile,
    hash: str,
    columns: Sequence[str] | None = None,
    doc_ids: Collection[int] | None = None,
    values: Mapping[str, str | int] | None = None,
) -> pa.Table:
    """The document table, in its order.

    Args:
        file: documents.parquet.
        hash: of its content, as the manifest says. Compared first, because pyarrow ends the process over some damage.
        columns: which to read; all by default.
        doc_ids: only documents with these ids, as far as the table has them. Row groups with none of them are not read.
        values: column → the value that it must have. Row groups without it are not read.

    Raises:
        IntegrityError: the file is damaged, or has other columns.
    """
    import pyarrow.compute as pc  # here, because most readers of rows never need these two
    from pyarrow.parquet import ParquetFile

    with file.reading():
        if hash_bytes(memoryview(file.buffer)) != hash:
            raise ValueError("its content does not match the manifest")
        with ParquetFile(pa.BufferReader(file.buffer)) as parquet:
            require_columns(parquet.schema_arrow, DOCUMENTS)
            names = list(DOCUMENTS.names if columns is None else columns)
            if doc_ids is None and values is None:
                return parquet.read(names)
            # Column → the values of which a row must have one.
            conditions: dict[str, pa.Array] = {}
            if doc_ids is not None:
                conditions["doc_id"] = numbers(np.array(sorted(doc_ids), np.int64))
            for name, value in (values or {}).items():
                conditions[name] = strings([value]) if isinstance(value, str) else numbers(np.array([value], np.int64))
            table = parquet.read_row_groups(list(_groups_with(parquet, conditions)), list({*names, *conditions}))
        # Not by the filters of pyarrow.dataset, which imports pandas where it is installed: 0.2 s.
        for name, accepted in conditions.items():
            table = table.filter(pc.is_in(table[name], accepted))
        return table.select(names)


def _groups_with(parquet: "ParquetFile", conditions: Mapping[str, pa.Array]) -> Iterator[int]:
    """The row groups that may have rows with one of the values in each column, by the lowest and highest value that the
    file notes of each column of a row group.

    Of row groups with ids 0 to 99, 100 to 199 and 200 to 299, documents 3 and 250 need the first and the third.
    """
    places = {name: parquet.schema_arrow.get_field_index(name) for name in conditions}
    values = {name: accepted.to_pylist() for name, accepted in conditions.items()}
    for group in range(parquet.num_row_groups):
        row_group = parquet.metadata.row_group(group)
        if all(_may_have(row_group.column(place).statistics, values[name]) for name, place in places.items()):
            yield group


def _may_have(statistics: Any, values: Sequence[Any]) -> bool:
    """Whether a column of a row group may have one of the values, which are in ascending order."""
    if statistics is None or not statistics.has_min_max:
        return True
    place = bisect_left(values, statistics.min)  # the first value that is not too low
    return place < len(values) and bool(values[place] <= statistics.max)


def origins_of(table: pa.Table) -> dict[int, DocumentOrigin]:
    """Document id → where it came from, of a document table that has these columns."""
    columns = [table[name].to_pylist() for name in DocumentOrigin._fields]
    origins = map(DocumentOrigin._make, zip(*columns, strict=True))
    return dict(zip(table["doc_id"].to_pylist(), origins, strict=True))
