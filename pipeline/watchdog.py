"""The watch over templates: a timer of the process's own time, which also looks at how its memory grows.

Python looks at signals between its own instructions only. What one instruction could make huge is refused before it is
done (`stages.bounded`), so the timer is heard soon enough.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ..stages.bounded import TemplateLimitError, watch_by

SECONDS = 5.0
"""Of processor time that one rendering may take; usual ones take a millisecond."""
MAX_GROWTH = 1 << 30
"""Bytes by which the process may grow during one rendering."""
TICK = 0.1
"""Seconds between two looks at the clock and the memory."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Watch:
    """The timer of this process. Renderings are nested at most by a person who renders within a handler of theirs."""

    def __init__(self) -> None:
        self.left = 0.0
        self.ceiling = 0
        self.installed: Any = None

    def install(self) -> bool:
        """Have the timer's signal; False where it is somebody else's, or this thread gets no signals."""
        if threading.current_thread() is not threading.main_thread():
            return False
        handler = signal.getsignal(signal.SIGPROF)
        if handler == self.ring:
            return True
        if handler not in (signal.SIG_DFL, signal.SIG_IGN):
            return False
        signal.signal(signal.SIGPROF, self.ring)
        return True

    def ring(self, _number: int, _frame: FrameType | None) -> None:
        """Called by the timer, and once more after it was stopped."""
        if self.left <= 0:
            return
        self.left -= TICK
        if self.left <= 0:
            _stop()
            raise TemplateLimitError(f"it ran for more than {SECONDS:g} seconds of processor time")
        size = _resident()
        if not self.ceiling:
            self.ceiling = size + MAX_GROWTH
        elif size > self.ceiling:
            self.left = 0.0
            _stop()
            raise TemplateLimitError(f"it made the process grow by more than {MAX_GROWTH >> 20} MiB")


_watch = _Watch()


def _stop() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0.0)


def _resident() -> int:
    """Bytes of memory that the process holds; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - this runs within a signal's handler
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Ends what runs inside after SECONDS, in the main thread of a process, as every worker's is. Elsewhere only sizes
    are limited.

    Raises:
        TemplateLimitError: it took too long, or grew too much.
    """
    armed = _watch.left <= 0 and _watch.install()
    if armed:
        _watch.ceiling = 0
        _watch.left = SECONDS
        signal.setitimer(signal.ITIMER_PROF, TICK, TICK)
    try:
        yield
    finally:
        if armed:
            _watch.left = 0.0
            _stop()


def watch_templates() -> None:
    """Watch all renderings of this process from now on."""
    watch_by(watched)
