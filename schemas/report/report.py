"""The packing report: every number that its page, its terminal summary and its JSON file show.

Tokens, labels and rows are counts; shares are 0 to 1. A section is None if it is not available; `Report.absent` says
why. Texts in these structs come from the data and must be escaped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..notebook import Shown, Table
from ..units import plural, share
from .evaluation_hits import Contamination
from .flow import Flow
from .length_choice import Choice
from .shown_rows import ShownRow


@dataclass(frozen=True, slots=True)
class Training:
    """What is being trained on? The numbers of each source are in its ledger."""

    policies: dict[str, str]
    """The mask policy of each source."""
    rows: list[ShownRow]
    # Rows are decoded with the run's own tokenizer, whose folder may be gone.
    rows_absent: str | None
    """Why no row is shown; None if rows are shown, or the split has none."""


@dataclass(frozen=True, slots=True)
class SplitFigures:
    """How one split is packed."""

    split: str
    """Its name, such as `train`."""
    rows: int
    # Beside the rows, so that a reader sees how far any other strategy could come.
    bound: int
    """Lower bound on the rows of any plan; 0 if unknown, or for pairs that are not packed."""
    fill: float
    """The share of the rows' capacity that holds tokens of documents, without padding; 0 of pairs that are not packed.
    """
    tokens: int
    """Tokens with padding."""
    labels: int
    """Trained labels."""
    pieces: int
    """Documents and pieces of documents in the rows; a packed preference pair has two."""
    padding: int
    """Tokens that are padding for `pack.align` and `pack.parallel`."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How good is the packing?"""

    row_length: int
    """Capacity of a row, in tokens."""
    strategy: str
    """`pack.strategy`; `pairs` for preference pairs that are not packed, each a row of its own."""
    splits: list[SplitFigures]
    """The splits that have rows."""
    padded_for: str
    """The keys that ask for padding; empty if nothing is padded."""
    pairs: bool = False
    """Whether its rows hold preference pairs, two pieces each."""


@dataclass(frozen=True, slots=True)
class Made:
    """How to make it again."""

    manifest: str | None
    """Hash of the manifest; None before packing."""
    configuration: str
    """YAML that reproduces the dataset; empty if the folder no longer says what it was packed from."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a plan from a sample of rows saw."""

    rows: int
    """Rows that were encoded."""
    rows_in_all: int
    """Rows of all inputs."""


@dataclass(frozen=True, slots=True, repr=False)
class Report(Shown):
    """Everything that the report shows."""

    kind: str
    """`run` for a finished dataset, `plan` before packing."""
    name: str
    """Name of the folder or the configuration."""
    made_at: str
    """When this report was made, UTC, ISO 8601."""
    packtrain: str
    """Version of packtrain."""
    sample: Sample | None
    """None if all rows were encoded."""
    choice: Choice | None = None
    flow: Flow | None = None
    contamination: Contamination | None = None
    """None also if nothing was compared; then `absent` has no reason."""
    training: Training | None = None
    packing: Packing | None = None
    made: Made | None = None
    # A section is not left out unsaid: a dataset whose `_run/` is gone still has a page, which says what it lacks.
    absent: dict[str, str] = field(default_factory=dict)
    """For each missing section, by name: why, and how to get it."""
    notes: list[str] = field(default_factory=list)
    """What was found on the way, then the answer of each section."""

    def summary(self) -> str:
        summary = f"plan of {self.name}" if self.kind == "plan" else f"report of {self.name}"
        if self.sample is not None:
            summary += f", from {self.sample.rows:,} of {self.sample.rows_in_all:,} rows"
        if self.packing is not None and self.packing.splits:
            rows = [f"{plural(split.rows, 'row')} in {split.split}" for split in self.packing.splits]
            summary += f": {', '.join(rows)}"
        if self.notes:
            summary += f"; {plural(len(self.notes), 'note')} in .notes"
        return summary

    def tables(self) -> Iterator[Table]:
        if self.notes:
            yield Table("Notes", ("",), [(note,) for note in self.notes])
        if self.packing is not None:
            splits = (
                (split.split, split.rows, share(split.fill), split.tokens, split.labels)
                for split in self.packing.splits
            )
            caption = f"Packing by {self.packing.strategy}"
            yield Table(caption, ("split", "rows", "fill", "tokens", "trained tokens"), splits)
        for section in (self.choice, self.flow, self.contamination):
            if section is not None:
                yield from section.tables()
