"""Delays interruptions (Ctrl-C) where they would leave incomplete work or orphaned processes."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import ModuleType
from typing import Any

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Make processes that are started inside deaf to interruptions from the beginning: they inherit that these are
    blocked. An interruption of this process is handled afterwards.

    Terminals and schedulers interrupt the whole process group; the driver handles the interruption and lets the others
    finish.
    """
    resource_tracker.ensure_running()  # it would unblock them
    with interrupted_later():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Ignore interruptions from now on, in a process that was started deaf to them. What it starts ignores them too,
    unless it sets handlers.
    """
    for number in INTERRUPTIONS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTIONS)


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Delay interruptions while a worker starts or receives a task, so that the worker stays usable."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[Any] = []
    handlers: dict[int, Any] = {}
    for number in INTERRUPTIONS:
        if callable(signal.getsignal(number)):  # ignored signals and kernel defaults stay as they are
            handlers[number] = signal.signal(number, lambda *signalled: held.append(signalled))
    try:
        yield
    finally:
        for replaced, handler in handlers.items():
            signal.signal(replaced, handler)
    if held:
        handlers[held[0][0]](*held[0])


@contextmanager
def without_main() -> Iterator[None]:
    """Hide `__main__` while a worker starts.

    multiprocessing runs the main script again in every worker, to find functions that are defined there. Our functions
    are not, and a user's script that calls `packtrain.run` without a `__main__` guard would start itself endlessly.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
