"""What a person may choose about a report."""

from dataclasses import dataclass

from ...schemas.report import Shape
from ...stages.sweep import CANDIDATES

SEVEN_BILLION = Shape("6.7 billion parameters", 6.7e9, 32, 4096)
SWEPT = 2_000_000
"""Documents that a sweep reads, unless all are asked for: some 100 MB and four seconds. Where they are split before
packing, some two seconds more for every 100 million tokens, because lines and turns are looked for."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Nothing of it changes a dataset."""

    lengths: tuple[int, ...] = CANDIDATES
    """Lengths to compare; the configuration's own is added."""
    max_length_limit: int | None = None
    """The longest length that is advised; longer ones are compared all the same."""
    batch: int = 8
    """Documents of a padded batch, and of an unpacked optimizer step."""
    world_size: int = 8
    """Ranks whose balance is told."""
    shape: Shape = SEVEN_BILLION
    device_flops: float = 4e14
    """Floating-point operations a second that a device reaches: an H100 at 40 % of its bf16 peak."""
    documents: int | None = SWEPT
    """Documents that the sweep reads at most, taken evenly; None for all."""
    rows: int = 6
    """Packed rows that are shown as text."""
