"""Limits for templates, which are untrusted code.

A stage has no clock, so a watch of the process limits time and memory (`pipeline.execute.template_watchdog`). Both
depend on the machine, and exceeding them always ends the run: it never rejects a row.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias, TypeVar

MAX_CHARACTERS = 1 << 28
"""Maximum number of characters of a rendering."""


class TemplateLimitError(Exception):
    """A template was stopped. `ChatTemplate` catches it and names the template."""


Watch: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Opens a context that raises `TemplateLimitError` or MemoryError if its body takes too much time or memory."""

Result = TypeVar("Result")
_watches: list[Watch] = []


def watch_by(watch: Watch | None) -> None:
    """Watch every rendering of this process, because a stage has no clock. None removes the watch."""
    _watches[:] = [] if watch is None else [watch]


def limited(body: Callable[[], Result]) -> Result:
    """Call a body under the watch, if there is one, and return its result.

    If memory runs out, the body is called once more, because the process may have grown since the watch last looked.

    Raises:
        TemplateLimitError: the body took too long, or too much memory, or nested too deeply.
    """
    try:
        try:
            return _watched(body)
        except MemoryError:
            return _watched(body)
    except MemoryError as error:
        raise TemplateLimitError("it asked for more memory than a rendering may have") from error
    except RecursionError as error:
        raise TemplateLimitError("it nests too deeply, or without end") from error


def _watched(body: Callable[[], Result]) -> Result:
    if not _watches:
        return body()
    with _watches[0]():
        return body()


def require_replaced(text: str, old: str, new: str) -> None:
    """Refuse a replacement that would make a text too long; `require_size` raises."""
    require_size(len(text) + text.count(old) * len(new))


def require_size(characters: int) -> None:
    """Refuse a text that would be too long.

    Raises:
        TemplateLimitError: it would be.
    """
    if characters > MAX_CHARACTERS:
        raise TemplateLimitError(f"it makes a text of more than {MAX_CHARACTERS >> 20} Mi characters")
