"""The files of a report: one HTML page, and one JSON file with every number in it."""

from pathlib import Path

import msgspec

from ...schemas.errors import OutputError, PacktrainError
from ...schemas.escape import escape_json
from ...schemas.report import Report
from ..store.local import LocalStore
from ..store.open import Store

HTML, JSON = "report.html", "report.json"


def report_json(report: Report) -> bytes:
    """Return all numbers as JSON; NaN and infinity become null."""
    return escape_json(msgspec.json.format(msgspec.json.encode(report), indent=1)) + b"\n"


def write_report(report: Report, out: Store, html: str = HTML, json: str = JSON) -> tuple[str, str]:
    """Write page and numbers, and return where they are.

    Raises:
        OutputError: a file cannot be written.
    """
    from .page import report_html

    page, numbers = report_html(report), report_json(report)
    for name, content in ((html, page), (json, numbers)):
        try:
            out.replace_bytes(name, content)
        except (PacktrainError, OSError) as error:
            raise OutputError(
                f"{out.where(name)} cannot be written ({error}); --output FILE.html writes the report elsewhere"
            ) from error
    return out.where(html), out.where(json)


def write_beside(report: Report, path: Path) -> tuple[str, str]:
    """Write the page to a path, and the numbers beside it.

    Raises:
        OutputError: the path does not end in .html, or the file cannot be written.
    """
    if path.suffix != ".html":
        raise OutputError(f"--output: {path} must end in .html; the numbers go beside it as .json")
    return write_report(report, LocalStore(path.absolute().parent), path.name, path.with_suffix(".json").name)
