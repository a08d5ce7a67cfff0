"""The files of a report: one HTML page, and one JSON file with every number in it. Every run ends with one."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ...schemas.errors import OutputError, PacktrainError
from ...schemas.escape import escape_json
from ...schemas.report import Report
from ..dataset.decode import Decoder
from ..dataset.open_dataset import Finished
from ..observer import Observer
from ..store.open_store import Store
from .collect import report_of
from .document_lengths import ReadDocuments
from .length_words import advice_sentence, losing_sources, warnings_of

HTML = "report.html"


def report_json(report: Report) -> bytes:
    """Return all numbers as JSON; NaN and infinity become null."""
    return escape_json(msgspec.json.format(msgspec.json.encode(report), indent=1)) + b"\n"


def write_report(report: Report, out: Store, name: str = "report") -> tuple[str, str]:
    """Write page and numbers, and return where they are.

    Args:
        name: of both files, without their suffixes.

    Raises:
        OutputError: a file cannot be written.
    """
    from .page import report_html

    for file, content in ((f"{name}.html", report_html(report)), (f"{name}.json", report_json(report))):
        try:
            out.replace_bytes(file, content)
        except (PacktrainError, OSError) as error:
            raise OutputError(
                f"{out.where(file)} cannot be written ({error}); packtrain report --output FILE.html writes the report "
                "of a dataset elsewhere"
            ) from error
    return out.where(f"{name}.html"), out.where(f"{name}.json")


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The part of a report that the end of a run prints."""

    place: str
    """Path or URL of the page."""
    advice: str | None
    """Which length would fit."""
    warning: str | None = None
    """That the run's length is above what the model is made for, and sources that lose much at it; None if neither."""


def try_report(
    dataset: Finished, observer: Observer, read: Callable[[], ReadDocuments], configuration: str, decoder: Decoder
) -> AtEnd | None:
    """Make the report and write it; failures are noted and never fail a finished run.

    Args:
        read, configuration, decoder: see `report_of`.
    """
    observer.begin("report", 0, "")
    try:
        report = report_of(dataset, read, configuration, decoder)
        place, _ = write_report(report, dataset.store)
        choice, flow = report.choice, report.flow
        advice = advice_sentence(choice) if choice is not None else ""
        warnings = [*(warnings_of(choice) if choice else ()), *(losing_sources(flow) if flow else ())]
        return AtEnd(place, advice or None, " ".join(warnings) or None)
    except Exception as error:  # errors of any kind, because the dataset is already finished
        observer.note(
            f"the report was not written ({type(error).__name__}: {error}); `packtrain report {dataset.store.url}` "
            "tries again"
        )
        return None
    finally:
        observer.end()
