"""Follows one example of a finished dataset, by its id or its document's number: its source row, and what became of it.

Everything is read from what the run wrote: `documents.parquet`, the table of documents, `rejects.jsonl` and the shards.
Nothing is decided, rendered or tokenized a second time. What is missing is reported as missing, never guessed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from ..schemas.errors import InputError, IntegrityError, PacktrainError
from ..schemas.escape import escape_line
from ..schemas.jsontext import decode_note
from ..schemas.names import REJECTS
from ..schemas.reasons import NOT_DRAWN, cause_of
from ..stages.arrays import view
from ..stages.tokenize.encode import UNPROVED
from .dataset.cached_parts import CachedParts, open_parts
from .dataset.decode import pieces
from .dataset.documents import Address, PackedDocument, PackedDocuments, parse_id
from .dataset.open_dataset import Finished
from .dataset.run_notes import recall_files
from .inputs.blocks import InputFile, split_name
from .inputs.lines import BOM
from .inputs.read import read_rows
from .pack.outcomes import REASONS
from .pack.table import NAME as TABLE
from .pack.table import Documents, open_table

_LISTED = 20
_LONGEST = 1 << 40
"""Bytes of a row; the run has already decided which rows are too long."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source row, or why it cannot be shown."""

    path: str
    """Path of the input; "" if unknown."""
    said: str
    """The state of the input, in a sentence."""
    value: Any = None
    """The row as plain data; as text if the line is not JSON; None if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One piece of a document in a packed row."""

    split: str
    row: int
    """Row of the split, counted from 0."""
    start: int
    """First token of the piece within its document."""
    trained: int
    """Trained labels."""


@dataclass(slots=True)
class Story:
    """What became of one example."""

    id: str
    doc_id: int | None
    state: str
    """`packed`, `dropped`, `rejected`, `blank`, `not taken` or `left out`."""
    origin: SourceRow
    reason: str = ""
    detail: str = ""
    twin: str = ""
    """Id of the earlier example, if this one is a duplicate."""
    tokens: int = 0
    """Tokens before any cut."""
    copies: int = 0
    """How often it is packed; 0 if that is unknown."""
    standings: list[Standing] = field(default_factory=list)
    cut: dict[str, int] = field(default_factory=dict)
    """The tokens that are in no row, by what cut them."""
    notes: list[str] = field(default_factory=list)
    """Sentences that say what is missing, and why."""


