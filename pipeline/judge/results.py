"""The results of an evaluation: one line a sample, in no order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.errors import OutputError
from ...schemas.jsontext import decode_note
from ...stages.judge.extraction import Extraction
from ..store.appended import RECORD, AppendedFile
from ..store.local import open_regular
from .judging import Judgement

NAME = "results.jsonl"


@dataclass(frozen=True, kw_only=True)
class SampleResult(Judgement):
    """One line: what became of one sample."""

    row: int
    sample: int
    id: str
    extraction: Extraction

    def __post_init__(self) -> None:
        """Refuse numbers that no result has, as a damaged file may hold them.

        Raises:
            ValueError: as said.
        """
        if not min(self.sample, self.failed_test or 0, self.seconds) >= 0:
            raise ValueError(f"sample {self.sample}, failed test {self.failed_test}, {self.seconds} s")


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
    if held := next((name for name in others if name not in (NAME, NAME + RECORD, "summary.json")), None):
        raise OutputError(f"--out {folder} holds something else ({held}); choose another folder")
    file = AppendedFile(folder / NAME, options)
    try:
        with file.reader() as reader:
            whole, end, cut = reader.read().rpartition(b"\n")
        if cut:  # by a kill; judged again
            file.cut(len(whole) + len(end))
        return file, _parsed(file.path, whole, ids)
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
            return _parsed(path, file.read().rpartition(b"\n")[0], ids)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be read: {error.strerror or error}; give the --out of a `packtrain eval-apps`"
        ) from None


def encoded(results: Iterable[SampleResult]) -> bytes:
    """Their lines."""
    return b"".join(msgspec.json.encode(one) + b"\n" for one in results)


def _parsed(path: Path, whole: bytes, ids: Mapping[int, str]) -> Results:
    results: Results = {}
    for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
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
