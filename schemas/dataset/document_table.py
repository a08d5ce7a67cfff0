"""The one reader of documents.parquet: where the examples of a dataset came from, and what became of them."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from ..arrays import numbers, strings
from ..fingerprint import hash_bytes
from ..rows import DOCUMENTS
from .files import MappedFile, require_columns

if TYPE_CHECKING:
    from pyarrow.parquet import RowGroupMetaData


class DocumentOrigin(NamedTuple):
    """Where a document came from."""

    id: str
    """Its example's id: `source/file:line`."""
    source: str
    file: str
    line: int
    """In the file, from 1."""


Conditions: TypeAlias = Mapping[str, Collection[Any]]
"""Column of the document table → values, of which a document must have one: `{"doc_id": [3, 250]}`."""


def read_documents(
    file: MappedFile, hash: str, columns: Sequence[str] | None = None, conditions: Conditions | None = None
) -> pa.Table:
    """The document table, in its order.

    Args:
        file: documents.parquet.
        hash: of its content, as the manifest says.
        columns: which to read; all by default.
        conditions: only documents that meet all of them. Row groups that cannot have such documents are not read.

    Raises:
        IntegrityError: the file is damaged, or has other columns.
    """
    # Here, because most readers of rows never need these two.
    import pyarrow.compute as pc
    from pyarrow.parquet import ParquetFile

    with file.reading():
        # Before pyarrow reads it, because some damage would make it end the process.
        if hash_bytes(memoryview(file.buffer)) != hash:
            raise ValueError("its content does not match the manifest")
        with ParquetFile(pa.BufferReader(file.buffer)) as parquet:
            require_columns(parquet.schema_arrow, DOCUMENTS)
            names = list(DOCUMENTS.names if columns is None else columns)
            if not conditions:
                return parquet.read(names)
            # Column → accepted values, in the ascending order that `_may_have` needs.
            accepted = {name: sorted(values) for name, values in conditions.items()}
            row_groups = [
                number
                for number in range(parquet.num_row_groups)
                if _may_have(parquet.metadata.row_group(number), accepted)
            ]
            # With the columns of the conditions, which the last line leaves out again if `names` lacks them.
            table = parquet.read_row_groups(row_groups, list({*names, *accepted}))
        # The table is in memory, so the file is not needed any more. Other documents are taken out here, and not by the
        # filters of pyarrow.dataset, which imports pandas where it is installed: 0.2 s.
        for name, values in accepted.items():
            is_text = DOCUMENTS.field(name).type == pa.string()
            value_set = strings(values) if is_text else numbers(np.array(values, np.int64))
            table = table.filter(pc.is_in(table[name], value_set))
        return table.select(names)


def _may_have(row_group: "RowGroupMetaData", accepted: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a row group may have documents with accepted values, by the lowest and the highest value of each of its
    columns, which the file states.

    With doc ids from 100 to 199, it may have one of the documents 3 and 150, but none of 3 and 250.

    Args:
        accepted: column → values in ascending order.
    """
    for name, values in accepted.items():
        statistics = row_group.column(DOCUMENTS.get_field_index(name)).statistics
        if statistics is None or not statistics.has_min_max:
            continue
        place = bisect_left(values, statistics.min)  # of the first value that is not too low
        if place == len(values) or values[place] > statistics.max:
            return False
    return True


def origins_of(table: pa.Table) -> dict[int, DocumentOrigin]:
    """Document id → where it came from, of a document table that has these columns."""
    columns = [table[name].to_pylist() for name in DocumentOrigin._fields]
    origins = map(DocumentOrigin._make, zip(*columns, strict=True))
    return dict(zip(table["doc_id"].to_pylist(), origins, strict=True))
