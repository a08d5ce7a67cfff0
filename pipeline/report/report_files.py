"""The files of a report: one HTML page, and one JSON file with every number in it. Every run ends with one."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from ...schemas.errors import OutputError, PacktrainError
from ...schemas.escape import escape_json
from ...schemas.report import Choice, Report, SplitFigures
from ..dataset.decode import Decoder
from ..dataset.open_dataset import Finished
from ..observer import Observer
from ..store.open_store import Store
from .collect import report_of
from .lengths import advice_sentence, warnings_of
from .page import report_html
from .sections import losing_sources

HTML, JSON = "report.html", "report.json"


def report_json(report: Report) -> bytes:
    """Return all numbers as JSON; NaN and infinity become null."""
    return escape_json(msgspec.json.format(msgspec.json.encode(report), indent=1)) + b"\n"


def report_again(dataset: Finished) -> Report:
    """The report of a dataset that was finished before. Only the run's own report knows the comparison of lengths, and
    the configuration: they are taken from there if it is of this dataset.
    """
    made = report_of(dataset)
    with suppress(Exception):  # of any kind: it is not part of the dataset, and somebody else may have written it
        noted = msgspec.json.decode(dataset.store.read(JSON) or b"", type=Report)
        if noted.made is not None and made.made is not None and noted.made.manifest == made.made.manifest:
            absent = {name: why for name, why in made.absent.items() if name != "choice" or noted.choice is None}
            again = replace(made, choice=noted.choice, made=noted.made, absent=absent)
            report_html(again)  # whatever it holds, it can be shown
            return again
    return made


def write_report(report: Report, out: Store, name: str = "report") -> tuple[str, str]:
    """Write page and numbers, and return where they are.

    Args:
        name: of both files, without their suffixes.

    Raises:
        OutputError: a file cannot be written.
    """
    for file, content in ((f"{name}.html", report_html(report)), (f"{name}.json", report_json(report))):
        try:
            out.replace_bytes(file, content)
        except (PacktrainError, OSError) as error:
            raise OutputError(
                f"{out.where(file)} cannot be written ({error}); make its place writable, and run the command again"
            ) from error
    return out.where(f"{name}.html"), out.where(f"{name}.json")


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The part of a report that the end of a run prints."""

    place: str
    """Path or URL of the page."""
    advice: str
    """Which length would fit; "" if there is nothing to advise."""
    warning: str
    """That the run's length is above what the model is made for, and sources that lose much at it; "" if neither."""


def try_report(
    dataset: Finished,
    observer: Observer,
    choose: Callable[[SplitFigures | None], Choice],
    configuration: str,
    decoder: Decoder,
) -> AtEnd | None:
    """Make the report and write it; failures are noted and never fail a finished run.

    Args:
        choose, configuration, decoder: see `report_of`.
    """
    observer.begin("report", 0, "")
    try:
        report = report_of(dataset, choose, configuration, decoder)
        place, _ = write_report(report, dataset.store)
        choice, flow = report.choice, report.flow
        warnings = [*(warnings_of(choice) if choice else ()), *(losing_sources(flow) if flow else ())]
        return AtEnd(place, advice_sentence(choice) if choice else "", " ".join(warnings))
    except Exception as error:  # errors of any kind, because the dataset is already finished
        observer.note(
            f"the report was not written ({type(error).__name__}: {error}); `packtrain report {dataset.store.url}` "
            "tries again"
        )
        return None
    finally:
        observer.end()
