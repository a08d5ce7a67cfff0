"""The samples file: one JSON object a line.

Groups of samples are appended whole, in the order of the groups, so that a killed process loses at most the group it
was in, and the next one goes on with it. The file is opened once, without following links. Which command makes it is
recorded beside it, in `NAME.run.json`.
"""

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_FORMAT = 2
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
    try:
        with open_regular(path) as raw, open(raw.fileno(), "rb", closefd=False) as file:
            for number, sample, _ in _lines(path, file):
                if sample.key in seen:
                    raise InputError(
                        f"{path}, line {number:,}: sample {sample.sample} of row {sample.row} is there twice; keep one "
                        "of them"
                    )
                if ids.setdefault(sample.row, sample.id) != sample.id:
                    raise InputError(
                        f"{path}, line {number:,}: row {sample.row} has the id {escape_line(sample.id)} here, and "
                        f"{escape_line(ids[sample.row])} above; these samples are not of one data file: keep those of "
                        "one"
                    )
                seen.add(sample.key)
                yield sample
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give a samples file") from error


def check_place(path: Path) -> None:
    """Refuse a place where no samples file can be written, before any work.

    Raises:
        OutputError: it is a link or a folder, below a file, or a file that no command of ours made.
        StoreError: its folder cannot be written.
    """
    record = path.with_name(path.name + RECORD)
    there = next(one for one in path.absolute().parents if one.exists())
    if not there.is_dir():
        raise OutputError(f"--out {path}: {there} is a file, not a folder; choose another place")
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise OutputError(f"--out {path} is not a regular file; choose another name")
    if path.exists() and path.stat().st_size and not record.exists():
        raise OutputError(
            f"--out {path} exists, and {record.name}, which would say what made it, does not; choose another file"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise explain(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), there)


class SamplesFile:
    """A samples file being written by one process, or continued. A context manager.

    Args:
        path: the file, made if needed.
        options: everything that decides the samples, as plain data.
        groups: the keys of each group that this run makes, in order.

    Attributes:
        groups_done: how many of the groups are in the file.
        tokens: tokens of the samples in the file, as far as known.
        reasons: samples in the file by `finish_reason`.

    Raises:
        BusyError: another process writes it.
        InputError: it holds a line that is no sample.
        OutputError: it was made by another command, or holds samples that this command does not make.
        StoreError: it cannot be written, or the disk is full. Every method may raise it.
    """

    def __init__(self, path: Path, options: Mapping[str, Any], groups: Sequence[Sequence[tuple[int, int]]]) -> None:
        self.path = path
        self.groups_done = self.tokens = 0
        self.reasons: Counter[str] = Counter()
        check_place(path)
        self._store = LocalStore(path.absolute().parent)
        try:
            self._store.root.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise explain(error, path) from error
        try:
            lock.own(self._descriptor)
            if lock.lock(self._descriptor, wait=False) is False:
                raise BusyError(f"--out {path}: another process is writing it; let it finish, or choose another file")
            self._keep_record(options)
            self._continue(groups)
        except OSError as error:
            lock.release(self._descriptor)
            raise explain(error, self._store.root) from error
        except BaseException:
            lock.release(self._descriptor)
            raise

    def append(self, samples: Iterable[Sample]) -> None:
        """Write the next group, and sync it."""
        some = list(samples)
        left = memoryview(b"".join(_encode(sample) + b"\n" for sample in some))
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise explain(error, self._store.root) from error
        self._count(some)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        lock.release(self._descriptor)

    def _count(self, group: Sequence[Sample]) -> None:
        self.groups_done += 1
        self.tokens += sum(sample.tokens or 0 for sample in group)
        self.reasons.update(sample.finish_reason or "unknown" for sample in group)

    def _keep_record(self, options: Mapping[str, Any]) -> None:
        """Refuse samples of another command. The record of a file without samples binds no command."""
        name = self.path.name + RECORD
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            whole = file.readline(MAX_LINE_BYTES).endswith(b"\n")
        if not whole:
            self._store.replace_bytes(name, indented_json({"format": _FORMAT, "options": dict(options)}, 1) + b"\n")
            return
        try:
            found = parse_json(self._store.read(name) or b"")
            theirs = found["options"] if found["format"] == _FORMAT else {}
            different = [one for one in sorted({*options, *theirs}) if theirs.get(one) != options.get(one)]
        except (ValueError, KeyError, TypeError):
            raise OutputError(f"{self._store.where(name)} is damaged; choose another --out") from None
        if different:
            said = "; ".join(f"{one}: {_shown(theirs.get(one))} then, {_shown(options.get(one))} now"
                             for one in different)  # fmt: skip
            raise OutputError(
                f"--out {self.path} holds samples of another command ({said}); choose another file, or repeat "
                "that command"
            )

    def _continue(self, groups: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Count the groups that are there, and cut off what a killed process had begun to write."""
        end = at = 0
        group: list[Sample] = []
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            for number, sample, size in _lines(self.path, file, cut=True):
                wanted = groups[self.groups_done][len(group)] if self.groups_done < len(groups) else None
                if sample.key != wanted:
                    raise OutputError(
                        f"{self.path}, line {number:,}: sample {sample.sample} of row {sample.row} is not the one that "
                        "this command makes there; choose another file"
                    )
                group.append(sample)
                at += size
                if len(group) == len(groups[self.groups_done]):
                    self._count(group)
                    group, end = [], at
        os.ftruncate(self._descriptor, end)
        sync_folder(self._store.root)


def _lines(path: Path, file: IO[bytes], *, cut: bool = False) -> Iterator[tuple[int, Sample, int]]:
    """(line from 1, sample, bytes) of each line.

    Args:
        cut: leave out a last line without a line end, instead of refusing it if it is no JSON.
    """
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        whole = line.endswith(b"\n")
        if cut and not whole and len(line) < MAX_LINE_BYTES:
            return
        if line.isspace() and not cut:
            continue
        yield number, _sample(path, number, line, whole), len(line)


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
