"""The files of a report: one HTML page, and one JSON file with every number in it. Every run ends with one."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from ...schemas.errors import OutputError, PacktrainError
from ...schemas.escape import escape_json
from ...schemas.report.report import Report
from ...stages.tokenize.engines import reference_tokenizer
from ..dataset.decode import Decoder
from ..dataset.open_dataset import Finished, open_dataset
from ..observer import Observer
from ..pack.pack import Selected
from ..store.open_store import Store
from .collect import configuration_of, packing_of, report_of
from .lengths.choice import compare_lengths
from .page import report_html
from .sections import answers

HTML = "report.html"
JSON = "report.json"


def report_json(report: Report) -> bytes:
    """Return all numbers as JSON; NaN and infinity become null."""
    return escape_json(msgspec.json.format(msgspec.json.encode(report), indent=1)) + b"\n"


def report(folder: str | Path, *, write: bool = False) -> Report:
    """The report of a finished dataset: what happened to the data, what is trained, how good the packing is, and which
    length would fit.

    >>> report = packtrain.report("packed")
    >>> [split.split for split in report.packing.splits]
    ['train']
    >>> sorted(report.flow.sources)
    ['chats', 'pairs']

    Args:
        folder: the dataset, or its URL.
        write: also write its page and its numbers into the folder, as report.html and report.json.

    Raises:
        InputError: there is no such dataset.
        IntegrityError: a file of it is missing or damaged.
        OutputError: a file cannot be written.
    """
    dataset = open_dataset(folder)
    choice = None
    configuration = ""
    # Only the run's own report knows the comparison of lengths, and the configuration: they are taken from there if it
    # is of this dataset. Errors may be of any kind: a report does not belong to the dataset, so nothing has checked it.
    with suppress(Exception):
        stored = msgspec.json.decode(dataset.store.read(JSON) or b"", type=Report)
        if stored.made is not None and stored.made.manifest == dataset.manifest.hash:
            report_html(stored)  # raises for values that no page can show, which are not taken
            choice = stored.choice
            configuration = stored.made.configuration
    result = report_of(dataset, choice, configuration)
    if write:
        write_report(result, dataset.store)
    # The notes are for people in Python; page and numbers say the same in their sections.
    return replace(result, notes=list(answers(result)))


def write_report(report: Report, out: Store, name: str = "report") -> tuple[str, str]:
    """Write page and numbers, and return where they are.

    Args:
        name: of both files, without their suffixes.

    Raises:
        OutputError: a file cannot be written.
    """
    # An existing report is replaced: it does not belong to the dataset, and may be made again at any time.
    for file, content in ((f"{name}.html", report_html(report)), (f"{name}.json", report_json(report))):
        try:
            out.replace_bytes(file, content)
        except (PacktrainError, OSError) as error:
            raise OutputError(
                f"{out.where(file)} cannot be written ({error}); make its place writable, and run the command again"
            ) from error
    return out.where(f"{name}.html"), out.where(f"{name}.json")


def try_report(dataset: Finished, selected: Selected, base: Path, observer: Observer) -> Report | None:
    """Make the report at the end of a run, and write it; failures are noted and never fail a finished run.

    Args:
        selected: what the run has packed.
        base: where relative paths of its configuration start.
    """
    config = selected.config
    observer.begin("report", 0, "")  # 0: how much work there is is unknown
    try:
        # With these figures of its rows, the configured length need not be estimated. Pairs that are not packed have
        # none.
        packed = packing_of(dataset.manifest).splits if selected.packs else ()
        choice = compare_lengths(selected, base, packed)
        # Of the content that the run has in memory: the tokenizer's folder may have changed since.
        decoder = Decoder(reference_tokenizer(selected.encoded.spec.tokenizer.json))
        report = report_of(dataset, choice, configuration_of(config, base), decoder)
        write_report(report, dataset.store)
        return report
    except Exception as error:  # errors of any kind, because the dataset is already finished
        observer.note(
            f"the report was not written ({type(error).__name__}: {error}); `packtrain report {dataset.store.url}` "
            "tries again"
        )
        return None
    finally:
        observer.end()
