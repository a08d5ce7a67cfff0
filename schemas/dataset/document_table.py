"""The one reader of documents.parquet: where the examples of a dataset came from, and what became of them."""

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..arrays import numbers
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
    file: MappedFile, hash: str, columns: Sequence[str] | None = None, doc_ids: Collection[int] | None = None
) -> pa.Table:
    """The document table, in its order.

    Args:
        file: documents.parquet.
        hash: of its content, as the manifest says. Compared first, because pyarrow ends the process over some damage.
        columns: which to read; all by default.
        doc_ids: only documents with these ids, as far as the table has them. Row groups with none of them are not read.

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
            if doc_ids is None:
                return parquet.read(names)
            ids = np.array(sorted(doc_ids), np.int64)
            table = parquet.read_row_groups(list(_groups_with(parquet, ids)), {*names, "doc_id"})
        # Not by the filters of pyarrow.dataset, which imports pandas where it is installed: 0.2 s.
        return table.filter(pc.is_in(table["doc_id"], numbers(ids))).select(names)


def _groups_with(parquet: "ParquetFile", doc_ids: NDArray[np.int64]) -> Iterator[int]:
    """The row groups that may have some of these documents, by the lowest and highest id that the file notes of each.

    Of row groups with ids 0 to 99, 100 to 199 and 200 to 299, documents 3 and 250 need the first and the third.
    """
    place = parquet.schema_arrow.get_field_index("doc_id")
    for group in range(parquet.num_row_groups):
        statistics = parquet.metadata.row_group(group).column(place).statistics
        if (
            statistics is None
            or not statistics.has_min_max
            or ((doc_ids >= statistics.min) & (doc_ids <= statistics.max)).any()
        ):
            yield group


def origins_of(table: pa.Table) -> dict[int, DocumentOrigin]:
    """Document id → where it came from, of a document table that has these columns."""
    columns = [table[name].to_pylist() for name in DocumentOrigin._fields]
    origins = map(DocumentOrigin._make, zip(*columns, strict=True))
    return dict(zip(table["doc_id"].to_pylist(), origins, strict=True))
