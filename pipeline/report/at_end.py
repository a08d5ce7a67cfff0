"""Makes the report at the end of every run: like `packtrain report`, but from fewer documents."""

from dataclasses import dataclass

from ..dataset.decode import Decoder
from ..dataset.open import Finished
from ..observer import Observer
from .collect import report_of_dataset
from .files import write_report
from .options import ReportOptions
from .sections import advice_sentence, warnings_of

DOCUMENTS = 500_000
"""Maximum number of documents that the comparison of lengths reads; that takes about a second."""


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The part of a report that the end of a run prints."""

    place: str
    """Path or URL of the page."""
    advice: str | None
    """Which length would fit."""
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
    if report.choice is None:
        return AtEnd(place, None)
    return AtEnd(place, advice_sentence(report.choice) or None, " ".join(warnings_of(report.choice)) or None)
