"""Everything known about one example, from its source row, if its input is still what the run read, to its positions in
packed rows.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgspec

from ...schemas.errors import PacktrainError
from ...schemas.units import plural
from ..dataset.decode import Piece
from ..dataset.documents import Address
from ..inputs.blocks import InputFile
from ..inputs.lines import BOM
from ..inputs.read import read_rows
from .tokens import Stretch, TokenFate

_LONGEST = 1 << 40
"""Bytes of a row; the run has already decided which rows are too long."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source row, or why it cannot be shown."""

    state: Literal["same", "changed", "gone", "not taken", "unknown"]
    """Of the row's block: it still has the hash that the run noted, or another; it is not there; it lies beyond
    `max_rows`; or its place is unknown, or the input has no such row.
    """
    path: str
    """Path of the input; "" if unknown."""
    said: str
    """The state of the input, in a sentence."""
    item: bytes | Mapping[str, Any] | None = None
    """The row as its file has it: a line of JSON, or a decoded row. None if it cannot be read."""

    @property
    def value(self) -> Any:
        """The row as plain data; as text if the line is not JSON; None without a row."""
        if not isinstance(self.item, bytes):
            return dict(self.item) if self.item is not None else None
        try:
            return msgspec.json.decode(self.item.removeprefix(BOM))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self.item.decode(errors="backslashreplace")


def source_row(file: InputFile | None, address: Address) -> SourceRow:
    """Read the source row at an address.

    Args:
        file: the row's file, as the run noted it; None if the note is gone.
    """
    if file is None:
        return SourceRow("unknown", "", "the folder no longer says where this input was")
    path, total = str(file.path), file.lines + file.not_taken
    if address.line > total:
        return SourceRow("unknown", path, f"{path} had {plural(total, 'row')}")
    if address.line > file.lines:
        return SourceRow("not taken", path, "the row lies beyond the source's max_rows")
    block = next(one for one in file.blocks if one.first_line < address.line <= one.first_line + one.lines)
    then = f"it had {file.size:,} bytes, with BLAKE3 hash {file.hash[:16]}"
    where = block.spooled or file.path
    if not where.is_file():
        return SourceRow("gone", path, f"{where} is gone; {then}")
    try:
        rows = read_rows(file.path, block, _LONGEST)
    except (OSError, PacktrainError) as error:
        return SourceRow("changed", path, f"{path} has changed since the run; {then} ({error})")
    number = address.line - 1 - block.first_line
    found = (item for at, item in (*(rows.lines or ()), *(rows.records or ())) if at == number)
    return SourceRow("same", path, "as the run read it", next(found, None))


@dataclass(frozen=True, slots=True)
class Standing:
    """One piece of a document in a packed row."""

    split: str
    row: int
    """Row of the split, counted from 0."""
    shard: str
    shard_row: int
    """Row of the shard, counted from 0."""
    at: int
    """Position of the piece's first token in the row."""
    piece: Piece


@dataclass(frozen=True, slots=True)
class CutTokens:
    """Tokens of a packed document that no row contains."""

    begin: int
    end: int
    reason: str


@dataclass(slots=True)
class Story:
    """Everything known about one example."""

    address: Address
    folder: str
    doc_id: int | None
    origin: SourceRow
    state: str
    """`packed`, `dropped`, `rejected`, `blank`, `not taken` or `left out`."""
    reason: str = ""
    detail: str = ""
    total: int = 0
    """Tokens before any cut."""
    policy: str = ""
    stretches: list[Stretch] = field(default_factory=list)
    standings: list[Standing] = field(default_factory=list)
    copies: int = 0
    """How often it is packed; 0 if that is unknown."""
    cuts: list[CutTokens] = field(default_factory=list)
    twin: str = ""
    """Id of the earlier example, if this one is a duplicate."""
    row: tuple[str, int] | None = None
    """Split and row of a preference pair; None for other examples."""
    notes: list[str] = field(default_factory=list)
    """Sentences that say what is missing, and why."""

    @property
    def trained(self) -> int:
        """Tokens that some row trains."""
        return sum(len(one.ids) for one in self.stretches if one.fate is TokenFate.TRAINED)


def story_json(story: Story) -> dict[str, Any]:
    """The story as plain data."""
    stretches = [
        {**asdict(one), "kind": one.kind.name.lower() if one.kind is not None else None} for one in story.stretches
    ]
    found = []
    for standing in story.standings:
        piece = standing.piece
        place = {key: getattr(standing, key) for key in ("split", "row", "shard", "shard_row", "at")}
        weight = {"weight": sum(piece.weights)} if piece.weights is not None else {}
        found.append({**place, "start": piece.start, "length": len(piece.ids), "trained": piece.trained, **weight})
    origin = {key: getattr(story.origin, key) for key in ("path", "state", "said")}
    return {
        "id": story.address.id,
        "doc_id": story.doc_id,
        "source": {
            **{key: getattr(story.address, key) for key in ("source", "file", "line")},
            **origin,
            "row": story.origin.value,
        },
        "mask": story.policy,
        "tokens": stretches,
        "outcome": {
            **{key: getattr(story, key) for key in ("state", "reason", "detail", "twin", "row", "copies")},
            "tokens": story.total,
            "pieces": found,
            "cut": [asdict(cut) for cut in story.cuts],
        },
        "notes": story.notes,
    }
