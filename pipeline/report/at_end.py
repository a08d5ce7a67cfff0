"""The report that every run ends with: the same as of `packtrain report`, over fewer documents."""

from dataclasses import dataclass

from ..reader import Finished
from .files import write_report
from .gather import report_of_dataset
from .options import ReportOptions

DOCUMENTS = 500_000
"""That the sweep reads: about a second."""


@dataclass(frozen=True, slots=True)
class AtEnd:
    """What the closing words say of it."""

    place: str
    """Of the page."""
    advice: str | None


def report_at_end(dataset: Finished) -> AtEnd:
    """Make and write it.

    Raises:
        OutputError: the folder cannot be written.
    """
    report = report_of_dataset(dataset, ReportOptions(documents=DOCUMENTS))
    place, _ = write_report(report, dataset.store)
    advice = report.choice.advice if report.choice is not None else None
    return AtEnd(place, advice.sentence if advice is not None else None)
