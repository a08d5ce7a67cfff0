"""What the user can choose about a report."""

from dataclasses import dataclass

from ...schemas.positions import Limit
from ...stages.forecast.sweep import CANDIDATES

SWEPT = 2_000_000
"""Number of documents that the comparison of lengths reads at most, evenly chosen. It takes about 100 MB and four
seconds, and with `overlong: split` two more seconds per 100 million tokens, to find lines and turns.
"""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of a report. None of them changes the dataset."""

    lengths: tuple[int, ...] = CANDIDATES
    """Lengths to compare; the configured one is added."""
    max_length_limit: int | None = None
    """The longest length that the report may advise; longer ones are still compared."""
    limit: Limit | None = None
    """The longest document that the model is made for; None to ask the model in the tokenizer's folder, if there is
    one. Without `max_length_limit`, no longer length is advised."""
    documents: int = SWEPT
    """Maximum number of documents that the comparison of lengths reads, evenly chosen."""
    rows: int = 6
    """Number of packed rows to show as text."""
