"""The results of an evaluation: a line that says what is evaluated and how, then one line a sample.

The file is opened once, without following links; lines are appended whole and synced, so that a killed evaluation
continues where it stopped. Lines are in no order.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from ...schemas.errors import BusyError, OutputError
from ...schemas.files import lock
from ...schemas.jsontext import decode_note, parse_json
from ...stages.judge.extraction import Extraction
from ..store.local import explain, sync_folder
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


Results = dict[tuple[int, int], SampleResult]


class ResultsFile:
    """The results of an evaluation that is running. A context manager; makes the folder if it is missing.

    Args:
        identity: what is evaluated, and how.
        ids: row of the data → its problem's id.

    Attributes:
        done: the results so far.

    Raises:
        OutputError: the folder holds something else, or another evaluation; or a line is damaged.
        BusyError: another process is writing it.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], ids: Mapping[int, str]) -> None:
        self._folder, self._path = folder, folder / NAME
        self.done: Results = {}
        if os.path.lexists(folder) and not folder.is_dir():
            raise OutputError(f"--out {folder} is no folder; choose another place")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = next((one.name for one in folder.iterdir() if one.name not in (NAME, "summary.json")), None)
            if held is not None:
                raise OutputError(f"--out {folder} holds something else ({held}); choose another folder")
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(self._path, flags, 0o666)
        except OSError as error:
            raise explain(error, self._path) from error
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise OutputError(f"{self._path} is not a regular file; choose another --out")
            lock.own(self._descriptor)
            if lock.lock(self._descriptor, wait=False) is False:
                raise BusyError(f"another evaluation is writing to {folder}; wait for it, or choose another --out")
            self._read(identity, ids)
        except BaseException:
            lock.release(self._descriptor)
            raise

    def __enter__(self) -> "ResultsFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        lock.release(self._descriptor)

    def append(self, results: Iterable[SampleResult]) -> None:
        """Write results and sync them.

        Raises:
            StoreError: the disk is full, or writing failed.
        """
        some = list(results)
        self._write(b"".join(map(_encoded, some)))
        self.done.update((one.key, one) for one in some)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise explain(error, self._folder) from error

    def _read(self, identity: Mapping[str, Any], ids: Mapping[int, str]) -> None:
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            data = file.read()
        whole, _, cut = data.rpartition(b"\n")
        if cut:  # by a kill; judged again
            os.ftruncate(self._descriptor, len(data) - len(cut))
        if not whole:
            self._write(msgspec.json.encode(dict(identity)) + b"\n")
            sync_folder(self._folder)
            return
        before, self.done = _parsed(self._path, whole, ids)
        if differs := differences(before, identity):
            raise OutputError(
                f"--out {self._folder} holds another evaluation: {differs} (there, here); choose another folder"
            )


def read_results(folder: Path, ids: Mapping[int, str]) -> tuple[dict[str, Any], Results]:
    """(identity, results) of an evaluation.

    Raises:
        OutputError: there is none, or a line is damaged.
    """
    path = folder / NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            whole = file.read().rpartition(b"\n")[0]
    except OSError as error:
        raise OutputError(
            f"{path} cannot be read: {error.strerror}; give the --out of a `packtrain eval-apps`"
        ) from None
    return _parsed(path, whole, ids)


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The values that differ between two identities, for a message."""
    keys = [key for key in dict.fromkeys((*here, *there)) if there.get(key) != here.get(key)]
    return "; ".join(f"{key} {_short(there.get(key))}, {_short(here.get(key))}" for key in keys)


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}…"


def _encoded(result: SampleResult) -> bytes:
    return msgspec.json.encode(asdict(result.about) | asdict(result.outcome)) + b"\n"


def _parsed(path: Path, whole: bytes, ids: Mapping[int, str]) -> tuple[dict[str, Any], Results]:
    identity: Any = None
    results: Results = {}
    for number, line in enumerate(whole.split(b"\n"), start=1):
        try:
            if number == 1:
                identity = parse_json(line)
                if not isinstance(identity, dict) or "comparator" not in identity:
                    raise ValueError("it does not say what is evaluated")
                continue
            result = SampleResult(decode_note(line, ResultKey), decode_note(line, Judgement))
            if ids.get(result.about.row) != result.about.id or result.about.sample < 0:
                raise ValueError(f"the data has another problem in row {result.about.row}, or none")
        except (ValueError, msgspec.MsgspecError) as error:
            raise OutputError(
                f"{path}, line {number:,} is damaged ({error}); remove the folder, and evaluate again"
            ) from None
        results[result.key] = result
    return identity, results
