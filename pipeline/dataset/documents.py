"""The packed documents of a dataset: documents.parquet, of which only the row groups are read that are asked for."""

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.errors import InputError, IntegrityError
from ...schemas.escape import escape_line
from ...stages.arrays import view
from ..pack.documents import NAME
from .open import Finished

_ID = re.compile(r"([^/]+)/(.+):([0-9]{1,15})(?:/([0-9]{1,9}))?", re.DOTALL)
_LINE = re.compile(r":?([0-9]{1,15})(?:/[0-9]{1,9})?$")
"""Matches the end of an id whose beginning may be incomplete."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of an example id."""

    source: str
    file: str
    """The file's label."""
    line: int
    """Line in the file, counted from 1."""
    sub: int = -1
    """Which example of the row; -1 if the row gives only one."""

    @property
    def id(self) -> str:
        """The id as in documents.parquet."""
        return f"{self.source}/{self.file}:{self.line}" + (f"/{self.sub}" if self.sub >= 0 else "")


@dataclass(frozen=True, slots=True)
class PackedDocument:
    """A packed document: one row of documents.parquet."""

    doc_id: int
    id: str
    source: str
    file: str
    line: int
    group: str
    tokens: int


def parse_id(text: str) -> Address | None:
    """Split an id into its parts; None if the text is not an id."""
    found = _ID.fullmatch(text)
    return Address(found[1], found[2], int(found[3]), int(found[4] or -1)) if found else None


class PackedDocuments:
    """The packed documents of a finished dataset, in order of doc id.

    Raises:
        IntegrityError: the file is missing or damaged. All methods raise it, too.
    """

    def __init__(self, dataset: Finished) -> None:
        self._dataset = dataset
        try:
            self._file = pq.ParquetFile(dataset.store.local(NAME))
            self._lasts = [last for _, last in self._bounds("doc_id")]
        except (OSError, pa.ArrowException, AttributeError, ValueError) as error:
            raise self._damaged(error) from error

    def by_id(self, id: str) -> PackedDocument | None:
        """The document with that id; None if there is none."""
        address = parse_id(id)
        found = self._between("line", address.line, address.line) if address is not None else []
        return next((one for one in found if one.id == id), None)

    def by_number(self, doc_id: int) -> PackedDocument | None:
        """The document with that doc id; None if there is none."""
        return next(iter(self._between("doc_id", doc_id, doc_id)), None)

    def of_line(self, address: Address) -> list[PackedDocument]:
        """All packed documents of one input row."""
        found = self._between("line", address.line, address.line)
        return [one for one in found if (one.source, one.file) == (address.source, address.file)]

    def named(self, doc_ids: Collection[int]) -> dict[int, tuple[str, str]]:
        """Doc id → (id, source), for the doc ids that the file has."""
        wanted = np.unique(np.array(sorted(doc_ids), dtype=np.int64))
        out: dict[int, tuple[str, str]] = {}
        for group in np.unique(np.searchsorted(self._lasts, wanted)).tolist():
            if group == len(self._lasts):
                continue
            for batch in self._group(group, ["doc_id", "id", "source"]):
                for row in np.flatnonzero(np.isin(view(batch.column(0)), wanted)).tolist():
                    doc_id, id, source = (column[row].as_py() for column in batch.columns)
                    out[doc_id] = (id, source)
        return out

    def refuse(self, id: str) -> InputError:
        """Make the error for an unknown id; it lists the ids of about this line that are spelt most alike."""
        found = _LINE.search(id)
        line = int(found[1]) if found is not None else 1
        known = [one.id for one in self._between("line", line - 2, line + 2)]
        near = map(escape_line, difflib.get_close_matches(id, known, _SHOWN, cutoff=0.3))
        what = f"the nearest are {shown}" if (shown := ", ".join(near)) else "documents.parquet lists the packed ones"
        return InputError(f"there is no example {escape_line(id)} in {self._dataset.store.url}; {what}")

    def _between(self, column: str, low: int, high: int) -> list[PackedDocument]:
        """The documents with a value from `low` to `high`."""
        out = []
        for group, (first, last) in enumerate(self._bounds(column)):
            if first <= high and last >= low:
                for batch in self._group(group):
                    values = view(batch.column(column))
                    rows = batch.filter(pa.array((values >= low) & (values <= high)))
                    out += [PackedDocument(**row) for row in rows.to_pylist()]
        return out

    def _bounds(self, column: str) -> list[tuple[int, int]]:
        """The least and the greatest value of each row group."""
        meta, index = self._file.metadata, self._file.schema_arrow.get_field_index(column)
        found = [meta.row_group(group).column(index).statistics for group in range(meta.num_row_groups)]
        return [(one.min, one.max) for one in found]

    def _group(self, index: int, columns: list[str] | None = None) -> list[pa.RecordBatch]:
        try:
            return list(self._file.read_row_group(index, columns=columns).to_batches())
        except (OSError, pa.ArrowException, ValueError, KeyError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> IntegrityError:
        where = self._dataset.store.where(NAME)
        return IntegrityError(f"{where} is missing or damaged ({error}); packtrain verify --repair rebuilds it")
