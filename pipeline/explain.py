"""Follows one example of a finished dataset, by its id or its document's number: what became of it, and where it is.

Everything is read from what the run wrote: the table of documents, `rejects.jsonl` and the shards. Nothing is decided,
rendered or tokenized a second time.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..schemas.arrays import view
from ..schemas.dataset.names import REJECTS
from ..schemas.errors import InputError, IntegrityError, PacktrainError
from ..schemas.escape import escape_line
from ..schemas.jsontext import decode_note
from ..schemas.notebook import Shown, Table
from ..schemas.report import COUNTED_ONLY, Reject
from ..schemas.rows import example_id
from ..schemas.tables.reasons import NOT_DRAWN, OUTCOMES, REASONS
from ..schemas.units import plural
from .dataset.decode import pieces
from .dataset.open_dataset import Finished, open_dataset
from .inputs.file_kinds import split_name
from .pack.table import NAME as TABLE
from .pack.table import Documents, open_table

_LISTED = 20
_ID = re.compile(r"([^/]+)/(.+):([0-9]{1,15})(?:/([0-9]{1,9}))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Address:
    """The parts of an example's id."""

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
        return example_id(self.source, self.file, self.line, self.sub)


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


@dataclass(frozen=True, slots=True, repr=False)
class Story(Shown):
    """What became of one example."""

    id: str
    state: str
    """`packed`, `dropped` or `rejected`."""
    doc_id: int | None = None
    reason: str = ""
    detail: str = ""
    remedy: str = ""
    """What to do about a rejected row."""
    excerpt: str = ""
    """The keys of a rejected row, and the beginnings of its values."""
    twin: str = ""
    """Id of the earlier example, if this one is a duplicate."""
    tokens: int = 0
    """Tokens before any cut."""
    copies: int = 0
    """How often it is packed."""
    standings: tuple[Standing, ...] = ()
    cut: dict[str, int] = field(default_factory=dict)
    """The tokens that are in no row, by what cut them."""

    def summary(self) -> str:
        size = plural(self.tokens, "token") if self.tokens else ""
        rows = f"in {plural(len(self.standings), 'row')}" if self.standings else ""
        return f"{self.id} is " + ": ".join(filter(None, (self.state, rows, size, self.reason, self.detail)))

    def tables(self) -> Iterator[Table]:
        if self.standings:
            rows = ((standing.split, standing.row, standing.start, standing.trained) for standing in self.standings)
            yield Table("", ("split", "row", "from token", "trained tokens"), rows)
        if self.cut:
            yield Table("Cut", ("by", "tokens"), self.cut.items())


def explain(folder: str | Path, example: str | int) -> Story:
    """What became of one example of a finished dataset: its places in rows, or why it has none.

    >>> story = packtrain.explain("packed", "chats/chats:17")
    >>> story.state
    'packed'
    >>> story.standings[0].split
    'train'

    Args:
        folder: the dataset, or its URL.
        example: the example's id, or the number of its document.

    Raises:
        InputError: there is no such dataset or example; says which examples its row gave, if any.
        IntegrityError: a file of the folder is missing or damaged.
    """
    return Follower(open_dataset(folder)).of(str(example))


