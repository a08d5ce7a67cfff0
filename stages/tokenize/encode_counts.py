"""What encoding a block found: one counter, and one list of the first places of each kind."""

from dataclasses import dataclass, field
from typing import NamedTuple

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example

MOST_PLACES = 1_000
"""Maximum number of places of one kind and name; all of them are counted."""
REJECTED, DROPPED = "rows_rejected", "examples_dropped"
"""The kinds of rows that cannot be used, and of examples that cannot although their row may have given others."""


class Place(NamedTuple):
    """Where something was found."""

    kind: str
    name: str
    line: int
    """The row in the block, from 0."""
    sub: int
    """Number of the example of the row, or -1."""
    detail: str = ""


@dataclass(slots=True)
class EncodeCounts:
    """Counts of one block's encoding, for the ledger, notes and rejects.jsonl."""

    examples: int = 0
    tokens: int = 0
    """All tokens, including added ones."""
    end_of_sequence: int = 0
    special: int = 0
    straddles: int = 0
    found: dict[str, dict[str, int]] = field(default_factory=dict)
    """Kind → name → how many rows, conversations or turns. Kinds are fields of the ledger, or its reasons."""
    places: list[Place] = field(default_factory=list)
    """The first of each kind and name."""

    def add(self, kind: str, name: str, line: int, sub: int = -1, detail: str = "", *, places: int = 1) -> None:
        """Count something, and note where it is.

        Args:
            places: maximum number of places to note for this kind and name.
        """
        names = self.found.setdefault(kind, {})
        count = names.get(name, 0)
        if count < places:
            self.places.append(Place(kind, name, line, sub, detail))
        names[name] = count + 1

    def refuse(self, example: Example, error: RowRejectedError) -> None:
        """Count an example that cannot be encoded: as its row, if the row is this one example."""
        kind = REJECTED if example.sub < 0 else DROPPED
        self.add(kind, error.reason, example.line, example.sub, error.detail, places=MOST_PLACES)

    def of(self, kind: str) -> int:
        """How many were found of a kind, under all names."""
        return sum(self.found.get(kind, {}).values())
