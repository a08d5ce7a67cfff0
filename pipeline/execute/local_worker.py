"""The worker process of the local executor: runs tasks from its pipe until the pipe is closed."""

import multiprocessing
import os
import pickle
import threading
import traceback
from contextlib import suppress
from multiprocessing import connection
from typing import Any

from .executor import limit_threads
from .interrupts import ignore_interrupts


class WorkerError(Exception):
    """The traceback of an error in a worker, attached as the error's cause."""

    def __str__(self) -> str:
        return f"in a worker:\n{self.args[0]}"


def serve(pipe: "connection.Connection[bytes, bytes]", place: Any) -> None:
    """Run tasks until the pipe is closed.

    Args:
        place: memory of the worker's `RenderingNote`, shared with the driver.
    """
    from .template_watchdog import (
        may_be_killed,
    )  # imported here, because the driver imports this module and should not import jinja2

    _settle()
    may_be_killed(place)
    with suppress(EOFError, OSError):
        pipe.send_bytes(b"here")
        while True:
            pipe.send_bytes(_answer(pipe.recv_bytes()))


def _answer(data: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(data)
        return pickle.dumps((True, function(*arguments), ""))
    except Exception as error:
        where = "".join(traceback.format_exception(error))
        try:
            answer = pickle.dumps((False, error, where))
            pickle.loads(answer)
        except Exception:  # the error cannot be pickled
            answer = pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}"), where))
        return answer


def _settle() -> None:
    """Prepare a new worker: use one thread per engine, ignore interruptions, and end when the driver ends."""
    limit_threads()
    ignore_interrupts()
    driver = multiprocessing.parent_process()
    if driver is not None:
        threading.Thread(target=_end_with, args=(driver.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    # Without this, workers of a killed driver would first finish their tasks.
    connection.wait([sentinel])
    os._exit(1)
