"""A program in a terminal of its own: what a person sees, and Ctrl-C."""

import os
import pty
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_PERSONS = ("NO_COLOR", "FORCE_COLOR", "CI", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM")
"""What would have a console believe something else than what is set here."""


def in_terminal(
    command: Sequence[object], cwd: Path, environment: Mapping[str, str] | None = None, *, interrupt_at: bytes = b""
) -> tuple[int, str]:
    """The exit code, and what appears in a terminal of 100 columns. Ctrl-C where `interrupt_at` appears."""
    ours, theirs = pty.openpty()
    plain = {key: value for key, value in os.environ.items() if key not in _PERSONS}
    plain |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", **(environment or {})}
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd, env=plain, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the end, as Linux says it
            break
        if not piece:
            break
        seen += piece
        if interrupt_at and interrupt_at in seen:
            interrupt_at = b""
            os.killpg(process.pid, signal.SIGINT)
    os.close(ours)
    return process.wait(600), seen.decode()
