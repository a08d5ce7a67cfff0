"""Print to standard output, and report failures to write it separately from data errors."""

import errno
import io
import json
import math
import os
import sys
from typing import Any, TextIO

from ...schemas.errors import PacktrainError
from ...schemas.escape import escape

_FULL = (
    "standard output cannot be written (%s), so what was printed is incomplete. Make room, or redirect it elsewhere, "
    "and run the same command again"
)


class OutputLostError(PacktrainError, RuntimeError):
    """Standard output cannot be written, for example because its disk is full."""


class ReaderLeftError(OutputLostError):
    """The reader of standard output has closed it, as `head` does. The command ends without a message."""

    exit_code = 128 + 13
    """What shells report for a program ended by SIGPIPE."""


class _Stream(io.FileIO):
    """A standard stream. Once a write has failed, the rest is dropped, so that closing it does not fail again."""

    lost: OutputLostError | None = None
    raises = True

    def write(self, data: Any) -> int:
        if self.lost is None:
            try:
                return super().write(data)
            except OSError as error:
                self.lost = ReaderLeftError() if error.errno == errno.EPIPE else OutputLostError(_FULL % error.strerror)
                if self.raises:
                    raise self.lost from error
        return memoryview(data).nbytes


def guard_streams() -> None:
    """Make standard output raise `OutputLostError`; failed writes to standard error are dropped.

    Streams that another program put in place stay as they are. Closed streams are opened on the null device: otherwise
    the next opened file would get their number, and receive what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            file = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, os.fdopen(file, "w" if number else "r", encoding="utf-8"))
        elif number and stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            raw = _Stream(stream.fileno(), "wb", closefd=False)
            raw.raises = name == "stdout"
            # Line-buffered where Python was started unbuffered.
            at_once = stream.line_buffering or stream.write_through
            text = io.TextIOWrapper(
                io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=at_once
            )
            setattr(sys, name, text)


def print_line(text: str = "", *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print untrusted text, escaped, with a line end.

    Args:
        file: standard output by default.
        flush: write at once, for occasional lines that someone watches through a pipe.
    """
    print(escape(text), file=file or sys.stdout, flush=flush)


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print plain data, dataclasses and structs included, as JSON in ASCII.

    ASCII keeps control characters of the data escaped; DEL, which JSON leaves as it is, is escaped here. Infinite
    numbers and NaN become null, because JSON cannot write them.
    """
    text = json.dumps(_plain(value), indent=indent, allow_nan=False, default=str)
    print_line(text.replace("\x7f", "\\u007f"))


def _plain(value: Any) -> Any:
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if names and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def flush_output() -> None:
    """Flush standard output.

    Raises:
        OutputLostError: output was lost, now or earlier, even if the earlier error was caught.
    """
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Stream) and raw.lost is not None:
        raise raw.lost
