"""All sections together."""

from dataclasses import dataclass, field

from .batch import BatchSize
from .choice import Choice
from .flow import Flow
from .packing import Packing
from .training import Training
from .trust import Trust

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """What a plan from a sample of rows saw."""

    rows: int
    rows_estimated: int
    """Of all inputs, by their sizes."""
    exhaustive: bool
    """Whether the sample is all there is."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the report shows."""

    format: int
    kind: str
    """`run` of a finished dataset, `plan` before packing."""
    name: str
    """Of the folder or the configuration."""
    made: str
    """When this report was, UTC, ISO 8601."""
    packtrain: str
    """Version."""
    sample: Sample | None
    choice: Choice | None = None
    flow: Flow | None = None
    training: Training | None = None
    packing: Packing | None = None
    batch: BatchSize | None = None
    trust: Trust | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Of each section that is None, by its name: why, and what would bring it."""
