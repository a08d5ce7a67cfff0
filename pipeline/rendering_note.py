"""What a worker renders, for its driver to read after the kernel has ended the worker."""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..schemas.errors import TemplateError

RENDERING_KILLED = signal.SIGVTALRM
"""By it the kernel ends a worker in which one step of a template has no end; see `watchdog`."""
NOTE_BYTES = 512
_NOTE_NAME = 8
"""Where in a note the template's name begins; before it stands the row."""


class RenderingNote:
    """What a worker renders, in memory that its driver shares: still there after the kernel has ended the worker.

    Args:
        place: NOTE_BYTES of shared memory.
    """

    def __init__(self, place: Any) -> None:
        self.move_to(place)

    def move_to(self, place: Any) -> None:
        """Write there from now on."""
        self._place = place
        self._row = ctypes.c_longlong.from_buffer(place)

    def note_template(self, name: str) -> None:
        """Have this template rendered from now on, and no row yet."""
        name_bytes = name.encode(errors="replace")[: NOTE_BYTES - _NOTE_NAME - 1]
        self._place[_NOTE_NAME:] = name_bytes.ljust(NOTE_BYTES - _NOTE_NAME, b"\0")
        self._row.value = -1

    @property
    def row(self) -> int:
        """The row that is rendered, or -1."""
        return int(self._row.value)

    def note_row(self, row: int) -> None:
        """Begin a row, counted from 0."""
        self._row.value = row

    def __str__(self) -> str:
        name = bytes(self._place[_NOTE_NAME:]).rstrip(b"\0").decode(errors="replace")
        row = f"row {self.row + 1:,}" if self.row >= 0 else "a row"
        return f"chat template '{name}' was stopped on {row}"


note = RenderingNote(ctypes.create_string_buffer(NOTE_BYTES))
"""Of this process."""


@contextmanager
def rows_of(path: Path) -> Iterator[None]:
    """What goes wrong with the template inside is said of the row that is noted.

    Raises:
        TemplateError: names the file and the row.
    """
    note.note_row(-1)
    try:
        yield
    except TemplateError as error:
        if note.row < 0:
            raise
        raise TemplateError(f"{path}, row {note.row + 1:,}: {error}") from error
