"""The report that every run ends with: the same as of `packtrain report`, over fewer documents."""

from dataclasses import dataclass

from ..observer import Observer
from ..reader import Finished
from .by_source import source_warning
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
    warning: str | None = None
    """Which source loses much at the length of the run."""


def try_report(dataset: Finished, observer: Observer) -> AtEnd | None:
    """The same. The data is finished, so whatever goes wrong here is told, and fails nothing."""
    observer.begin("report", 0, "")
    try:
        made = report_at_end(dataset)
    except Exception as error:  # of any kind: the run itself has done all it should
        observer.end()
        observer.note(
            f"the report was not written ({type(error).__name__}: {error}); `packtrain report {dataset.store.url}` "
            "tries again"
        )
        return None
    observer.end()
    return made


def report_at_end(dataset: Finished) -> AtEnd:
    """Make and write it.

    Raises:
        OutputError: the folder cannot be written.
    """
    report = report_of_dataset(dataset, ReportOptions(documents=DOCUMENTS))
    place, _ = write_report(report, dataset.store)
    advice = report.choice.advice if report.choice is not None else None
    warning = source_warning(report.choice) if report.choice is not None else None
    return AtEnd(place, advice.sentence if advice is not None else None, warning)
