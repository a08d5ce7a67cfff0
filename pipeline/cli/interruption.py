"""Ctrl-C and SIGTERM: a command answers within a second, whatever it is doing, and a second Ctrl-C ends it at once.

The first signal raises KeyboardInterrupt where the command is, which frees what it holds: workers, drafts, the
terminal. A thread sees the signal as well, because Python tells the main thread only between two steps of its own, and
because cleaning up may have to wait, such as for a download: it says what happens if the command has not, and ends the
process if it still runs after `GRACE_SECONDS`. That is safe at any time: every file gets its name only when it is
whole, workers end with the process, and the next run removes drafts.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .output import print_line

INTERRUPTED = 130
"""The exit code that shells report for programs ended by SIGINT."""
GRACE_SECONDS = 0.6
"""How long a command may clean up. The longest step that holds Python's lock, loading a tokenizer, adds half a second.
"""
_SAY_AFTER_SECONDS = 0.2
"""How long after the first signal the thread says what happens, if the command still runs and has not said it."""
_SAME_SECONDS = 0.05
"""Signals so close together are one: programs that start others pass on what the terminal has sent to all."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what schedulers send."""
_SHOW_CURSOR = b"\x1b[?25h"
"""Makes a terminal show its cursor."""
_STOPPING = "packtrain: stopping; the work so far is kept; the same command continues"


class Interruption:
    """Whether the command was interrupted, and whether the user was told. The signal handler and a thread share it."""

    def __init__(self) -> None:
        self.is_told = False
        """Whether the user was told."""
        self.was_raised = False
        """Whether a signal has interrupted the command."""
        self._lock = threading.Lock()

    def tell(self) -> None:
        """Say that the command is stopping, at most once."""
        # The command and the thread may both be about to say it.
        with self._lock:
            if not self.is_told:
                self.is_told = True
                print_line(_STOPPING, file=sys.stderr, flush=True)

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of signals: raise KeyboardInterrupt in the main thread, once."""
        if not self.was_raised:
            self.was_raised = True
            raise KeyboardInterrupt

    def watch(self, pipe: int) -> None:
        """The function of the thread: read the numbers of signals, which Python writes into a pipe, until the pipe is
        closed. After the first of `_SIGNALS`, it says that the command stops, and ends the process after
        `GRACE_SECONDS` or at the second signal, unless the command ends before.

        Args:
            pipe: the descriptor of the pipe's end to read from; closed here.
        """
        if not _wait_for_signal(pipe):
            os.close(pipe)
            return
        began = time.monotonic()
        # Most commands end meanwhile, and this thread with the process: then nothing need be said.
        is_repeated = _second_signal_comes(pipe, began, began + _SAY_AFTER_SECONDS)
        self.tell()
        if not is_repeated:
            _second_signal_comes(pipe, began, began + GRACE_SECONDS)
        # The time is over, or somebody has pressed Ctrl-C twice: the process ends, whatever it is doing.
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), _SHOW_CURSOR)  # progress bars hide it
        # Not `sys.exit`, which would wait for the main thread, and that may be what hangs.
        os._exit(INTERRUPTED)


def _wait_for_signal(pipe: int) -> bool:
    """Wait for one of `_SIGNALS`: others have their own handlers. Returns False if the pipe is closed instead."""
    # A byte is the number of a signal; no byte is the end of the pipe.
    while signal_byte := os.read(pipe, 1):
        if signal_byte[0] in _SIGNALS:
            return True
    return False


def _second_signal_comes(pipe: int, began: float, deadline: float) -> bool:
    """Wait for a second signal until a deadline, and return whether it came.

    Args:
        began: when the first one came, by the monotonic clock; another within `_SAME_SECONDS` is the same key press.
        deadline: until when to wait, by the same clock.
    """
    while (seconds_left := deadline - time.monotonic()) > 0:
        # The pipe stays open after a first signal (see `interruptible`), so that a byte comes, never its end.
        ready, _, _ = select.select([pipe], [], [], seconds_left)
        if ready and os.read(pipe, 1)[0] in _SIGNALS and time.monotonic() > began + _SAME_SECONDS:
            return True
    return False


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Let signals interrupt the body as this module says. Signals that the process ignores are left alone.

    After an interruption the process ends within `GRACE_SECONDS`, also while Python waits for threads.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():  # where Python lets no handler be set
        yield interruption
        return

    # 1. For the main thread: a handler, which Python calls there between two steps.
    replaced_handlers = _replace_default_handlers(interruption.handle)

    # 2. For the other thread: a pipe. Python writes a signal's number into it as the signal arrives, even while the
    # main thread is inside of a long C function.
    pipe_reader, pipe_writer = os.pipe()
    os.set_blocking(pipe_writer, False)  # which Python demands: a full pipe must not stop a handler
    signal.set_wakeup_fd(pipe_writer, warn_on_full_buffer=False)
    watcher = threading.Thread(
        target=interruption.watch, args=(pipe_reader,), daemon=True, name="packtrain-interruption"
    )
    watcher.start()

    try:
        yield interruption
    finally:
        # After an interruption all of it stays, so that the thread ends the process if cleaning up takes too long.
        if not interruption.was_raised:
            signal.set_wakeup_fd(-1)
            for number, handler in replaced_handlers.items():
                signal.signal(number, handler)
            os.close(pipe_writer)  # `watch` reads its end, and returns


def _replace_default_handlers(handle: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Handle SIGINT and SIGTERM by a function, where Python's own handlers are set. `nohup` ignores signals, and a
    program around us may have handlers of its own: both stay.

    Returns:
        number of a signal → the handler that was replaced.
    """
    default_handlers: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    replaced_handlers: dict[int, Any] = {}
    for number, default in default_handlers.items():
        if signal.getsignal(number) is default:
            replaced_handlers[number] = signal.signal(number, handle)
    return replaced_handlers


def _forget_in_child() -> None:
    """Take the pipe from a forked process, which shares it: its signals would be taken for ours."""
    with contextlib.suppress(ValueError):  # Python lets only the main thread set one
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_in_child)
