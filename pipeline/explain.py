"""Follows one example of a finished dataset, by its id or its document's number: what became of it, and where it is.

Everything is read from the dataset's own files: documents.parquet, `rejects.jsonl` and the shards. Nothing is decided,
rendered or tokenized a second time.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..schemas.arrays import strings, view
from ..schemas.dataset.names import REJECTS
from ..schemas.errors import InputError, IntegrityError
from ..schemas.escape import escape_line
from ..schemas.jsontext import decode_note
from ..schemas.notebook import Shown, Table
from ..schemas.report.flow import COUNTED_ONLY, Reject
from ..schemas.rows import PACKED_OUTCOME, example_id
from ..schemas.tables.reasons import NOT_DRAWN, REASONS
from ..schemas.units import plural
from .dataset.decode import pieces
from .dataset.open_dataset import Finished, open_dataset
from .inputs.file_kinds import split_name

_MAX_LISTED_IDS = 20
"""Examples of a row that a message names."""
_Row: TypeAlias = dict[str, Any]
"""A row of the document table."""
_ID_PATTERN = re.compile(r"([^/]+)/(.+):([0-9]{1,15})(?:/([0-9]{1,9}))?", re.DOTALL)


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
    side: str = ""
    """Of a preference pair that is packed, whose sides are two pieces: `chosen` or `rejected`."""


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
        places = {(standing.split, standing.row) for standing in self.standings}
        rows = f"in {plural(len(places), 'row')}" if places else ""
        return f"{self.id} is " + ": ".join(filter(None, (self.state, rows, size, self.reason, self.detail)))

    def tables(self) -> Iterator[Table]:
        if self.standings:
            # Only pieces of preference pairs have a side, and then all of them.
            names = ["split", "row", "side", "start", "trained"]
            if not self.standings[0].side:
                names.remove("side")
            titles = {"start": "from token", "trained": "trained tokens"}
            rows = [[getattr(standing, name) for name in names] for standing in self.standings]
            yield Table("", [titles.get(name, name) for name in names], rows)
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
    """Follows examples of one finished dataset."""

    def __init__(self, dataset: Finished) -> None:
        self.dataset = dataset
        self._sources = [source["name"] for source in dataset.manifest.plan["config"]["sources"]]

    def of(self, example: str) -> Story:
        """Return the story of an example, by its id or its doc id.

        Raises:
            InputError: there is no such example; says which examples its row gave, if any.
            IntegrityError: a file of the folder is missing or damaged.
        """
        if example.isdecimal() and len(example) < 19:  # so that it is an int64
            return self._of_document(int(example))
        address = self._address(example)
        row: dict[str, str | int] = {"source": address.source, "file": address.file, "line": address.line}
        documents = self.dataset.documents(values=row).to_pylist()
        for document in documents:
            if document["sub"] == address.sub:
                return self._story(document)
        # Not among the encoded examples: rejected, never made, or no line of an input.
        if (reject := _rejected(self.dataset, address)) is not None:
            return Story(
                address.id,
                "rejected",
                reason=reject.reason,
                detail=reject.detail,
                remedy=reject.remedy,
                excerpt=reject.excerpt,
            )
        raise self._no_example(example, [document["id"] for document in documents])

    def _of_document(self, doc_id: int) -> Story:
        """The story of a document, by its number.

        Raises:
            InputError: there is no such document.
        """
        documents = self.dataset.documents(doc_ids=[doc_id]).to_pylist()
        if not documents:
            count = self.dataset.documents(["doc_id"]).num_rows
            raise InputError(
                f"there is no document {doc_id:,} in {self.dataset.store.url}; doc ids are 0 to {count - 1:,}"
            )
        return self._story(documents[0])

    def _no_example(self, example: str, ids: Sequence[str]) -> InputError:
        """The error for an id that is no example's.

        Args:
            ids: those of the examples that its row gave.
        """
        place = self.dataset.store.url
        if not ids:
            return InputError(
                f"no example of {place} was made of {escape_line(example)}: there is no such line, or it is blank, "
                "beyond max_rows, left out by its format or a condition, or a reject that is only counted; the ledger "
                "has the numbers"
            )
        listed = ", ".join(map(escape_line, ids[:_MAX_LISTED_IDS]))
        if len(ids) > _MAX_LISTED_IDS:
            listed += ", …"
        return InputError(f"there is no example {escape_line(example)} in {place}; its row gave {listed}")

    def _story(self, document: _Row) -> Story:
        """The story of an example in the document table, packed or dropped."""
        story = Story(
            document["id"],
            "packed",
            document["doc_id"],
            tokens=document["tokens"],
            copies=document["copies"],
        )
        if document["outcome"] != PACKED_OUTCOME:
            return self._dropped(story, document)
        standings: list[Standing] = []
        for split, row in _rows_of(self.dataset, document["doc_id"]):
            if self.dataset.manifest.preference:  # each is a row of its own, and has no pieces
                standings.append(Standing(split, row, 0, 0))
                continue
            for piece in pieces(self.dataset, row, split):
                if piece.doc_id == document["doc_id"]:
                    standings.append(Standing(split, row, piece.start, piece.trained, piece.side))
        return replace(story, cut=self._cut(document), standings=tuple(standings))

    def _dropped(self, story: Story, document: _Row) -> Story:
        reason = document["outcome"]
        address = _Address(document["source"], document["file"], document["line"], document["sub"])
        reject = _rejected(self.dataset, address)  # with a detail, if the mask rejects it
        detail = reject.detail if reject is not None else REASONS.get(reason, "")
        # Only of a duplicate is another example the cause.
        twin = self._twin(document) if reason == "duplicate" else ""
        return replace(story, state="dropped", reason=reason, detail=detail, twin=twin)

    def _twin(self, document: _Row) -> str:
        """The id of the earlier example that a duplicate repeats."""
        table = self.dataset.documents(["id", "outcome", "digest"])
        # Neither left out nor a duplicate itself; it may have been left out only by a draw.
        kept = pc.is_in(table["outcome"], strings([PACKED_OUTCOME, NOT_DRAWN]))
        equal = pc.equal(table["digest"], pa.scalar(document["digest"], table.schema.field("digest").type))
        return str(table.filter(pc.and_(kept, equal))["id"][0].as_py())

    def _cut(self, document: _Row) -> dict[str, int]:
        """The tokens that a packed example loses, by what cuts them."""
        lost = document["tokens"] - document["tokens_kept"]
        # Documents are either truncated or split, so one of the two has cut all of them.
        splits = self.dataset.manifest.plan["config"]["truncate"]["overlong"] == "split"
        by = "pieces in which nothing would be trained" if splits else "truncate.max_length"
        return {by: lost} if lost else {}

    def _address(self, id: str) -> _Address:
        """Return the address of an id, with the file's name as the run knows it.

        Raises:
            InputError: it is not an id, or names no input of the run.
        """
        labels = {(input["source"], input["file"]) for input in self.dataset.manifest.plan["inputs"]}
        match = _ID_PATTERN.fullmatch(id)
        if match is not None and match[1] in self._sources:
            address = _Address(match[1], match[2], int(match[3]), int(match[4] or -1))
            for label in (address.file, _without_suffix(address.file)):  # with the suffix, as in rejects.jsonl
                if (address.source, label) in labels:
                    return replace(address, file=label)
        source, file = min(labels, default=("chats", "chats"))
        raise InputError(
            f"there is no example {escape_line(id)} in {self.dataset.store.url}: an id is source/file:line, such as "
            f"{escape_line(_Address(source, file, 1).id)}; documents.parquet lists all that were encoded"
        )


def _rows_of(dataset: Finished, doc_id: int) -> Iterator[tuple[str, int]]:
    """Yield (split, row) of each row with a document.

    Raises:
        IntegrityError: a shard is missing or damaged, or no row has the document.
    """
    is_packed = False
    for split, record in dataset.manifest.splits.items():
        first_row = 0
        for shard in record.shards:
            for batch in dataset.sound_batches(shard):
                column = batch.column("doc_ids")
                pieces_of_document = np.flatnonzero(view(column.values) == doc_id)
                # With offsets 0 3 5, pieces 0 to 2 are in row 0, and 3 and 4 in row 1. A row may have several copies.
                rows = np.searchsorted(view(column.offsets), pieces_of_document, side="right") - 1
                for row in np.unique(rows).tolist():
                    is_packed = True
                    yield split, first_row + row
                first_row += batch.num_rows
    if not is_packed:
        raise IntegrityError(
            f"document {doc_id:,} is listed, but no shard of {dataset.store.url} contains it; run packtrain verify"
        )


def _rejected(dataset: Finished, address: _Address) -> Reject | None:
    """Return the entry of an example in the rejects file, or of its whole row; None if there is neither.

    Raises:
        IntegrityError: the file is damaged.
    """
    data = dataset.store.read(REJECTS) or b""  # a dataset without rejects has no such file
    reject_of_row = None
    # Most lines are of other rows, and are not decoded.
    needle = f'"line":{address.line},'.encode()
    for line in data.splitlines():
        if needle not in line:
            continue
        try:
            reject = decode_note(line, Reject)
        except ValueError as error:
            raise IntegrityError(
                f"{dataset.store.where(REJECTS)} is damaged ({error}); packtrain verify --repair rebuilds it"
            ) from error
        labels = (reject.file, _without_suffix(reject.file))
        if reject.source != address.source or address.file not in labels or reject.reason == COUNTED_ONLY:
            continue
        if reject.example == address.sub:
            return reject
        if reject.example < 0:  # the whole row was rejected
            reject_of_row = reject
    return reject_of_row


def _without_suffix(file: str) -> str:
    """The name of a file in ids, from its name in rejects, which has the suffix."""
    folder, slash, name = file.rpartition("/")
    return f"{folder}{slash}{split_name(name)[0]}"
