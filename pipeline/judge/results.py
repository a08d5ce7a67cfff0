"""The results of an evaluation: one line a sample, in no order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...schemas.errors import OutputError
from ...schemas.files.foreign import open_regular
from ...schemas.jsontext import decode_note
from ...stages.judge.comparators import Verdict
from ..store.appended import RECORD, AppendedFile

NAME, SUMMARY, PAGE = "results.jsonl", "summary.json", "report.html"
"""The files of an evaluation: its results, its numbers, and its page."""
_Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """One line: what became of one sample."""

    row: int
    sample: _Count
    id: str
    verdict: Verdict
    failed_test: _Count | None = None
    """Index of the first test that failed, which is the last that ran."""
    actual: str = ""
    """Start of what the program printed or returned in that test."""
    detail: str = ""
    """End of what it wrote to standard error in that test."""
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """By the clock, in all its tests."""


Results = dict[tuple[int, int], SampleResult]
"""(row, sample) → its result."""


def open_results(folder: Path, options: Mapping[str, Any], ids: Mapping[int, str]) -> tuple[AppendedFile, Results]:
    """The results of an evaluation to run or to continue: the file, and those that it has.

    Args:
        options: what is evaluated, and how.
        ids: row of the data → its problem's id.

    Raises:
        OutputError: the folder holds something else, or another evaluation; or a line is damaged.
        BusyError, StoreError: see `AppendedFile`.
    """
    others = [one.name for one in folder.iterdir()] if folder.is_dir() else []
    if held := next((name for name in others if name not in (NAME, NAME + RECORD, SUMMARY, PAGE)), None):
        raise OutputError(f"--out {folder} holds something else ({held}); choose another folder")
    file = AppendedFile(folder / NAME, options)
    try:
        return file, _parsed(file.path, file.lines(), ids)
    except BaseException:
        file.close()
        raise


def read_results(folder: Path, ids: Mapping[int, str]) -> Results:
    """The results of an evaluation.

    Raises:
        OutputError: there is none, or a line is damaged.
    """
    path = folder / NAME
    try:
        with open_regular(path) as file:
            return _parsed(path, file.read().rpartition(b"\n")[0].splitlines(), ids)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be read: {error.strerror or error}; give the --out of a `packtrain eval-apps`"
        ) from None


def _parsed(path: Path, lines: Iterable[bytes], ids: Mapping[int, str]) -> Results:
    results: Results = {}
    for number, line in enumerate(lines, start=1):
        try:
            result = decode_note(line, SampleResult)
            if ids.get(result.row) != result.id:
                raise ValueError(f"the data has another problem in row {result.row}, or none")
        except ValueError as error:
            raise OutputError(
                f"{path}, line {number:,} is damaged ({error}); remove the folder, and evaluate again"
            ) from None
        results[result.row, result.sample] = result
    return results
