"""Watches templates: the kernel enforces limits while a template renders.

- Processor time: a timer's signal, which Python handles between two instructions.
- Memory: RLIMIT_AS makes an allocation fail.
- One instruction that never ends, such as comparing deeply nested lists, handles no signals. In a worker, a second
  timer makes the kernel kill the process, and the driver names its task.

An error of a template names the row that was being rendered.
"""

import importlib
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ...schemas.errors import TemplateError
from ...stages.template.environment import TemplateLimitError, watch_by
from .executor import RENDERING_KILLED


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


SECONDS = 5.0
"""Seconds of processor time per rendering; most take a millisecond."""
SPACE_GROWTH = 2 << 30
"""Bytes of address space that one rendering may add; an allocation beyond fails at once."""
KILL_SECONDS = 15.0
"""Seconds of processor time after which the kernel kills a worker that does not respond."""
_AGAIN = 1.0
"""Seconds after which the error is raised again, in case something swallows it, as destructors do."""
_NEVER = float("-inf")
_SPACE_SECONDS = 0.05
"""Seconds for which a measurement of the address space is reused."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_handler_of: Callable[[int], Any] = importlib.import_module("_signal").getsignal
"""`signal.getsignal`, which would look for the handler among the members of an enum: 2 µs for every rendering."""


class _Process:
    """What is known of this process. Renderings are not nested."""

    rendering = False
    kills = False
    """Whether the kernel may kill this process, because it is a worker."""
    space = 0
    """Bytes of address space; measured at the time `looked`."""
    limits = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    """Soft and hard limit of the address space while nothing renders; read when `space` was measured."""
    looked = _NEVER


def _ring(_number: int, _frame: FrameType | None) -> None:
    """The timer's signal handler; called once more after the timer is stopped."""
    if _Process.rendering:
        raise TemplateLimitError(f"it ran for more than {SECONDS:g} seconds of processor time")


def _install() -> bool:
    """Install the signal handler. False if the signal is in use, or this thread gets no signals."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = _handler_of(signal.SIGPROF)
    if handler is _ring:
        return True
    if handler not in (signal.SIG_DFL, signal.SIG_IGN):
        return False
    signal.signal(signal.SIGPROF, _ring)
    return True


class Watched:
    """A context that ends its body after SECONDS, or when it allocates more than SPACE_GROWTH of memory.

    Works in the main thread of a process, as in every worker.

    Raises:
        TemplateLimitError: it took too long.
        MemoryError: it took too much memory.
    """

    __slots__ = ("_limited", "_watches")  # entered for every rendering, so it is no generator

    def __enter__(self) -> None:
        self._limited = False
        self._watches = not _Process.rendering and _install()
        if not self._watches:
            return
        now = time.monotonic()
        if now > _Process.looked + _SPACE_SECONDS:
            _Process.looked, _Process.space = now, _address_space()
            _Process.limits = resource.getrlimit(resource.RLIMIT_AS)
        (soft, hard), space = _Process.limits, _Process.space + SPACE_GROWTH
        if _Process.space and (soft == resource.RLIM_INFINITY or space < soft):
            resource.setrlimit(resource.RLIMIT_AS, (space, hard))
            self._limited = True
        if _Process.kills:
            signal.setitimer(signal.ITIMER_VIRTUAL, KILL_SECONDS)
        _Process.rendering = True
        signal.setitimer(signal.ITIMER_PROF, SECONDS, _AGAIN)

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: Any) -> None:
        if not self._watches:
            return
        _Process.rendering = False
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        if _Process.kills:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        if isinstance(error, MemoryError):
            _Process.looked = _NEVER
        if self._limited:
            resource.setrlimit(resource.RLIMIT_AS, _Process.limits)


def _address_space() -> int:
    """Bytes of address space of the process; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - asked often
            return int(file.read().split()[0]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def watch_templates() -> None:
    """Watch every rendering of this process from now on."""
    watch_by(Watched)


def may_be_killed() -> None:
    """Let the kernel kill this process, a worker, if a rendering does not respond."""
    signal.signal(RENDERING_KILLED, signal.SIG_DFL)
    _Process.kills = True
