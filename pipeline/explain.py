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
"""Most examples of a row that a message names."""
_Row: TypeAlias = dict[str, Any]
"""A row of documents.parquet: column → value."""
_ID_PATTERN = re.compile(r"([^/]+)/(.+):([0-9]{1,15})(?:/([0-9]{1,9}))?", re.DOTALL)
"""`source/file:line`, or `source/file:line/sub`; a file's name may have slashes and colons itself."""


@dataclass(frozen=True, slots=True)
class _Address:
    """The parts of an example's id."""

    source: str
    file: str
    """The file's label, which is its name in ids and in documents.parquet."""
    line: int
    """Line in the file, counted from 1."""
    sub: int = -1
    """Which example of the row, from 0; -1 if the row gives only one."""

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
    """Trained labels; 0 for a preference pair that is not packed, for which they are not counted."""
    side: str = ""
    """Of a preference pair that is packed, whose sides are two pieces: `chosen` or `rejected`."""


@dataclass(frozen=True, slots=True, repr=False)
class Story(Shown):
    """What became of one example."""

    id: str
    state: str
    """`packed`, `dropped` or `rejected`."""
    doc_id: int | None = None
    """The number of its document; None if it was rejected before it was encoded."""
    reason: str = ""
    """Why it was dropped or rejected, in one word such as `duplicate`; "" if it is packed."""
    detail: str = ""
    """The reason as a sentence; "" if it is packed."""
    remedy: str = ""
    """What to do about a rejected row; "" for any other."""
    excerpt: str = ""
    """The keys of a rejected row, and the beginnings of its values; "" for any other."""
    twin: str = ""
    """Id of the earlier example, if this one is a duplicate; else ""."""
    tokens: int = 0
    """Tokens before any cut; 0 if it was rejected before it was tokenized."""
    copies: int = 0
    """How often it is packed, by the `weight` or `repeat` of its source; 0 if it is not packed."""
    standings: tuple[Standing, ...] = ()
    """Its pieces, in the order of splits and rows; empty if it is not packed."""
    cut: dict[str, int] = field(default_factory=dict)
    """What has cut the example, such as `truncate.max_length` → its tokens that are in no row."""

    def summary(self) -> str:
        """For a notebook: `chats/chats:17 is packed: in 2 rows: 120 tokens`."""
        size = plural(self.tokens, "token") if self.tokens else ""
        places = {(standing.split, standing.row) for standing in self.standings}
        rows = f"in {plural(len(places), 'row')}" if places else ""
        return f"{self.id} is " + ": ".join(filter(None, (self.state, rows, size, self.reason, self.detail)))

    def tables(self) -> Iterator[Table]:
        """For a notebook: where the example is, and what was cut."""
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
    return explain_example(open_dataset(folder), str(example))


def explain_example(dataset: Finished, example: str) -> Story:
    """What became of one example of an open dataset: its places in rows, or why it has none.

    Args:
        example: the example's id, such as `chats/chats:17`, or the number of its document, such as `5`.

    Raises:
        InputError: there is no such example.
        IntegrityError: a file of the dataset is missing or damaged.
    """
    if example.isdecimal() and len(example) < 19:  # of at most 18 digits, so that an int64 holds it
        return _story_of_number(dataset, int(example))
    address = _parse_id(dataset, example)
    # All examples of the same row. Each column has a list of the values that are allowed, here of one.
    same_row: dict[str, list[Any]] = {"source": [address.source], "file": [address.file], "line": [address.line]}
    documents = dataset.documents(conditions=same_row).to_pylist()
    for document in documents:
        if document["sub"] == address.sub:
            return _story_of_document(dataset, document)
    # Not among the encoded examples: rejected, never made, or no line of an input.
    reject = _rejected(dataset, address)
    if reject is None:
        raise _no_example_error(dataset, example, [document["id"] for document in documents])
    return Story(
        address.id,
        state="rejected",
        reason=reject.reason,
        detail=reject.detail,
        remedy=reject.remedy,
        excerpt=reject.excerpt,
    )


def _parse_id(dataset: Finished, id: str) -> _Address:
    """The parts of an id, with the file's name as documents.parquet has it.

    Raises:
        InputError: it is not an id, or names no input of the run.
    """
    plan = dataset.manifest.plan
    sources = {source["name"] for source in plan["config"]["sources"]}
    labels = {(input["source"], input["file"]) for input in plan["inputs"]}
    match = _ID_PATTERN.fullmatch(id)
    if match is not None and match[1] in sources:
        address = _Address(source=match[1], file=match[2], line=int(match[3]), sub=int(match[4] or -1))
        # Ids have no suffix; rejects.jsonl has it, as in `chats/chats.jsonl:17`, which is understood, too.
        for label in (address.file, _without_suffix(address.file)):
            if (address.source, label) in labels:
                return replace(address, file=label)
    # For the example of an id in the message: the first input, or one that is made up.
    source, file = min(labels, default=("chats", "chats"))
    raise InputError(
        f"there is no example {escape_line(id)} in {dataset.store.url}: an id is source/file:line, such as "
        f"{escape_line(_Address(source, file, line=1).id)}; documents.parquet lists all that were encoded"
    )


