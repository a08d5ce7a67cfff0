"""Notes the row that this process renders, so that an error of its template names it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...schemas.errors import TemplateError


class RenderingNote:
    """The row that is being rendered."""

    row: int | None = None
    """Counted from 0."""


note = RenderingNote()
"""The note of this process."""


@contextmanager
def rows_of(where: Path | Callable[[int], str]) -> Iterator[None]:
    """Add the file and the noted row to template errors raised inside.

    Args:
        where: the file; or names the file and the row of a noted number.

    Raises:
        TemplateError: the same error, with the file and the row in its message.
    """
    note.row = None
    try:
        yield
    except TemplateError as error:
        if note.row is None:
            raise
        place = f"{where}, row {note.row + 1:,}" if isinstance(where, Path) else where(note.row)
        raise TemplateError(f"{place}: {error}") from error
