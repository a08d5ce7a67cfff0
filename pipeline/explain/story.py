"""Everything known about one example, from its source row to its positions in packed rows."""

from dataclasses import asdict, dataclass, field
from typing import Any

from ..dataset.decode import Piece
from ..dataset.documents import Address
from .source_row import SourceRow
from .tokens import Stretch, TokenFate


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
