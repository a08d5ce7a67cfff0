"""The samples file: one JSON object a line.

Lines are appended whole as samples finish, in any order, so that a killed process loses at most those it had not
finished. The end of a run puts them into the order of (row, sample): a deterministic engine gives the same bytes, with
however many interruptions. Which command makes the file is recorded beside it, in `NAME.run.json`.
"""

import errno
import os
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from ...schemas.errors import BusyError, InputError, OutputError
from ...schemas.escape import escape_line
from ...schemas.files import lock
from ...schemas.jsontext import indented_json, parse_json
from ...schemas.samples import Sample
from ..store.local import LocalStore, explain, open_regular, sync_folder

RECORD = ".run.json"
"""The suffix of the file that says which command makes a samples file."""
MAX_LINE_BYTES = 64 << 20
_FORMAT = 1
_SYNC_SECONDS = 1.0
_encode = msgspec.json.Encoder().encode


class _SampleLine(msgspec.Struct):
    """A line as other programs may write it: the ids of many data files are numbers."""

    id: str | int
    row: int
    sample: int
    text: str
    finish_reason: str | None = None
    tokens: int | None = None


_decode = msgspec.json.Decoder(_SampleLine).decode


def read_samples(path: Path) -> Iterator[Sample]:
    """The samples of a file, in its order. Blank lines are skipped, unknown keys ignored.

    Raises:
        InputError: the file cannot be read; a line is no sample or is cut short; a sample is there twice; or samples
            of one row have different ids. Names the line.
    """
    seen: set[tuple[int, int]] = set()
    ids: dict[int, str] = {}
    for number, sample, _ in _lines(path):
        if sample.key in seen:
            raise InputError(
                f"{path}, line {number:,}: sample {sample.sample} of row {sample.row} is there twice; keep one of them"
            )
        if ids.setdefault(sample.row, sample.id) != sample.id:
            raise InputError(
                f"{path}, line {number:,}: row {sample.row} has the id {escape_line(sample.id)} here, and "
                f"{escape_line(ids[sample.row])} above; these samples are not of one data file: keep those of one"
            )
        seen.add(sample.key)
        yield sample


def check_place(path: Path) -> None:
    """Refuse a place where no samples file can be written, before any work.

    Raises:
        OutputError: it is a folder, below a file, or a file that no command of ours made.
        StoreError: its folder cannot be written.
    """
    record = path.with_name(path.name + RECORD)
    there = next(one for one in path.absolute().parents if one.exists())
    if not there.is_dir():
        raise OutputError(f"--out {path}: {there} is a file, not a folder; choose another place")
    if path.exists() and not path.is_file():
        raise OutputError(f"--out {path} is not a regular file; choose another name")
    if path.exists() and path.stat().st_size and not record.exists():
        raise OutputError(
            f"--out {path} exists, and {record.name}, which would say what made it, does not; choose another file"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise explain(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), there)


