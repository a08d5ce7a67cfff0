"""All sections together."""

from dataclasses import dataclass, field

from .batch import BatchSize
from .choice import Choice
from .flow import Flow
from .overlap import Overlap
from .packing import Packing
from .training import Training
from .trust import Trust

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """What a plan from a sample of rows saw."""

    rows: int
    rows_estimated: int
    """Estimated rows of all inputs, from their sizes."""
    exhaustive: bool
    """Whether the sample covers all inputs."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the report shows."""

    format: int
    kind: str
    """`run` for a finished dataset, `plan` before packing."""
    name: str
    """Name of the folder or the configuration."""
    made: str
    """When this report was made, UTC, ISO 8601."""
    packtrain: str
    """Version of packtrain."""
    sample: Sample | None
    choice: Choice | None = None
    flow: Flow | None = None
    overlap: Overlap | None = None
    """None also if nothing was compared; then `absent` has no reason."""
    training: Training | None = None
    packing: Packing | None = None
    batch: BatchSize | None = None
    trust: Trust | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """For each missing section, by name: why, and how to get it."""
