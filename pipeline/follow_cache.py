"""What the cache still holds of a finished run: its encoded parts, and which rows of which file each of them is."""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..schemas.errors import IntegrityError, StoreError
from ..schemas.jsontext import decode_note
from ..stages.arrays import view
from .follow_ids import Address, Document, Documents
from .parts import EncodedPart, PartFile, PartList, PartRecord
from .reader import Finished
from .recall import recall_cache
from .sealed import unseal
from .stores import Store, open_store, scratch_of

PARTS = "_run/parts.json"
"""Where packing notes which parts it read, in order."""


class _Head(msgspec.Struct):
    """Of a part's record, what its place is found by."""

    part: str
    bytes: int
    payload: dict[str, Any]
    rows: int
    bytes_read: int
    examples: int


@dataclass(frozen=True, slots=True)
class Part:
    """One encoded part."""

    cache: Store
    file: PartFile
    first: int
    """Doc id of its first document."""
    documents: int
    rows: int
    """Rows of its block, blank ones included."""
    bytes_read: int
    """Bytes of its block."""
    block: str
    """The block's hash."""
    source: int
    """Index of its source in the configuration."""

    @property
    def path(self) -> Path:
        """A file of this machine that holds it."""
        return self.file.path(self.cache)

    def record(self) -> PartRecord:
        """Its record, whole."""
        return PartRecord.from_json(
            decode_note(unseal(self.cache.read(_record_name(self.file))) or b"{}", dict[str, Any])
        )


@dataclass(frozen=True, slots=True)
class Spot:
    """A row of an input, and the part that its block became."""

    part: int
    file: str
    first_line: int
    """Rows of the file before the block."""
    sure: bool
    """False where the row may belong to another file: to be believed only if the block's hash agrees."""


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """One document as the cache has it."""

    doc_id: int
    line: int
    """Within the block, from 0."""
    sub: int
    ids: list[int]
    runs: list[tuple[int, int, int, bool]]
    """(end, kind, turn, train) over tokens."""
    digest: bytes
    group: str


