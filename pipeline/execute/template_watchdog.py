"""Watches templates: the kernel enforces limits while a template renders.

- Processor time: a timer signal, which Python handles between instructions. The handler reads the clock instead of
counting signals, because many signals are merged during one long instruction.
- Memory: RLIMIT_AS makes any large allocation fail at once.
- An endless instruction (such as comparing deeply nested lists), during which the process handles no signals. In a
  worker, a second timer makes the kernel kill the process, and the driver names its task.
"""

import importlib
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from ...stages.template.limits import MachineLimitError, watch_by
from .executor import RENDERING_KILLED

SECONDS = 5.0
"""Seconds of processor time per rendering; most take a millisecond."""
MAX_GROWTH = 1 << 30
"""Bytes by which the process may grow during one rendering."""
SPACE_GROWTH = 2 << 30
"""Bytes of address space that one rendering may add; an allocation beyond fails at once."""
TICK = 0.1
"""Seconds between checks of the clock and the memory."""
KILL_SECONDS = 15.0
"""Seconds of processor time after which the kernel kills a worker that does not respond."""
_AGAIN = 1.0
"""Seconds after which the error is raised again if a rendering has ignored it."""
_NEVER = float("-inf")
_SPACE_SECONDS = 0.05
"""Seconds for which a measurement of the address space is reused."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_handler_of: Callable[[int], Any] = importlib.import_module("_signal").getsignal
"""`signal.getsignal`, which would look for the handler among the members of an enum: 2 µs for every rendering."""


class _TemplateWatch:
    """The timers and limits of this process. Renderings are not nested."""

    def __init__(self) -> None:
        self.deadline = 0.0
        """Deadline, in processor time of the main thread; 0 while nothing renders."""
        self.ceiling = 0
        self.installed: Any = None
        self.kills = False
        """Whether the kernel may kill this process, because it is a worker."""
        self.space = 0
        """Bytes of address space that a rendering may reach; measured at the time `looked`."""
        self.limits = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        """Soft and hard limit of the address space while nothing renders; read when `space` was measured."""
        self.looked = _NEVER

    def install(self) -> bool:
        """Install the timer's signal handler. False if the signal is in use, or this thread gets no signals."""
        if threading.current_thread() is not threading.main_thread():
            return False
        handler = _handler_of(signal.SIGPROF)
        if handler == self.ring:
            return True
        if handler not in (signal.SIG_DFL, signal.SIG_IGN):
            return False
        signal.signal(signal.SIGPROF, self.ring)
        return True

    def ring(self, _number: int, _frame: FrameType | None) -> None:
        """The timer's signal handler; called once more after the timer is stopped."""
        if not self.deadline:
            return
        if time.thread_time() >= self.deadline:
            self.deadline += _AGAIN  # raised again later, in case something swallows this error, as destructors do
            raise MachineLimitError(f"it ran for more than {SECONDS:g} seconds of processor time")
        size = _resident()
        if not self.ceiling:
            self.ceiling = size + MAX_GROWTH
        elif size > self.ceiling:
            self.ceiling += MAX_GROWTH
            raise MachineLimitError(f"it made the process grow by more than {MAX_GROWTH >> 20} MiB")

    def start(self) -> None:
        """Begin watching a rendering."""
        self.ceiling = 0
        self.deadline = time.thread_time() + SECONDS
        now = time.monotonic()
        if now > self.looked + _SPACE_SECONDS:
            self.looked = now
            self.space = _address_space() + SPACE_GROWTH
            self.limits = resource.getrlimit(resource.RLIMIT_AS)
        signal.setitimer(signal.ITIMER_PROF, TICK, TICK)
        if self.kills:
            signal.setitimer(signal.ITIMER_VIRTUAL, KILL_SECONDS)

    def stop(self) -> None:
        """End watching a rendering."""
        self.deadline = 0.0
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        if self.kills:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


_watch = _TemplateWatch()


def _resident() -> int:
    """Resident bytes of the process; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - this runs within a signal's handler
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _address_space() -> int:
    """Bytes of address space of the process; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - asked often
            return int(file.read().split()[0]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


class Watched:
    """A context that ends its body after SECONDS, or when it allocates more than SPACE_GROWTH of memory.

    Works in the main thread of a process, as in every worker. Elsewhere only counted limits apply.

    Raises:
        MachineLimitError: it took too long, or grew too much.
        MemoryError: a single allocation was too large.
    """

    __slots__ = ("_limits", "_watches")  # entered for every rendering, so it is no generator

    def __enter__(self) -> None:
        self._limits: tuple[int, int] | None = None
        self._watches = not _watch.deadline and _watch.install()
        if not self._watches:
            return
        _watch.start()
        soft, hard = _watch.limits
        if _watch.space > SPACE_GROWTH and (soft == resource.RLIM_INFINITY or _watch.space < soft):
            resource.setrlimit(resource.RLIMIT_AS, (_watch.space, hard))
            self._limits = soft, hard

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: Any) -> None:
        if not self._watches:
            return
        _watch.stop()
        if isinstance(error, MemoryError):
            _watch.looked = _NEVER
        if self._limits is not None:
            resource.setrlimit(resource.RLIMIT_AS, self._limits)


def watch_templates() -> None:
    """Watch every rendering of this process from now on."""
    watch_by(Watched)


def may_be_killed() -> None:
    """Let the kernel kill this process, a worker, if a rendering does not respond."""
    signal.signal(RENDERING_KILLED, signal.SIG_DFL)
    _watch.kills = True
