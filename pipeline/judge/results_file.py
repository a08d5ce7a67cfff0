"""The results of an evaluation, one line a sample: appended whole and synced, and read back to continue."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from ...schemas.errors import OutputError
from ...schemas.jsontext import decode_note
from ...stages.judge.extraction import Extraction
from ..store.local import LocalStore, explain, sync_folder
from .attempts import Attempt
from .judging import Judgement

NAME = "results.jsonl"


@dataclass(frozen=True, slots=True)
class ResultKey:
    """Which sample a line is about."""

    row: int
    sample: int
    id: str
    extraction: Extraction


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One line: what became of one sample. The keys of both parts stand beside each other."""

    about: ResultKey
    outcome: Judgement

    @property
    def key(self) -> tuple[int, int]:
        """(row, sample), which is unique."""
        return self.about.row, self.about.sample


def result_of(attempt: Attempt, id: str, outcome: Judgement) -> SampleResult:
    """The result of an attempt."""
    return SampleResult(ResultKey(attempt.row, attempt.sample, id, attempt.extraction), outcome)


class ResultsFile:
    """The results of an evaluation that is running. A context manager.

    Args:
        folder: exists, and no one else writes to it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1

    def __enter__(self) -> "ResultsFile":
        path = self._folder / NAME
        try:
            self._descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666
            )
            sync_folder(self._folder)
        except OSError as error:
            raise explain(error, self._folder) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._descriptor)

    def append(self, results: Iterable[SampleResult]) -> None:
        """Write results and sync them.

        Raises:
            StoreError: the disk is full, or writing failed.
        """
        data = memoryview(b"".join(map(encode_result, results)))
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise explain(error, self._folder) from error


def read_results(folder: Path, ids: Mapping[int, str]) -> dict[tuple[int, int], SampleResult]:
    """(row, sample) → result, so far. A line that was cut by a kill is removed from the file.

    Args:
        ids: row of the data → its problem's id.

    Raises:
        OutputError: a line is damaged, or about a problem that the data does not have.
    """
    store = LocalStore(folder)
    data = store.read(NAME) or b""
    whole, _, cut = data.rpartition(b"\n")
    results: dict[tuple[int, int], SampleResult] = {}
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            result = _decode(line)
            if ids.get(result.about.row) != result.about.id:
                raise ValueError(f"the data has another problem in row {result.about.row}, or none")
        except ValueError as error:
            raise OutputError(
                f"{folder / NAME}, line {number:,} is damaged ({error}); remove the folder, and evaluate again"
            ) from None
        results[result.key] = result
    if cut:
        try:
            os.truncate(folder / NAME, len(data) - len(cut))
        except OSError as error:
            raise explain(error, folder) from error
    return results


def write_sorted(folder: Path, results: Iterable[SampleResult]) -> None:
    """Put the file in order of (row, sample), one line each."""
    store = LocalStore(folder)
    data = b"".join(map(encode_result, sorted(results, key=lambda one: one.key)))
    if data != store.read(NAME):
        store.replace_bytes(NAME, data)


def encode_result(result: SampleResult) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(asdict(result.about) | asdict(result.outcome)) + b"\n"


def _decode(line: bytes) -> SampleResult:
    return SampleResult(decode_note(line, ResultKey), decode_note(line, Judgement))
