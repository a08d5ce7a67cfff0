"""Interruptions, held back where they would leave something half-done, or a process that nobody ends."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started here ignore interruptions from their first moment.

    A terminal and a scheduler send them to the whole group; the driver hears them, and lets the others finish.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # elsewhere Python sets no handlers
        return
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTIONS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Hold interruptions back while a worker starts or is sent a task: half-done, nobody could end or use it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[Any] = []
    handlers: dict[int, Any] = {}
    for number in INTERRUPTIONS:
        if callable(signal.getsignal(number)):  # what is ignored or left to the kernel stays so
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

    multiprocessing runs the main script again in every worker, to find functions defined there. Ours are not, and
    a person's script that calls `packtrain.run` without a `__main__` guard would start itself without end.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
