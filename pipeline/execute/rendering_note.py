"""Records what a worker renders, so that the driver can read it after the kernel has killed the worker."""

import ctypes
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...schemas.errors import TemplateError

RENDERING_KILLED = signal.SIGVTALRM
"""The signal by which the kernel kills a worker with an endless template step; see `template_watchdog`."""
NOTE_BYTES = 512
_NOTE_NAME = 8
"""Offset of the template's name in a note; the row comes before it."""


class RenderingNote:
    """What a worker renders. It is in memory shared with the driver, so it survives the worker.

    Args:
        place: NOTE_BYTES of shared memory.
    """

    def __init__(self, place: Any) -> None:
        self.move_to(place)

    def move_to(self, place: Any) -> None:
        """Use other memory from now on."""
        self._place = place
        self._row = ctypes.c_longlong.from_buffer(place)

    def note_template(self, name: str) -> None:
        """Note the template that is rendered from now on, without a row."""
        name_bytes = name.encode(errors="replace")[: NOTE_BYTES - _NOTE_NAME - 1]
        self._place[_NOTE_NAME:] = name_bytes.ljust(NOTE_BYTES - _NOTE_NAME, b"\0")
        self._row.value = -1

    @property
    def row(self) -> int:
        """The row that is being rendered, or -1."""
        return int(self._row.value)

    def note_row(self, row: int) -> None:
        """Note the current row, counted from 0."""
        self._row.value = row

    def __str__(self) -> str:
        return self.said(f"row {self.row + 1:,}" if self.row >= 0 else "a row")

    def said(self, row: str) -> str:
        """What was rendered, in words, with this name of the row."""
        name = bytes(self._place[_NOTE_NAME:]).rstrip(b"\0").decode(errors="replace")
        return f"chat template '{name}' was stopped on {row}"


note = RenderingNote(ctypes.create_string_buffer(NOTE_BYTES))
"""The note of this process."""


@contextmanager
def rows_of(where: Path | Callable[[int], str]) -> Iterator[None]:
    """Add the file and the noted row to template errors raised inside.

    Args:
        where: the file; or names the file and the row of a noted number.

    Raises:
        TemplateError: the same error, with the file and the row in its message.
    """
    note.note_row(-1)
    try:
        yield
    except TemplateError as error:
        if note.row < 0:
            raise
        place = f"{where}, row {note.row + 1:,}" if isinstance(where, Path) else where(note.row)
        raise TemplateError(f"{place}: {error}") from error