class Follower:
    """Follows examples of one finished dataset.

    Raises:
        InputError: the run's table of documents is gone or damaged.
    """

    def __init__(self, dataset: Finished) -> None:
        self.dataset = dataset
        try:
            self.documents, self.origins = open_table(dataset.store.local(TABLE))
        except (PacktrainError, OSError, ValueError, KeyError) as error:
            raise InputError(
                f"{dataset.store.where(TABLE)}, which says what became of each example, is gone or damaged "
                f"({error}); documents.parquet lists the packed ones"
            ) from error
        self._sources = [source["name"] for source in dataset.manifest.plan["config"]["sources"]]

    def of(self, example: str) -> Story:
        """Return the story of an example, by its id or its doc id.

        Raises:
            InputError: there is no such example; says which examples its row gave, if any.
            IntegrityError: a file of the folder is missing or damaged.
        """
        where, count = self.dataset.store.url, len(self.documents)
        if example.isdecimal() and len(example) < 20:
            if int(example) >= count:
                raise InputError(f"there is no document {int(example):,} in {where}; doc ids are 0 to {count - 1:,}")
            return self._made(int(example))
        address = self._address(example)
        made = self.origins.documents_at(
            self.documents, self._sources.index(address.source), address.file, address.line
        )
        subs = self.documents.sub[made].tolist()
        if address.sub in subs:
            return self._made(made[subs.index(address.sub)])
        if (entry := _rejected(self.dataset, address)) is not None:
            return Story(
                address.id, "rejected", reason=entry.reason, detail=entry.detail, remedy=entry.remedy,
                excerpt=entry.excerpt,
            )  # fmt: skip
        if subs:
            ids = [replace(address, sub=sub).id for sub in subs]
            shown = ", ".join(map(escape_line, ids[:_LISTED])) + (", …" if len(ids) > _LISTED else "")
            raise InputError(f"there is no example {escape_line(example)} in {where}; its row gave {shown}")
        raise InputError(
            f"no example of {where} was made of {escape_line(example)}: there is no such line, or it is blank, beyond "
            "max_rows, left out by its format or a condition, or a reject that is only counted; the ledger has the "
            "numbers"
        )

    def _made(self, doc_id: int) -> Story:
        """The story of a document, packed or dropped."""
        one, address = self.documents.at(slice(doc_id, doc_id + 1)), self._address_of(doc_id)
        story = Story(address.id, "packed", doc_id, tokens=int(one.length[0]), copies=int(one.copies[0]))
        if not story.copies:
            return self._dropped(story, address, int(one.outcome[0]))
        standings = list[Standing]()
        for split, row in _rows_of(self.dataset, doc_id):
            if self.dataset.manifest.preference:
                standings.append(Standing(split, row, 0, 0))
                continue
            of_document = (piece for piece in pieces(self.dataset, row, split) if piece.doc_id == doc_id)
            standings += [Standing(split, row, piece.start, piece.trained) for piece in of_document]
        return replace(story, cut=_cut(one), standings=tuple(standings))

    def _dropped(self, story: Story, address: _Address, outcome: int) -> Story:
        reason = OUTCOMES[outcome] if outcome < len(OUTCOMES) else ""
        entry = _rejected(self.dataset, address)  # with a detail, if the mask rejects it
        detail = entry.detail if entry is not None else REASONS.get(reason, "")
        twin = ""
        if reason == "duplicate" and story.doc_id is not None:
            twin = self._address_of(_twin(self.documents, story.doc_id)).id
        return replace(story, state="dropped", reason=reason, detail=detail, twin=twin)

    def _address_of(self, doc_id: int) -> _Address:
        source, file, line, sub = self.origins.place(self.documents, doc_id)
        return _Address(self._sources[source], file, line, sub)

    def _address(self, id: str) -> _Address:
        """Return the address of an id, with the file's name as the run knows it.

        Raises:
            InputError: it is not an id, or names no input of the run.
        """
        parts = _ID.fullmatch(id)
        address = _Address(parts[1], parts[2], int(parts[3]), int(parts[4] or -1)) if parts else None
        labels = {(one["source"], one["file"]) for one in self.dataset.manifest.plan["inputs"]}
        if address is not None and address.source in self._sources:
            for label in (address.file, _without_suffix(address.file)):  # with the suffix, as in rejects.jsonl
                if (address.source, label) in labels:
                    return replace(address, file=label)
        example = next(iter(sorted(labels)), ("chats", "chats"))
        raise InputError(
            f"there is no example {escape_line(id)} in {self.dataset.store.url}: an id is source/file:line, such as "
            f"{escape_line(_Address(*example, 1).id)}; documents.parquet lists the packed ones"
        )


def _rows_of(dataset: Finished, doc_id: int) -> Iterator[tuple[str, int]]:
    """Yield (split, row) of each row with a document.

    Raises:
        IntegrityError: a shard is missing or damaged, or no row has the document.
    """
    found = False
    for split, record in dataset.manifest.splits.items():
        first = 0
        for shard in record.shards:
            for batch in dataset.sound_batches(shard):
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


def _twin(documents: Documents, doc_id: int) -> int:
    """The earlier document that a duplicate repeats."""
    same = documents.first_digest == documents.first_digest[doc_id]
    same &= documents.second_digest == documents.second_digest[doc_id]
    same &= (documents.outcome == 0) | (documents.outcome == OUTCOMES.index(NOT_DRAWN))
    return int(np.argmax(same))


def _rejected(dataset: Finished, address: _Address) -> Reject | None:
    """Return the entry of an example in the rejects file, or of its whole row; None if there is neither.

    Raises:
        IntegrityError: the file is damaged.
    """
    data = dataset.store.read(REJECTS) or b""
    whole = None
    needle = f'"line":{address.line},'.encode()
    for line in data.splitlines():
        if needle not in line:
            continue
        try:
            entry = decode_note(line, Reject)
        except ValueError as error:
            raise IntegrityError(
                f"{dataset.store.where(REJECTS)} is damaged ({error}); packtrain verify --repair rebuilds it"
            ) from error
        labels = (entry.file, _without_suffix(entry.file))
        if entry.source != address.source or address.file not in labels or entry.reason == COUNTED_ONLY:
            continue
        if entry.example == address.sub:
            return entry
        if entry.example < 0:
            whole = entry
    return whole


def _without_suffix(file: str) -> str:
    """The name of a file in ids, from its name in rejects, which has the suffix."""
    folder, slash, name = file.rpartition("/")
    return f"{folder}{slash}{split_name(name)[0]}"
