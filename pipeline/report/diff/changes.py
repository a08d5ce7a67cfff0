"""All numbers that a diff of two finished datasets shows, in the terminal, on the page and in JSON.

The first dataset is A, the second B. A change is B minus A.
"""

from dataclasses import dataclass, field

from ....schemas.report import Histogram
from ...dataset.plan_diff import Setting as Setting

FORMAT = 1
ALL = "all"
"""Used instead of a source's name for the sum of all sources."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two datasets."""

    where: str
    """The folder or URL, as given."""
    manifest: str
    plan: str
    preference: bool
    """Whether its rows are preference pairs."""
    max_length: int
    sources: list[str]
    splits: list[str]
    rows: int
    tokens: int
    """Packed tokens, including padding and copies."""
    padding: int
    """Packed tokens that are padding."""
    labels: int
    """Trained tokens."""
    shards: int
    bytes: int
    """Total size of the shards."""


@dataclass(frozen=True, slots=True)
class InputChange:
    """One input file that differs."""

    what: str
    """`added`, `removed`, `renamed` (same bytes, other name), `appended` (the new file starts with the old one),
    `grown` (the new file is longer, and all blocks that can be compared are the same), or `changed`.
    """
    source: str
    file: str
    was: str | None
    """`source/file` of a renamed file in A; None if it was not renamed."""
    bytes_a: int | None
    bytes_b: int | None
    rows: int | None = None
    """For an appended or grown file, the number of rows at its start that are the same."""


@dataclass(frozen=True, slots=True)
class InputsChange:
    """The comparison of the input files, by content."""

    sentence: str
    same: int
    files_a: int
    files_b: int
    bytes_a: int
    bytes_b: int
    counts: dict[str, int]
    """Number of files by kind of change."""
    changes: list[InputChange]
    """The first changes; `counts` has all."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One line of the ledger."""

    source: str
    """`all` for the sum of several sources."""
    name: str
    """A field of `schemas.ledger.SourceLedger`."""
    reason: str | None
    label: str
    """The line's name in words."""
    a: float
    b: float

    @property
    def change(self) -> float:
        """B minus A."""
        return self.b - self.a


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a split."""

    split: str
    name: str
    unit: str
    """`count`, `share` (0 to 1), `number` or `bytes`."""
    a: float | None
    """The figure in A; None if A has no such split or figure."""
    b: float | None


@dataclass(frozen=True, slots=True)
class LengthsChange:
    """The comparison of example lengths, in tokens."""

    sentence: str
    what: str
    """Which tokens are counted."""
    a: Histogram
    b: Histogram
    """Histogram of B, with the same bins as A's."""


@dataclass(frozen=True, slots=True)
class SourceExamples:
    """Counts of one source's packed examples, matched by id. The first five counts add up to all examples that are in A
    or B.
    """

    source: str
    only_a: int
    only_b: int
    same: int
    """Number of examples in both with the same tokens and the same trained tokens."""
    tokens: int
    """Number of examples in both with different tokens."""
    labels: int
    """Number of examples in both with the same tokens but different trained ones."""
    copies: int
    """Number of examples in both with a different number of copies."""
    moved: int
    """Number of examples in both but in different splits."""


@dataclass(frozen=True, slots=True)
class ShownExample:
    """An example to show. Its id is untrusted text."""

    id: str
    was: str | None
    """Id of the example in A, if its file was renamed."""
    source: str
    tokens_a: int | None
    tokens_b: int | None
    trained_a: int | None
    """Trained tokens in A; None if A lacks the example, or no rows were read."""
    trained_b: int | None
    copies_a: int | None
    copies_b: int | None
    split_a: str | None
    split_b: str | None


@dataclass(frozen=True, slots=True)
class Contents:
    """Counts of packed examples matched by tokens, whatever their ids; copies are not counted."""

    both: int
    only_a: int
    only_b: int


@dataclass(frozen=True, slots=True)
class ExamplesChange:
    """The comparison of the packed examples."""

    sentence: str
    compared: str
    """What was compared, in words."""
    sources: list[SourceExamples]
    """Counts of each source; if there are several sources, the sum of all comes first."""
    contents: Contents | None
    """Examples matched by content; None if no rows were read."""
    shown: dict[str, list[ShownExample]]
    """The first examples of each kind: `only_a`, `only_b`, `tokens`, `labels`, `copies` or `moved`."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that a diff shows."""

    format: int
    made: str
    """Time of the comparison: UTC, ISO 8601."""
    packtrain: str
    """The version of packtrain."""
    sentence: str
    a: Side
    b: Side
    identical: bool
    """Whether the manifests' hashes are equal, and therefore all bytes."""
    same_rows: bool
    """Whether all shards have the same bytes, in the same order."""
    settings: list[Setting]
    inputs: InputsChange
    ledger: list[LedgerLine]
    """Every ledger line that is not 0 in both datasets, whether or not it changed."""
    packing: list[Measure]
    lengths: LengthsChange | None = None
    examples: ExamplesChange | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Why `lengths` or `examples` is None."""
