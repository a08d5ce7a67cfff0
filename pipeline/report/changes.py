"""What differs between two finished datasets: every number that the table, the page and the JSON of a diff show.

The first one is called A, the second one B; a change is B less A.
"""

from dataclasses import dataclass, field
from typing import Any

from ...schemas.report import Histogram

FORMAT = 1
ALL = "all"
"""What stands in a source's place where all of them are meant."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two."""

    where: str
    """The folder or its URL, as it was given."""
    manifest: str
    plan: str
    preference: bool
    """Whether its rows are preference pairs."""
    max_length: int
    sources: list[str]
    splits: list[str]
    rows: int
    tokens: int
    """Packed, padding and copies counted."""
    labels: int
    """Trained."""
    shards: int
    bytes: int
    """Of the shards."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key that is not the same."""

    section: str
    """`configuration`, `reading` (how rows of a source are read), `tokenizer`, `encoding` or `versions`."""
    key: str
    a: Any
    """Plain data; None where it is not there."""
    b: Any
    spelling: bool = False
    """Whether both say the same in other words, so that no row depends on it."""
    whole_source: bool = False
    """Whether it is a source that only one of them has."""


@dataclass(frozen=True, slots=True)
class InputChange:
    """One input file that is not the same."""

    what: str
    """`added`, `removed`, `renamed` (the same bytes under another name), `appended` (it begins as it was), `grown` (the
    blocks that can be compared are as they were, and it has more), or `changed`."""
    source: str
    file: str
    was: str | None
    """Of a renamed file, `source/file` of A."""
    bytes_a: int | None
    bytes_b: int | None
    rows: int | None = None
    """Of an appended or grown file, how many rows at its beginning are the same."""


@dataclass(frozen=True, slots=True)
class InputsChange:
    """The inputs, by content."""

    sentence: str
    same: int
    files_a: int
    files_b: int
    bytes_a: int
    bytes_b: int
    counts: dict[str, int]
    """Changes of each kind, all of them."""
    changes: list[InputChange]
    """The first of them."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One line of the account."""

    source: str
    """`all` for the sum, where there are several."""
    name: str
    """A field of `schemas.ledger.SourceLedger`."""
    reason: str | None
    label: str
    """For people."""
    a: int
    b: int

    @property
    def change(self) -> int:
        """B less A."""
        return self.b - self.a


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a split."""

    split: str
    name: str
    unit: str
    """`count`, `share` (0 to 1), `number` or `bytes`."""
    a: float | None
    """None where A has no such split, or no such figure."""
    b: float | None


@dataclass(frozen=True, slots=True)
class LengthsChange:
    """Tokens of an example."""

    sentence: str
    what: str
    """Which tokens are counted."""
    a: Histogram
    b: Histogram
    """Of the same bins."""


@dataclass(frozen=True, slots=True)
class SourceExamples:
    """Packed examples of a source, by their ids. The first five add up to all that are in A or in B."""

    source: str
    only_a: int
    only_b: int
    same: int
    """In both, with the same tokens, and the same of them trained."""
    tokens: int
    """In both, with other tokens."""
    labels: int
    """In both, with the same tokens, of which others are trained."""
    copies: int
    """Of those in both: packed another number of times."""
    moved: int
    """Of those in both: in another split."""


@dataclass(frozen=True, slots=True)
class ShownExample:
    """An example. Its id is data's text."""

    id: str
    was: str | None
    """Its id in A, where its file was renamed."""
    source: str
    tokens_a: int | None
    tokens_b: int | None
    trained_a: int | None
    """None where it is not there, or where no row was read."""
    trained_b: int | None
    copies_a: int | None
    copies_b: int | None
    split_a: str | None
    split_b: str | None


@dataclass(frozen=True, slots=True)
class Contents:
    """Packed examples by their tokens, whatever their ids: as many as there are, copies not counted."""

    both: int
    only_a: int
    only_b: int


@dataclass(frozen=True, slots=True)
class ExamplesChange:
    """Which examples are packed."""

    sentence: str
    compared: str
    """What was compared, in words."""
    sources: list[SourceExamples]
    """Each, and where there are several, all of them first."""
    contents: Contents | None
    """None where no row was read."""
    shown: dict[str, list[ShownExample]]
    """The first of `only_a`, `only_b`, `tokens`, `labels`, `copies` and `moved`, where there are any."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that a diff shows."""

    format: int
    made: str
    """When, UTC, ISO 8601."""
    packtrain: str
    """Version."""
    sentence: str
    a: Side
    b: Side
    identical: bool
    """Whether the fingerprints are the same: then every byte is."""
    same_rows: bool
    """Whether all shards are the same bytes in the same order."""
    settings: list[Setting]
    inputs: InputsChange
    ledger: list[LedgerLine]
    """Every line that is not 0 in both, those that did not change, too."""
    packing: list[Measure]
    lengths: LengthsChange | None = None
    examples: ExamplesChange | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Why `lengths` or `examples` is None."""
