"""A finished run's encoded parts in the cache, and the documents in them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...schemas.errors import IntegrityError
from ...schemas.names import part_record
from ...stages.arrays import list_lengths, view
from ...stages.tokenize.encode import UNPROVED
from ..encode.parts import EncodedPart, read_record
from ..store.open_store import Store
from .documents import Address
from .open_dataset import Finished
from .run_notes import NotedPart, recall_parts


class EncodedDocument(NamedTuple):
    """One document from the cache."""

    line: int
    """Line within the block, from 0."""
    sub: int
    tokens: int


class CachedParts:
    """All encoded parts of a run, in the run's order."""

    def __init__(self, store: Store, parts: Sequence[NotedPart]) -> None:
        self.store = store
        """The cache."""
        self.parts = parts
        self._firsts = np.array([part.first for part in parts])

    @property
    def count(self) -> int:
        """Number of documents, including dropped ones."""
        return self.parts[-1].first + self.parts[-1].documents if self.parts else 0

    def of_document(self, doc_id: int) -> NotedPart:
        """Return the part that contains a document."""
        part = self.parts[int(np.searchsorted(self._firsts, doc_id, side="right")) - 1]
        assert part.first <= doc_id < part.first + part.documents
        return part

    def of_row(self, address: Address) -> tuple[NotedPart, int] | None:
        """Return the part made from the block that has an input row, and the row's number in it, from 0; None if no
        block has the row.
        """
        for part in self.parts:
            if part.file.source == address.source:
                row = part.place.lines.row_of(address.file, address.line, part.block.lines)
                if row is not None:
                    return part, row
        return None

    def document(self, doc_id: int) -> EncodedDocument:
        """Read one document.

        Raises:
            IntegrityError: its part cannot be read.
        """
        part = self.of_document(doc_id)
        row = doc_id - part.first
        for batch in EncodedPart(part.place.path).batches:
            if row < batch.num_rows:
                one = batch.slice(row, 1)
                line, sub = (one.column(name)[0].as_py() for name in ("line", "sub"))
                return EncodedDocument(line, sub, int(list_lengths(one.column("input_ids"))[0]))
            row -= batch.num_rows
        where = self.store.where(part.place.part.name)
        raise IntegrityError(f"{where} has fewer documents than its record says; run again")

    def documents_of_row(self, part: NotedPart, line: int) -> list[tuple[int, int]]:
        """Return (doc id, which example of the row) of the documents made from one input row.

        Args:
            line: the row's number in the part's block, from 0.
        """
        out = []
        doc_id = part.first
        for batch in EncodedPart(part.place.path).batches:
            for row in np.flatnonzero(view(batch.column("line")) == line).tolist():
                out.append((doc_id + row, batch.column("sub")[row].as_py()))
            doc_id += batch.num_rows
        return out

    def unproved_detail(self, doc_id: int) -> str:
        """Return why turns of a document could not be located, from its part's record, or ""."""
        record = read_record(self.store, part_record(self.of_document(doc_id).place.part.name))
        one = self.document(doc_id)
        rows = (place for place in record.counts.places if place.kind == UNPROVED) if record else ()
        return next((place.detail for place in rows if (place.line, place.sub) == (one.line, one.sub)), "")


def open_parts(dataset: Finished) -> CachedParts | str:
    """Return the parts that a run was packed from, or why they are not available."""
    found = recall_parts(dataset.store, dataset.manifest.plan)
    return found if isinstance(found, str) else CachedParts(*found)
