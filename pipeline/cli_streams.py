"""The standard streams: that one of them cannot be written is told from what goes wrong with data, in one line."""

import errno
import io
import os
import sys
from typing import Any, TextIO

from ..schemas.errors import PacktrainError
from ..schemas.escape import escape


class OutputLostError(PacktrainError, RuntimeError):
    """The standard output cannot be written: the disk behind it is full, say."""


class ReaderLeftError(OutputLostError):
    """Whoever read the standard output has left, as `head` does. Nothing is said of it."""

    exit_code = 128 + 13
    """As shells call a program that SIGPIPE ended."""


class _Output(io.FileIO):
    """Raises errors of its own, once; what comes later is dropped, so that nothing fails again while all is closed."""

    lost: OutputLostError | None = None

    def write(self, data: Any) -> int:
        if self.lost is None:
            try:
                return super().write(data)
            except OSError as error:
                self.lost = _explained(error)
                self._failed(self.lost)
        return memoryview(data).nbytes

    def _failed(self, lost: OutputLostError) -> None:
        raise lost


class _Remarks(_Output):
    """The other stream. What it would have said is no reason to stop."""

    def _failed(self, lost: OutputLostError) -> None: ...


def _explained(error: OSError) -> OutputLostError:
    if error.errno == errno.EPIPE:
        return ReaderLeftError("whoever read the standard output has left")
    return OutputLostError(
        f"the standard output cannot be written ({error.strerror}); what was printed is cut short. Make room, or "
        "send it elsewhere, and run the same command again"
    )


def guard_streams() -> None:
    """Open those that are closed, to nowhere, and put guards before those of the process. Others' are left alone.

    With a closed one, the next file that is opened would take its number, and get what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, os.fdopen(file, "w" if number else "r", encoding="utf-8"))
    for name, kind in (("stdout", _Output), ("stderr", _Remarks)):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _guarded(stream, kind))


def print_line(text: str = "", *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print text that may come from anywhere, escaped, and a line end.

    Args:
        file: by default the standard output.
        flush: at once, for lines that are far apart and are watched through pipes.
    """
    print(escape(text), file=file or sys.stdout, flush=flush)


def flush_output() -> None:
    """Write what is held back.

    Raises:
        OutputLostError: something of it was lost, now or before, whoever caught that.
    """
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Output) and raw.lost is not None:
        raise raw.lost


def _guarded(stream: io.TextIOWrapper, kind: type[_Output]) -> io.TextIOWrapper:
    stream.flush()
    raw = kind(stream.fileno(), "wb", closefd=False)
    # A line at a time where Python was told to hold nothing back.
    at_once = stream.line_buffering or stream.write_through
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=at_once)
