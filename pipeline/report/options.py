"""What the user can choose about a report."""

from dataclasses import dataclass

from ...schemas.report import ReportShape
from ...stages.forecast.sweep import CANDIDATES

SEVEN_BILLION = ReportShape("6.7 billion parameters", 6.7e9, 32, 4096)
SWEPT = 2_000_000
"""Number of documents that the comparison of lengths reads by default. It takes about 100 MB and four seconds, and with
`overlong: split` two more seconds per 100 million tokens, to find lines and turns.
"""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of a report. None of them changes the dataset."""

    lengths: tuple[int, ...] = CANDIDATES
    """Lengths to compare; the configured one is added."""
    max_length_limit: int | None = None
    """The longest length that the report may advise; longer ones are still compared."""
    batch: int = 8
    """Documents per padded batch, and per unpacked optimizer step."""
    world_size: int = 8
    """Numbers of ranks for which to show the balance."""
    shape: ReportShape = SEVEN_BILLION
    """The model. In place of the default, the model in the tokenizer's folder is taken, if there is one. Without
    `max_length_limit`, no length above the shape's `limit` is advised."""
    device_flops: float = 4e14
    """Floating-point operations per second of the device: by default an H100 at 40 % of its bf16 peak."""
    documents: int | None = SWEPT
    """Maximum number of documents that the comparison of lengths reads, evenly chosen; None for all."""
    rows: int = 6
    """Number of packed rows to show as text."""
