"""The results of an evaluation: one line a sample, in the order in which they were judged."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...schemas.errors import OutputError
from ...schemas.files.foreign import open_regular
from ...schemas.jsontext import decode_note
from ...stages.judge.comparators import Verdict
from ..store.appended import RECORD_SUFFIX, AppendedFile

RESULTS_FILE = "results.jsonl"
SUMMARY_FILE = "summary.json"
PAGE_FILE = "report.html"
_FILES = frozenset({RESULTS_FILE, RESULTS_FILE + RECORD_SUFFIX, SUMMARY_FILE, PAGE_FILE})
"""All files that the folder of an evaluation may hold."""
_Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """One line: what became of one sample."""

    row: int
    """Of the problem in the data, from 0."""
    sample: _Count
    """Number of the answer, or of the data's own program, in its row."""
    id: str
    """Of the problem."""
    verdict: Verdict
    failed_test: _Count | None = None
    """Index of the first test that failed, which is the last that ran; None if none failed, or none ran."""
    actual: str = ""
    """Start of what the program printed or returned in that test."""
    detail: str = ""
    """End of what it wrote to standard error in that test."""
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """By the clock, in all its tests."""


Results = dict[tuple[int, int], SampleResult]
"""(row, sample) → its result."""


def open_results(folder: Path, options: Mapping[str, Any], ids: Mapping[int, str]) -> tuple[AppendedFile, Results]:
    """The file for the results of an evaluation to run or to continue, open, and the results that it has already.

    Args:
        options: what is evaluated, and how.
        ids: row of the data → its problem's id.

    Raises:
        OutputError: the folder holds something else, or another evaluation; or a line is damaged.
        BusyError: another process is writing the results.
        StoreError: they cannot be read or written.
    """
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    for name in names:
        if name not in _FILES:
            raise OutputError(f"--out {folder} holds something else ({name}); choose another folder")
    file = AppendedFile(folder / RESULTS_FILE, options)
    # The caller closes the file, but if this raises, it never gets one.
    try:
        return file, _parse_lines(file.path, file.lines(), ids)
    except BaseException:
        file.close()
        raise


def read_results(folder: Path, ids: Mapping[int, str]) -> Results:
    """The results of an evaluation.

    Args:
        ids: row of the data → its problem's id, which each result must have: they may be of other data.

    Raises:
        OutputError: there is none, a line is damaged, or a result is of another problem.
    """
    path = folder / RESULTS_FILE
    try:
        with open_regular(path) as file:
            # A killed process may have left a line without its end.
            complete = file.read().rpartition(b"\n")[0]
            return _parse_lines(path, complete.splitlines(), ids)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be read: {error.strerror or error}; give the --out of a `packtrain eval-apps`"
        ) from None


def _parse_lines(path: Path, lines: Iterable[bytes], ids: Mapping[int, str]) -> Results:
    """The results of a file's lines.

    Args:
        ids: row of the data → its problem's id.

    Raises:
        OutputError: a line is damaged, or of another problem than the data has in its row.
    """
    results: Results = {}
    for number, line in enumerate(lines, start=1):
        try:
            result = decode_note(line, SampleResult)
            # The file may be of another data set that was put in the place of the first.
            if ids.get(result.row) != result.id:
                raise ValueError(f"the data has another problem in row {result.row}, or none")
        except ValueError as error:
            raise OutputError(
                f"{path}, line {number:,} is damaged ({error}); remove the folder, and evaluate again"
            ) from None
        results[result.row, result.sample] = result
    return results
