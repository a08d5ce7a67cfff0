"""documents.parquet, read by row groups. Filtered reads would import pandas where it is installed."""

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from ...stages.arrays import view
from ..pack.documents import NAME
from .open import Finished


class PackedDocuments:
    """The packed documents of a finished dataset, in order of doc id.

    Raises:
        IntegrityError: the file is missing or damaged. All methods raise it, too.
    """

    def __init__(self, dataset: Finished) -> None:
        self._where = dataset.store.where(NAME)
        try:
            self._file = pq.ParquetFile(dataset.store.local(NAME))
            meta = self._file.metadata
            self.count: int = meta.num_rows
            self.groups: int = meta.num_row_groups
            column = self._file.schema_arrow.get_field_index("doc_id")
            found = [meta.row_group(group).column(column).statistics for group in range(self.groups)]
            self._lasts = np.array([one.max for one in found], dtype=np.int64)
            self._ids: tuple[int, list[NDArray[np.int64]]] = (-1, [])
        except (OSError, pa.ArrowException, AttributeError, ValueError) as error:
            raise self._damaged(error) from error

    def group(self, index: int, columns: list[str]) -> list[pa.RecordBatch]:
        """Some columns of a row group."""
        try:
            return list(self._file.read_row_group(index, columns=columns).to_batches())
        except (OSError, pa.ArrowException, ValueError, KeyError) as error:
            raise self._damaged(error) from error

    def between(self, first: int, count: int) -> NDArray[np.bool_]:
        """(count,) which documents from `first` on are packed."""
        flags = np.zeros(count, dtype=np.bool_)
        begin, end = np.searchsorted(self._lasts, [first, first + count - 1])
        for group in range(int(begin), min(int(end) + 1, self.groups)):
            if self._ids[0] != group:  # kept, because neighbours are asked for one after another
                self._ids = group, [view(batch.column(0)) for batch in self.group(group, ["doc_id"])]
            for ids in self._ids[1]:
                flags[ids[(ids >= first) & (ids < first + count)] - first] = True
        return flags

    def named(self, doc_ids: Collection[int]) -> dict[int, tuple[str, str, int]]:
        """Doc id → (id, source, tokens before any cut), for the doc ids that the file has."""
        wanted = np.unique(np.array(sorted(doc_ids), dtype=np.int64))
        out: dict[int, tuple[str, str, int]] = {}
        for group in np.unique(np.searchsorted(self._lasts, wanted)).tolist():
            if group == self.groups:
                continue
            for batch in self.group(group, ["doc_id", "id", "source", "tokens"]):
                for row in np.flatnonzero(np.isin(view(batch.column(0)), wanted)).tolist():
                    doc_id, id, source, tokens = (column[row].as_py() for column in batch.columns)
                    out[doc_id] = (id, source, tokens)
        return out

    def _damaged(self, error: Exception) -> IntegrityError:
        return IntegrityError(f"{self._where} is missing or damaged ({error}); packtrain verify --repair rebuilds it")
