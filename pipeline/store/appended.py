"""A file of lines that one process at a time appends to, and that the same command continues after a kill.

It is opened once, without following links, so that nothing but this file is ever cut or written. Which command makes it
is recorded beside it, in `NAME.run.json`.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

from ...schemas.errors import BusyError, OutputError
from ...schemas.escape import escape_line
from ...schemas.files import lock
from ...schemas.jsontext import indented_json, parse_json
from .local import LocalStore, store_error, sync_folder, writing_to

RECORD_SUFFIX = ".run.json"
"""The suffix of the file that says which command makes a file."""
_FORMAT = 5
"""Raised when the meaning of recorded options changes: no command continues a file of another format."""


def check_place(path: Path) -> None:
    """Refuse, before any work, a place that holds something else than a file of ours.

    Raises:
        OutputError: it is no regular file, or nothing says what made it.
    """
    if not os.path.lexists(path):
        return
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OutputError(f"--out {path} is not a regular file; choose another place")
    record = path.with_name(path.name + RECORD_SUFFIX)
    # An empty file holds nothing to lose.
    if path.stat().st_size and not record.exists():
        raise OutputError(
            f"--out {path} exists, and {record.name}, which would say what made it, does not; choose another place"
        )


def read_options(path: Path) -> dict[str, Any]:
    """The recorded options of the command that made a file; empty if they were recorded in another format.

    Raises:
        OutputError: there is no record, or it is damaged.
    """
    store = LocalStore(path.absolute().parent)
    name = path.name + RECORD_SUFFIX
    try:
        record = parse_json(store.read(name) or b"")
        return dict(record["options"]) if record["format"] == _FORMAT else {}
    except (ValueError, KeyError, TypeError):
        raise OutputError(f"{store.where(name)} is missing or damaged; choose another place") from None


def describe_differences(recorded: Mapping[str, Any], requested: Mapping[str, Any]) -> str:
    """The options that differ between the command that made a file (there) and this one (here); "" if none does."""
    differences = []
    for key in dict.fromkeys((*requested, *recorded)):
        if recorded.get(key) != requested.get(key):
            differences.append(f"{key}: {_shorten(recorded.get(key))} there, {_shorten(requested.get(key))} here")
    return "; ".join(differences)


def _shorten(value: Any) -> str:
    """A value for a message, of which only the beginning is shown if it is long."""
    text = escape_line(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= 60 else f"{text[:60]}…"


class AppendedFile:
    """A file in the place that `--out` names, made with its folder if it is missing. Close it.

    What a killed process had begun to write, a line without its end, is cut off.

    Args:
        options: everything that decides what the file holds, as plain data. They must equal the recorded ones, unless
            the file has no whole line yet.

    Raises:
        OutputError: something else is in its place, or a file in that of its folder; or another command made it.
        BusyError: another process is writing it.
        StoreError: it cannot be written, or the disk is full. Every method may raise it.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self.path = path
        check_place(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A link or a pipe that takes the place after the check is neither followed nor waited for.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(path, flags, 0o666)
        except (FileExistsError, NotADirectoryError) as error:
            raise OutputError(f"--out {path}: {error.filename} is not a folder; choose another place") from None
        except OSError as error:
            raise store_error(error, path) from error
        try:
            if lock.lock(self._descriptor, wait=False) is False:
                raise BusyError(f"--out {path}: another process is writing it; let it finish, or choose another place")
            # (lines + 1,) where each line ends in the file: for lines of 5 and 7 bytes, 0, 5 and 12.
            self._line_ends = [0, *accumulate(len(line) for line in self.lines())]
            self._check_record(options)
            self.keep(self.count)  # all whole lines: cuts off a line without its end
            sync_folder(path.absolute().parent)
        except BaseException as error:
            # The caller does not get the object, and so could not close it.
            lock.release(self._descriptor)
            if isinstance(error, OSError):
                raise store_error(error, path) from error
            raise

    def close(self) -> None:
        """Close the file, and let another process write it."""
        lock.release(self._descriptor)

    def _check_record(self, options: Mapping[str, Any]) -> None:
        """Record the options if the file has no line yet; else compare them with the recorded ones."""
        if not self.count:
            data = indented_json({"format": _FORMAT, "options": dict(options)}, indent=1) + b"\n"
            LocalStore(self.path.absolute().parent).replace_bytes(self.path.name + RECORD_SUFFIX, data)
        elif differences := describe_differences(read_options(self.path), options):
            raise OutputError(
                f"--out {self.path} is of another command ({differences}); choose another place, or repeat that command"
            )

    @property
    def count(self) -> int:
        """The number of lines that it held when it was opened."""
        return len(self._line_ends) - 1

    def lines(self) -> Iterator[bytes]:
        """Its whole lines, with their ends."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            yield from takewhile(lambda line: line.endswith(b"\n"), file)

    def keep(self, count: int) -> None:
        """Cut off all but the first `count` lines, of those that it held when it was opened."""
        with writing_to(self.path):
            os.ftruncate(self._descriptor, self._line_ends[count])

    def append(self, data: bytes) -> None:
        """Write whole lines, and sync them: a line that was reported as done outlives a power failure."""
        unwritten = memoryview(data)
        with writing_to(self.path.parent):
            while unwritten:  # one call may write only a part
                unwritten = unwritten[os.write(self._descriptor, unwritten) :]
            os.fsync(self._descriptor)
