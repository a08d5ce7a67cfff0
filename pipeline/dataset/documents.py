"""The packed documents of a dataset: documents.parquet, of which only the row groups are read that are asked for."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.errors import IntegrityError
from ..pack.documents import NAME
from .open_dataset import Finished

_ID = re.compile(r"([^/]+)/(.+):([0-9]{1,15})(?:/([0-9]{1,9}))?", re.DOTALL)


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
        from pyarrow import dataset as ds  # imports pandas where it is installed

        self._dataset = dataset
        with self._reading():
            self._data = ds.dataset(dataset.store.local(NAME), format="parquet")

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
        wanted = pa.array(sorted(doc_ids), pa.int64())
        with self._reading():
            table = self._data.to_table(["doc_id", "id", "source"], filter=pc.field("doc_id").isin(wanted))
            return {row["doc_id"]: (row["id"], row["source"]) for row in table.to_pylist()}

    def _between(self, column: str, low: int, high: int) -> list[PackedDocument]:
        """The documents with a value from `low` to `high`. Only the row groups that may have some are read."""
        with self._reading():
            wanted = (pc.field(column) >= low) & (pc.field(column) <= high)
            return [PackedDocument(**row) for row in self._data.to_table(filter=wanted).to_pylist()]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException, ValueError, TypeError) as error:
            where = self._dataset.store.where(NAME)
            raise IntegrityError(
                f"{where} is missing or damaged ({error}); packtrain verify --repair rebuilds it"
            ) from error