class Follower:
    """Follows examples of one finished dataset."""

    def __init__(self, dataset: Finished) -> None:
        self.dataset, self._plan = dataset, dataset.manifest.plan
        opened = open_parts(dataset)
        self.cached = opened if isinstance(opened, CachedParts) else None
        self._notes = [opened] if isinstance(opened, str) else []
        self._documents, self._table = PackedDocuments(dataset), _open_table(dataset, self.cached)
        self._files = {(file.source, file.label): file for file in recall_files(dataset.store, self._plan)}

    def of(self, example: str) -> Story:
        """Return the story of an example, by its id or its doc id.

        Raises:
            InputError: there is no such example.
            IntegrityError: a file of the folder is missing or damaged.
        """
        if example.isdecimal():
            return self._by_number(int(example))
        found = self._documents.by_id(example)
        if found is None:
            address = self._address(example)
            found = self._documents.by_id(address.id)
            if found is None:
                return self._unpacked(address, example)
        return self._packed(found)

    def _by_number(self, doc: int) -> Story:
        found = self._documents.by_number(doc)
        if found is not None:
            return self._packed(found)
        if self.cached is None:
            raise InputError(
                f"no packed document of {self.dataset.store.url} has the doc id {doc:,}, and documents that are not "
                f"packed cannot be found: {self._notes[0]}. documents.parquet lists the packed documents"
            )
        if doc >= self.cached.count:
            raise InputError(
                f"there is no document {doc:,} in {self.dataset.store.url}; doc ids are 0 to {self.cached.count - 1:,}"
            )
        one, part = self.cached.document(doc), self.cached.of_document(doc)
        file, line = part.file.at(part.block, one.line)
        return self._dropped(self.cached, Address(file.source, file.label, line, one.sub), doc)

    def _packed(self, found: PackedDocument) -> Story:
        story = self._begin(_address_of(found), found.doc_id, "packed")
        story.tokens = found.tokens
        for split, row in _rows_of(self.dataset, found.doc_id):
            if self.dataset.manifest.preference:
                story.standings.append(Standing(split, row, 0, 0))
                continue
            mine = (piece for piece in pieces(self.dataset, row, split) if piece.doc_id == found.doc_id)
            story.standings += [Standing(split, row, piece.start, piece.trained) for piece in mine]
        if self._table is not None:
            one = self._table.at(slice(found.doc_id, found.doc_id + 1))
            story.copies, story.cut = int(one.copies[0]), _cut(one)
        return story

    def _dropped(self, cached: CachedParts, address: Address, doc_id: int) -> Story:
        story, one = self._begin(address, doc_id, "dropped"), cached.document(doc_id)
        story.tokens = one.tokens
        if self._table is None:
            story.detail = "_run/documents.arrow, which says why, is gone or damaged; run again"
            return story
        code = int(self._table.outcome[doc_id])
        story.reason = REASONS[code] if code < len(REASONS) else ""
        story.detail = cause_of(story.reason)
        if story.reason == UNPROVED and (why := cached.unproved_detail(doc_id)):
            story.detail += f": {why}"
        if story.reason == "duplicate" and (twin := _twin(self._table, doc_id)) is not None:
            packed = self._documents.by_number(twin)
            story.twin = packed.id if packed is not None else f"document {twin}"
        return story

    def _unpacked(self, address: Address, asked: str) -> Story:
        """Return the story of an id that documents.parquet lacks: left out, rejected, never made, or wrong."""
        part = self.cached.of_row(address) if self.cached is not None else None
        subs = [_address_of(one).sub for one in self._documents.of_line(address)]
        if part is not None and self.cached is not None:
            made = {sub: doc_id for doc_id, sub in self.cached.documents_of_row(*part)}
            if address.sub in made:
                return self._dropped(self.cached, address, made[address.sub])
            subs = list(made)
        story = self._begin(address, None, "rejected")
        entry = _rejected(self.dataset, address)
        if entry is not None:
            story.reason, story.detail = entry["reason"], entry["detail"]
            return story
        if subs:
            ids = [replace(address, sub=sub).id for sub in subs]
            shown = ", ".join(map(escape_line, ids[:_LISTED])) + (", …" if len(ids) > _LISTED else "")
            raise InputError(
                f"there is no example {escape_line(asked)} in {self.dataset.store.url}; its row gave {shown}"
            )
        file = self._files.get((address.source, address.file))
        if file is None or address.line > file.lines + file.not_taken:
            raise self._unknown(asked)
        if address.line > file.lines:
            story.state, story.detail = "not taken", story.origin.said
        elif isinstance(story.origin.value, str) and not story.origin.value.strip():
            story.state, story.detail = "blank", "the line is blank"
        elif self.cached is None:
            story.state, story.detail = "dropped", "the reason is unknown, because the cache is gone"
        else:
            story.state = "left out"
            story.detail = (
                "no example was made of its row: it is blank, its format or a condition leaves it out, or it is a "
                "reject that rejects.jsonl only counts; the ledger has the numbers"
            )
        return story

    def _begin(self, address: Address, doc_id: int | None, state: str) -> Story:
        origin = _source_row(self._files.get((address.source, address.file)), address)
        return Story(address.id, doc_id, state, origin, notes=list(self._notes))

    def _address(self, id: str) -> Address:
        """Return the address of an id, with the file's name as the run knows it.

        Raises:
            InputError: it is not an id, or names no input of the run.
        """
        address = parse_id(id)
        labels = {(one["source"], one["file"]) for one in self._plan["inputs"]}
        if address is not None and address.line > 0:
            for label in (address.file, _without_suffix(address.file)):  # with the suffix, as in rejects.jsonl
                if (address.source, label) in labels:
                    return replace(address, file=label)
        raise self._unknown(id)

    def _unknown(self, id: str) -> InputError:
        where = f"{self.dataset.store.url}; documents.parquet lists the packed ones"
        return InputError(f"there is no example {escape_line(id)} in {where}")