class SamplesFile:
    """A samples file being written by one process, or resumed. The record of a file without samples binds no command.

    Args:
        path: the file, made if needed.
        options: everything that decides the samples, as plain data.
        wanted: the keys that this run makes.

    Raises:
        BusyError: another process writes it.
        InputError: it holds a line that is no sample.
        OutputError: it was made by another command, or holds samples that this command does not make.
        StoreError: it cannot be written, or the disk is full. Every method may raise it.
    """

    def __init__(self, path: Path, options: Mapping[str, Any], wanted: Iterable[tuple[int, int]]) -> None:
        self.path = path
        self.done: set[tuple[int, int]] = set()
        """Keys of the samples in the file."""
        self.tokens = 0
        """Tokens of the samples in the file, as far as known."""
        self.reasons: Counter[str] = Counter()
        """Samples in the file by `finish_reason`."""
        check_place(path)
        self._store = LocalStore(path.absolute().parent)
        self._record = path.name + RECORD
        record = indented_json({"format": _FORMAT, "options": dict(options)}, 1) + b"\n"
        self._store.put_bytes(self._record, record)
        try:
            self._lock = self._locked()
            try:
                self._keep_record(options, record)
                self._store.sweep_top()
                self._file = self._resumed(set(wanted))
            except BaseException:
                lock.release(self._lock)
                raise
        except OSError as error:
            raise explain(error, self._store.root) from error
        self._synced = time.monotonic()

    def append(self, samples: Iterable[Sample]) -> None:
        """Write samples that are not in the file yet."""
        lines = []
        for sample in samples:
            assert sample.key not in self.done
            self._count(sample)
            lines.append(_encode(sample) + b"\n")
        try:
            self._file.write(b"".join(lines))
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            raise explain(error, self._store.root) from error

    def finish(self) -> None:
        """Put the lines into the order of (row, sample). They are not held in memory."""
        try:
            os.fsync(self._file.fileno())
            keys, sizes, at = [], array("Q"), array("Q")
            end = 0
            for _, sample, size in _lines(self.path):
                keys.append(sample.key)
                at.append(end)
                sizes.append(size)
                end += size
            order = sorted(range(len(keys)), key=keys.__getitem__)
            if order == list(range(len(keys))):
                return
            with self._store.draft("") as draft, open_regular(self.path) as old:
                for one in order:
                    draft.file.write(os.pread(old.fileno(), sizes[one], at[one]))
                with draft.path.open("rb") as written:
                    os.fsync(written.fileno())
                draft.path.replace(self.path)
                sync_folder(self._store.root)
        except OSError as error:
            raise explain(error, self._store.root) from error

    def close(self) -> None:
        """Close the file, finished or not."""
        try:
            os.fsync(self._file.fileno())
        finally:
            self._file.close()
            lock.release(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _count(self, sample: Sample) -> None:
        self.done.add(sample.key)
        self.tokens += sample.tokens or 0
        self.reasons[sample.finish_reason or "unknown"] += 1

    def _keep_record(self, options: Mapping[str, Any], record: bytes) -> None:
        there = self._store.read(self._record) or b""
        if there == record:
            return
        if not self.path.exists() or next(_lines(self.path, cut=True), None) is None:
            # In place, as the lock is on this file: a command that failed before its first sample.
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, record, 0)
            os.fsync(self._lock)
            return
        try:
            found = parse_json(there)
            theirs = found["options"] if found["format"] == _FORMAT else {}
            different = [one for one in sorted({*options, *theirs}) if theirs.get(one) != options.get(one)]
        except (ValueError, KeyError, TypeError):
            raise OutputError(f"{self._store.where(self._record)} is damaged; choose another --out") from None
        if different:
            said = "; ".join(f"{one}: {_shown(theirs.get(one))} then, {_shown(options.get(one))} now"
                             for one in different)  # fmt: skip
            raise OutputError(
                f"--out {self.path} holds samples of another command ({said}); choose another file, or repeat "
                "that command"
            )

    def _locked(self) -> int:
        descriptor = os.open(self._store.path(self._record), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        lock.own(descriptor)
        if lock.lock(descriptor, wait=False) is False:
            lock.release(descriptor)
            raise BusyError(f"--out {self.path}: another process is writing it; let it finish, or choose another file")
        return descriptor

    def _resumed(self, wanted: set[tuple[int, int]]) -> IO[bytes]:
        end = 0
        if self.path.exists():
            for number, sample, size in _lines(self.path, cut=True):
                if sample.key not in wanted:
                    raise OutputError(
                        f"{self.path}, line {number:,}: sample {sample.sample} of row {sample.row} is not one that "
                        "this command makes; choose another file"
                    )
                if sample.key in self.done:
                    raise OutputError(
                        f"{self.path}, line {number:,}: sample {sample.sample} of row {sample.row} is there twice; "
                        "remove one of them"
                    )
                self._count(sample)
                end += size
        file = self.path.open("ab", buffering=0)
        if file.tell() > end:
            file.truncate(end)  # the line that a killed process was writing
        sync_folder(self._store.root)
        return file


def _lines(path: Path, *, cut: bool = False) -> Iterator[tuple[int, Sample, int]]:
    """(line from 1, sample, bytes) of each line.

    Args:
        cut: leave out a last line without a line end, instead of refusing it if it is no JSON.
    """
    try:
        with open_regular(path) as raw, open(raw.fileno(), "rb", closefd=False) as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                whole = line.endswith(b"\n")
                if cut and not whole and len(line) < MAX_LINE_BYTES:
                    return
                if line.isspace() and not cut:
                    continue
                yield number, _sample(path, number, line, whole), len(line)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give a samples file") from error


def _sample(path: Path, number: int, line: bytes, whole: bool) -> Sample:
    where = f"{path}, line {number:,}"
    if len(line) == MAX_LINE_BYTES:
        raise InputError(f"{where}: longer than {MAX_LINE_BYTES >> 20} MiB; give a samples file")
    try:
        said = _decode(line)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {escape_line(str(error))}; each line needs id, row, sample and text") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not whole:
            raise InputError(
                f"{where}: the last line is cut short; the command that made the file completes it, or remove the line"
            ) from None
        raise InputError(
            f"{where}: not JSON ({escape_line(str(error))}); give a samples file, one object a line"
        ) from None
    if said.row < 0 or said.sample < 0:
        raise InputError(f"{where}: row {said.row}, sample {said.sample}: both count from 0")
    return Sample(str(said.id), said.row, said.sample, said.text, said.finish_reason, said.tokens)


def _shown(value: Any) -> str:
    text = escape_line(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    return text if len(text) <= 60 else f"{text[:60]}…"
