"""Finds the example that an id means in documents.parquet, and reads as little of the file as possible."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.errors import InputError, IntegrityError
from ...schemas.escape import escape_line
from ..pack.documents import NAME
from .open import Finished

_ID = re.compile(r"([^/]+)/(.+):([0-9]{1,15})(?:/([0-9]{1,9}))?", re.DOTALL)
_END = re.compile(r"(.*?):?([0-9]{1,15})(/[0-9]{1,9})?", re.DOTALL)
"""Matches a line number after a name, which may be missing or incomplete."""
_WINDOWS = (64, 1 << 12, 1 << 20, 1 << 50)
"""Distances within which neighbours are searched, one after the other; row groups farther away are not read."""
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


class Documents:
    """The packed documents of a finished dataset.

    Raises:
        IntegrityError: documents.parquet is missing or damaged. Every method may raise it.
    """

    def __init__(self, dataset: Finished) -> None:
        self._dataset = dataset
        self._path = dataset.store.local(NAME)

    def by_id(self, id: str) -> PackedDocument | None:
        """The document with that id; None if there is none."""
        address = parse_id(id)
        if address is None:
            return None
        return next((one for one in self._read([("line", "==", address.line)]) if one.id == id), None)

    def by_number(self, doc_id: int) -> PackedDocument | None:
        """The document with that doc id; None if there is none."""
        return next(iter(self._read([("doc_id", "==", doc_id)])), None)

    def of_line(self, address: Address) -> list[PackedDocument]:
        """All packed documents of one input row."""
        return [one for one in self._read([("line", "==", address.line)]) if _same_file(one, address)]

    def refuse(self, id: str) -> InputError:
        """Make the error for an unknown id; it lists the nearest ids."""
        near = [escape_line(one) for one in self._nearest(id)]
        what = f"the nearest are {', '.join(near)}" if near else "documents.parquet lists the packed ones"
        return InputError(f"there is no example {escape_line(id)} in {self._dataset.store.url}; {what}")

    def _nearest(self, id: str) -> list[str]:
        ending = self._ending(id)
        return [*ending, *(one for one in self._around_place(id) if one not in ending)][:_SHOWN]

    def _ending(self, id: str) -> list[str]:
        """Find packed documents whose ids end alike: `meetings:1` may mean any file of the source `meetings`."""
        found = _END.fullmatch(id)
        if found is None:
            return []
        name, line = found[1].rpartition("/")[2], int(found[2])
        mine = [one for one in self._read([("line", "==", line)]) if one.id.endswith(f":{found[2]}{found[3] or ''}")]
        # A source or a file of that name is a better match than the line number alone.
        named = [one for one in mine if name and name in (one.source, one.file, one.file.rpartition("/")[2])]
        near = named or (mine if parse_id(id) is None else [])  # a complete id names its file
        return [one.id for one in sorted(near, key=lambda one: one.doc_id)[:_SHOWN]]

    def _around_place(self, id: str) -> list[str]:
        address = parse_id(id)
        labels = {f"{one['source']}/{one['file']}": one for one in self._dataset.manifest.plan["inputs"]}
        stem = f"{address.source}/{address.file}" if address else id
        if stem not in labels:
            close = difflib.get_close_matches(stem, labels, n=1, cutoff=0.3) or list(labels)[:1]
            stem = close[0]
        line = address.line if address else 1
        here = Address(labels[stem]["source"], labels[stem]["file"], line)
        for window in _WINDOWS:
            found = [one for one in self._within("line", line, window) if _same_file(one, here)]
            if len(found) >= _SHOWN or (found and window == _WINDOWS[-1]):
                return [one.id for one in sorted(found, key=lambda one: (abs(one.line - line), one.doc_id))[:_SHOWN]]
        return []

    def _within(self, column: str, place: int, window: int) -> list[PackedDocument]:
        return self._read([(column, ">=", max(place - window, 0)), (column, "<=", place + window)])

    def _read(self, filters: list[tuple[str, str, int]]) -> list[PackedDocument]:
        return list(self._rows(filters))

    def _rows(self, filters: list[tuple[str, str, int]]) -> Iterator[PackedDocument]:
        rows: list[dict[str, Any]]
        try:
            rows = pq.read_table(self._path, filters=filters).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise IntegrityError(
                f"{self._path} is missing or damaged; packtrain verify --repair rebuilds it"
            ) from error
        for row in rows:
            yield PackedDocument(**row)


def _same_file(document: PackedDocument, address: Address) -> bool:
    return (document.source, document.file) == (address.source, address.file)