def _no_example_error(dataset: Finished, example: str, ids: Sequence[str]) -> InputError:
    """The error for an id that belongs to no example.

    Args:
        ids: the ids of the examples that the same row did give.
    """
    place = dataset.store.url
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


def _story_of_number(dataset: Finished, doc_id: int) -> Story:
    """The story of a document, by its number.

    Raises:
        InputError: there is no such document.
    """
    documents = dataset.documents(conditions={"doc_id": [doc_id]}).to_pylist()
    if not documents:
        count = dataset.documents(["doc_id"]).num_rows
        raise InputError(f"there is no document {doc_id:,} in {dataset.store.url}; doc ids are 0 to {count - 1:,}")
    return _story_of_document(dataset, documents[0])


def _story_of_document(dataset: Finished, document: _Row) -> Story:
    """The story of an example that was encoded: packed, or dropped."""
    story = Story(
        document["id"],
        state="packed",
        doc_id=document["doc_id"],
        tokens=document["tokens"],
        copies=document["copies"],
    )
    outcome = document["outcome"]
    if outcome != PACKED_OUTCOME:
        address = _Address(document["source"], document["file"], line=document["line"], sub=document["sub"])
        # The mask may reject an example after it was encoded; then rejects.jsonl says more than the reason's sentence.
        reject = _rejected(dataset, address)
        detail = reject.detail if reject is not None else REASONS.get(outcome, "")
        twin = _twin(dataset, document) if outcome == "duplicate" else ""
        return replace(story, state="dropped", reason=outcome, detail=detail, twin=twin)
    standings: list[Standing] = []
    for split, row in _rows_of(dataset, document["doc_id"]):
        if dataset.manifest.has_unpacked_pairs:  # a pair that is not packed is a row of its own, without pieces
            standings.append(Standing(split, row, start=0, trained=0))
            continue
        for piece in pieces(dataset, row, split):
            if piece.doc_id == document["doc_id"]:
                standings.append(Standing(split, row, piece.start, piece.trained, piece.side))
    # A run either truncates long documents or splits them, so only one of the two can have cut this one.
    splits = dataset.manifest.plan["config"]["truncate"]["overlong"] == "split"
    cut_by = "pieces in which nothing would be trained" if splits else "truncate.max_length"
    lost = document["tokens"] - document["tokens_kept"]
    return replace(story, standings=tuple(standings), cut={cut_by: lost} if lost else {})


def _twin(dataset: Finished, document: _Row) -> str:
    """The id of the earlier example that a duplicate repeats."""
    table = dataset.documents(["id", "outcome", "digest"])
    # The first that was no duplicate itself: it is packed, or only a draw (see `weight`) has left it out.
    is_first = pc.is_in(table["outcome"], strings([PACKED_OUTCOME, NOT_DRAWN]))
    is_equal = pc.equal(table["digest"], pa.scalar(document["digest"], table.schema.field("digest").type))
    return str(table.filter(pc.and_(is_first, is_equal))["id"][0].as_py())


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
                column = batch.column("doc_ids")  # a list for each row
                # With offsets 0 3 5, pieces 0 1 2 are in row 0, and pieces 3 4 in row 1: piece 3 comes behind two
                # offsets, 0 and 3, so that it is in row 2 - 1.
                pieces_of_document = np.flatnonzero(view(column.values) == doc_id)
                rows = np.searchsorted(view(column.offsets), pieces_of_document, side="right") - 1
                # A row may have several pieces of the document, or copies of it, and is given once.
                for row in np.unique(rows).tolist():
                    is_packed = True
                    yield split, first_row + row
                first_row += batch.num_rows
    if not is_packed:
        raise IntegrityError(
            f"document {doc_id:,} is listed, but no shard of {dataset.store.url} contains it; run packtrain verify"
        )


def _rejected(dataset: Finished, address: _Address) -> Reject | None:
    """The line of rejects.jsonl about an example, or about its whole row; None if there is neither.

    Raises:
        IntegrityError: the file is damaged.
    """
    data = dataset.store.read(REJECTS) or b""  # a dataset without rejects has no such file
    reject_of_row = None
    # Most lines are about other rows: they lack these bytes, as in `…,"line":17,…`, and need not be decoded.
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
        # An input's label may have a suffix or not; the name in a reject always has it.
        labels = (reject.file, _without_suffix(reject.file))
        if reject.source != address.source or address.file not in labels:
            continue
        # This line ends a block, and only counts the rejects of the block that are not listed: it is about no row.
        if reject.reason == COUNTED_ONLY:
            continue
        if reject.example == address.sub:
            return reject
        if (
            reject.example < 0
        ):  # negative: about the whole row; a line about the example alone, which says more, may follow
            reject_of_row = reject
    return reject_of_row


def _without_suffix(file: str) -> str:
    """The name of a file in ids, from its name in rejects, which has the suffix."""
    folder, slash, name = file.rpartition("/")
    return f"{folder}{slash}{split_name(name)[0]}"
