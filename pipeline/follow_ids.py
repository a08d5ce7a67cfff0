"""Which example an id means: documents.parquet, read only where it has to be."""

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..schemas.errors import InputError, IntegrityError
from ..schemas.escape import escape_line
from .documents import NAME
from .reader import Finished

_ID = re.compile(r"([^/]+)/(.+):([0-9]{1,15})(?:/([0-9]{1,9}))?", re.DOTALL)
_END = re.compile(r"(.*?):?([0-9]{1,15})(/[0-9]{1,9})?", re.DOTALL)
"""A name that may be missing or incomplete, and a line."""
_WINDOWS = (64, 1 << 12, 1 << 20, 1 << 50)
"""How far around a place neighbours are looked for: row groups that lie beyond are not read."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Address:
    """What an id says."""

    source: str
    file: str
    """The file's label."""
    line: int
    """From 1."""
    sub: int = -1
    """Which example of the row, or -1 where it is one."""

    @property
    def id(self) -> str:
        """As documents.parquet writes it."""
        return f"{self.source}/{self.file}:{self.line}" + (f"/{self.sub}" if self.sub >= 0 else "")


@dataclass(frozen=True, slots=True)
class Document:
    """A packed document: one row of documents.parquet."""

    doc_id: int
    id: str
    source: str
    file: str
    line: int
    group: str
    tokens: int


def parse_id(text: str) -> Address | None:
    """An id taken apart; None for what is none."""
    found = _ID.fullmatch(text)
    return Address(found[1], found[2], int(found[3]), int(found[4] or -1)) if found else None


class Documents:
    """The packed documents of a finished dataset.

    Raises:
        IntegrityError: from every method: documents.parquet is missing or damaged.
    """

    def __init__(self, dataset: Finished) -> None:
        self._dataset = dataset
        self._path = dataset.store.local(NAME)

    def by_id(self, id: str) -> Document | None:
        """The document of that id."""
        address = parse_id(id)
        if address is None:
            return None
        return next((one for one in self._read([("line", "==", address.line)]) if one.id == id), None)

    def by_number(self, doc_id: int) -> Document | None:
        """The document of that doc id."""
        return next(iter(self._read([("doc_id", "==", doc_id)])), None)

    def of_line(self, address: Address) -> list[Document]:
        """All packed documents of one row."""
        return [one for one in self._read([("line", "==", address.line)]) if _same_file(one, address)]

    def around_line(self, address: Address) -> tuple[Document | None, Document | None]:
        """The packed documents of a file that stand next to a line: at or before it, and behind it."""
        return self._around("line", address.line, lambda one: one.line, lambda one: _same_file(one, address))

    def around_number(self, doc_id: int) -> tuple[Document | None, Document | None]:
        """The packed documents next to a doc id: at or before it, and behind it."""
        return self._around("doc_id", doc_id, lambda one: one.doc_id, lambda _: True)

    def refuse(self, id: str) -> InputError:
        """The error for an id that means nothing; lists the nearest ones."""
        near = [escape_line(one) for one in self._nearest(id)]
        what = f"the nearest are {', '.join(near)}" if near else "documents.parquet lists those that were packed"
        return InputError(f"there is no example {escape_line(id)} in {self._dataset.store.url}; {what}")

    def _nearest(self, id: str) -> list[str]:
        ending = self._ending(id)
        return [*ending, *(one for one in self._around_place(id) if one not in ending)][:_SHOWN]

    def _ending(self, id: str) -> list[str]:
        """Packed documents whose ids end the same way: `meetings:1` may be of any file of the source `meetings`."""
        found = _END.fullmatch(id)
        if found is None:
            return []
        name, line = found[1].rpartition("/")[2], int(found[2])
        mine = [one for one in self._read([("line", "==", line)]) if one.id.endswith(f":{found[2]}{found[3] or ''}")]
        # A source or a file of that name says more than the number alone.
        named = [one for one in mine if name and name in (one.source, one.file, one.file.rpartition("/")[2])]
        near = named or (mine if parse_id(id) is None else [])  # a whole id says which file it means
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

    def _around(
        self, column: str, place: int, value: Callable[[Document], int], mine: Callable[[Document], bool]
    ) -> tuple[Document | None, Document | None]:
        below = above = None
        for window in _WINDOWS:
            found = [one for one in self._within(column, place, window) if mine(one)]
            below = max((one for one in found if value(one) <= place), key=lambda one: one.doc_id, default=None)
            above = min((one for one in found if value(one) > place), key=lambda one: one.doc_id, default=None)
            if below is not None and above is not None:
                break
        return below, above

    def _within(self, column: str, place: int, window: int) -> list[Document]:
        return self._read([(column, ">=", max(place - window, 0)), (column, "<=", place + window)])

    def _read(self, filters: list[tuple[str, str, int]]) -> list[Document]:
        return list(self._rows(filters))

    def _rows(self, filters: list[tuple[str, str, int]]) -> Iterator[Document]:
        rows: list[dict[str, Any]]
        try:
            rows = pq.read_table(self._path, filters=filters).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise IntegrityError(
                f"{self._path} is missing or damaged; run the same configuration again to mend it"
            ) from error
        for row in rows:
            yield Document(**row)


def _same_file(document: Document, address: Address) -> bool:
    return (document.source, document.file) == (address.source, address.file)
