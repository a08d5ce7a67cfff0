"""Makes the report at the end of every run: like `packtrain report`, but from fewer documents."""

from dataclasses import dataclass

from ..dataset.decode import Decoder
from ..dataset.open import Finished
from ..observer import Observer
from .collect.gather import report_of_dataset
from .collect.lengths.by_source import source_warning
from .files import write_report
from .options import ReportOptions

DOCUMENTS = 500_000
"""Maximum number of documents that the comparison of lengths reads; that takes about a second."""


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The part of a report that the end of a run prints."""

    place: str
    """Path or URL of the page."""
    advice: str | None
    warning: str | None = None
    """That the run's length is above what the model is made for, and sources that lose much at it; None if neither."""


def try_report(dataset: Finished, observer: Observer, decoder: Decoder | None = None) -> AtEnd | None:
    """Write the report; failures are noted and never fail a finished run.

    Args:
        decoder: the run's tokenizer, if it is loaded.
    """
    observer.begin("report", 0, "")
    try:
        made = report_at_end(dataset, decoder)
    except Exception as error:  # errors of any kind, because the dataset is already finished
        observer.end()
        observer.note(
            f"the report was not written ({type(error).__name__}: {error}); `packtrain report {dataset.store.url}` "
            "tries again"
        )
        return None
    observer.end()
    return made


def report_at_end(dataset: Finished, decoder: Decoder | None = None) -> AtEnd:
    """Make the report and write it.

    Raises:
        OutputError: the folder cannot be written.
    """
    report = report_of_dataset(dataset, ReportOptions(documents=DOCUMENTS), decoder)
    place, _ = write_report(report, dataset.store)
    advice = report.choice.advice if report.choice is not None else None
    warnings = [report.choice.over_limit, source_warning(report.choice)] if report.choice is not None else []
    warning = " ".join(one for one in warnings if one is not None) or None
    return AtEnd(place, advice.sentence if advice is not None else None, warning)