def _source_row(file: InputFile | None, address: Address) -> SourceRow:
    """Read the source row at an address.

    Args:
        file: the row's file, as the run noted it; None if the note is gone.
    """
    if file is None:
        return SourceRow("", "the folder no longer says where this input was")
    path = str(file.path)
    if address.line > file.lines:
        return SourceRow(path, "the row lies beyond the source's max_rows")
    block = next(one for one in file.blocks if one.first_line < address.line <= one.first_line + one.lines)
    then = f"it had {file.size:,} bytes, with BLAKE3 hash {file.hash[:16]}"
    where = block.spooled or file.path
    if not where.is_file():
        return SourceRow(path, f"{where} is gone; {then}")
    try:
        rows = read_rows(file.path, block, _LONGEST)
    except (OSError, PacktrainError) as error:
        return SourceRow(path, f"{path} has changed since the run; {then} ({error})")
    number = address.line - 1 - block.first_line
    found = (item for at, item in (*(rows.lines or ()), *(rows.records or ())) if at == number)
    return SourceRow(path, f"line {address.line:,} of {path}, as the run read it", _value(next(found, None)))


def _value(item: bytes | Mapping[str, Any] | None) -> Any:
    """A row as plain data, from a line of JSON or a decoded row."""
    if not isinstance(item, bytes):
        return dict(item) if item is not None else None
    try:
        return msgspec.json.decode(item.removeprefix(BOM))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return item.decode(errors="backslashreplace")


def _open_table(dataset: Finished, cached: CachedParts | None) -> Documents | None:
    """Map what the run decided about its documents; None if that is gone, damaged, or of another run."""
    try:
        documents, _ = open_table(dataset.store.local(TABLE))
    except (PacktrainError, OSError, ValueError, KeyError):  # of another version
        return None
    return documents if cached is not None and len(documents) == cached.count else None


def _rows_of(dataset: Finished, doc_id: int) -> Iterator[tuple[str, int]]:
    """Yield (split, row) of each row with a document.

    Raises:
        IntegrityError: a shard is missing or damaged, or no row has the document.
    """
    found = False
    for split, record in dataset.manifest.splits.items():
        first = 0
        for shard in record.shards:
            for batch in dataset.batches(shard):
                column = batch.column("doc_ids")
                here = np.flatnonzero(view(column.values) == doc_id)
                for row in np.unique(np.searchsorted(view(column.offsets), here, side="right") - 1).tolist():
                    found = True
                    yield split, first + row
                first += batch.num_rows
    if not found:
        raise IntegrityError(
            f"document {doc_id:,} is listed, but no shard of {dataset.store.url} contains it; run packtrain verify"
        )


def _cut(one: Documents) -> dict[str, int]:
    """The tokens that one packed document loses, by what cuts them.

    Args:
        one: the document's row of the table.
    """
    length, kept, within = int(one.length[0]), int(one.kept[0]), int(one.high[0]) - int(one.low[0])
    cut = {
        "truncate.max_length": length - within,
        "pieces in which nothing would be trained": within - kept,
    }
    return {what: tokens for what, tokens in cut.items() if tokens}


def _twin(documents: Documents, doc_id: int) -> int | None:
    """The earlier document that a duplicate repeats."""
    same = documents.first_digest == documents.first_digest[doc_id]
    same &= documents.second_digest == documents.second_digest[doc_id]
    same &= (documents.outcome == 0) | (documents.outcome == REASONS.index(NOT_DRAWN))
    first = np.flatnonzero(same)
    return int(first[0]) if len(first) else None


def _rejected(dataset: Finished, address: Address) -> dict[str, Any] | None:
    """Return the entry of an example in the rejects file, or of its whole row; None if there is neither."""
    data = dataset.store.read(REJECTS) or b""
    whole = None
    needle = f'"line":{address.line},'.encode()
    for line in data.splitlines():
        if needle not in line:
            continue
        entry: dict[str, Any] = decode_note(line, dict[str, Any])
        labels = (entry["file"], _without_suffix(entry["file"]))
        if entry["source"] != address.source or address.file not in labels or entry["reason"] == "more":
            continue
        if entry.get("example", -1) == address.sub:
            return entry
        if "example" not in entry:
            whole = entry
    return whole


def _without_suffix(file: str) -> str:
    """The name of a file in ids, from its name in rejects, which has the suffix."""
    folder, slash, name = file.rpartition("/")
    return f"{folder}{slash}{split_name(name)[0]}"


def _address_of(document: PackedDocument) -> Address:
    stem = f"{document.source}/{document.file}:{document.line}"
    rest = document.id.removeprefix(stem).removeprefix("/")
    return Address(document.source, document.file, document.line, int(rest) if rest else -1)