class CachedParts:
    """The encoded parts of a run, all of them, in its order."""

    def __init__(self, store: Store, parts: list[Part], documents: Documents) -> None:
        self.store = store
        """The cache."""
        self.parts = parts
        self._documents = documents

    @property
    def count(self) -> int:
        """Documents in all, dropped ones included."""
        return self.parts[-1].first + self.parts[-1].documents if self.parts else 0

    @property
    def scratch(self) -> Path:
        """The folder of this machine with copies of inputs."""
        return scratch_of(self.store).root

    def of_document(self, doc_id: int) -> int:
        """Which part holds a document."""
        firsts = [part.first for part in self.parts]
        index = int(np.searchsorted(np.array(firsts), doc_id, side="right")) - 1
        assert self.parts[index].first <= doc_id < self.parts[index].first + self.parts[index].documents
        return index

    def document(self, index: int, doc_id: int) -> EncodedDocument:
        """One document of a part.

        Raises:
            IntegrityError: the part cannot be read.
        """
        row = doc_id - self.parts[index].first
        for batch in EncodedPart(self.parts[index].path).batches:
            if row < batch.num_rows:
                one = batch.slice(row, 1).to_pylist()[0]
                runs = [(run["end"], run["kind"], run["turn"], run["train"]) for run in one["runs"]]
                return EncodedDocument(
                    doc_id, one["line"], one["sub"], one["input_ids"], runs, one["digest"], one["group"]
                )
            row -= batch.num_rows
        raise IntegrityError(f"{self.parts[index].path} has fewer documents than its record says; run again")

    def documents_of_line(self, index: int, line: int) -> list[tuple[int, int]]:
        """(doc id, which example of the row) of the documents of one row of a block."""
        out = []
        doc_id = self.parts[index].first
        for batch in EncodedPart(self.parts[index].path).batches:
            for row in np.flatnonzero(view(batch.column("line")) == line).tolist():
                out.append((doc_id + row, batch.column("sub")[row].as_py()))
            doc_id += batch.num_rows
        return out

    def spot_of_document(self, doc_id: int) -> Spot | None:
        """Where the block of a document stands. None where nothing near it was packed."""
        index = self.of_document(doc_id)
        below, above = self._documents.around_number(doc_id)
        return self._reach(index, below, above)

    def spot_of_line(self, address: Address, source: int) -> Spot | None:
        """The block of a row. None where nothing of its file was packed, or the file has no such row."""
        below, above = self._documents.around_line(address)
        if below is not None:
            index, first_line = self._anchor(below)
            while index < len(self.parts) and self.parts[index].source == source:
                if first_line + self.parts[index].rows >= address.line:
                    same = index == self.of_document(below.doc_id)
                    return Spot(index, address.file, first_line, same or above is not None)
                first_line += self.parts[index].rows
                index += 1
            return None
        if above is not None:
            index, first_line = self._anchor(above)
            while first_line >= address.line:
                index -= 1
                first_line -= self.parts[index].rows
            return Spot(index, address.file, first_line, True)
        return None

    def start_of(self, spot: Spot) -> int | None:
        """Bytes of the blocks of the same file before this one."""
        index, line, total = spot.part, spot.first_line, 0
        while line > 0 and index > 0:
            index -= 1
            line -= self.parts[index].rows
            total += self.parts[index].bytes_read
        return total if line == 0 else None

    def _anchor(self, document: Document) -> tuple[int, int]:
        """(part, rows of the file before its block) of a packed document."""
        index = self.of_document(document.doc_id)
        return index, document.line - 1 - self.document(index, document.doc_id).line

    def _reach(self, index: int, below: Document | None, above: Document | None) -> Spot | None:
        """The place of a part, counted from packed documents before and behind it."""
        source = self.parts[index].source
        after = None
        if below is not None:
            at, line = self._anchor(below)
            if at == index:
                return Spot(index, below.file, line, True)
            if self.parts[at].source == source:
                line += sum(part.rows for part in self.parts[at:index])
                sure = above is not None and (above.source, above.file) == (below.source, below.file)
                after = Spot(index, below.file, line, sure)
        if above is not None and (after is None or not after.sure):
            at, line = self._anchor(above)
            line -= sum(part.rows for part in self.parts[index:at])
            if line >= 0 and self.parts[at].source == source:
                return Spot(index, above.file, line, True)
        return after


def open_parts(dataset: Finished, documents: Documents) -> CachedParts | str:
    """The parts that a run was packed from, or why they cannot be had."""
    kept = dataset.store.read(PARTS)
    if kept is None:
        return f"{dataset.store.where(PARTS)} is gone, which said where the encoded parts lie"
    listed = decode_note(kept, PartList)
    place = recall_cache(dataset.store, listed.cache)
    if place is None:
        return f"the cache is gone: {listed.cache} is not a cache of packtrain's"
    cache = open_store(place)
    heads = []
    for file in listed.parts:
        try:
            head = decode_note(unseal(cache.read(_record_name(file))), _Head)
            whole = cache.size(file.name) == head.bytes
        except (StoreError, msgspec.MsgspecError):
            whole = False
        if not whole:
            return f"the cache is gone: {cache.where(file.name)} is missing or damaged"
        heads.append(head)
    sources = _sources(dataset, heads)
    if sources is None:
        return "the cache holds other parts than the ledger counts"
    firsts = [0, *accumulate(head.examples for head in heads)]
    parts = [
        Part(cache, file, first, head.examples, head.rows, head.bytes_read, head.payload["block"], source)
        for file, head, first, source in zip(listed.parts, heads, firsts[:-1], sources, strict=True)
    ]
    return CachedParts(cache, parts, documents)


def _sources(dataset: Finished, heads: list[_Head]) -> list[int] | None:
    """Which source each part belongs to: parts stand in the order of the sources, and the ledger has their bytes."""
    names = [source["name"] for source in dataset.manifest.plan["config"]["sources"]]
    out: list[int] = []
    index, left = -1, 0
    for head in heads:
        while left == 0:
            index += 1
            if index == len(names):
                return None
            left = dataset.manifest.ledger.sources[names[index]].bytes_read
        left -= head.bytes_read
        if left < 0:
            return None
        out.append(index)
    return out


def _record_name(part: PartFile) -> str:
    return f"{part.name.rpartition('-')[0]}.json"
