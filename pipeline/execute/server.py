"""The process that workers are forked from, here called the server: what it imports, and how it learns which tokenizer
to load.

multiprocessing lets such a process be given modules to import, before it starts, and nothing else. So one of the
modules, `encode.preload`, reads from a pipe, in a thread, which tokenizer the workers will need: the server starts, and
imports the other modules, before that is known.
"""

import os
import signal
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker

SERVER_MODULES = tuple(
    f"{__package__.rpartition('.')[0]}.{module}"
    for module in ("encode.preload", "encode.task", "encode.first_look", "pack.shard", "pack.documents")
)
"""What the server imports: first what loads the tokenizer, in a thread, then the modules of tasks. Given by name,
because these modules import modules of this folder.
"""
PIPE = "PACKTRAIN_PRELOAD_PIPE"
"""The server's variable that names the pipe's end to read from, as a path that it can open."""
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what schedulers send."""


class _Pipe:
    """The pipe to the server of this process, which has only one."""

    path: str | None = None
    """Path of the end to read from; None before the pipe is opened."""
    writer: int | None = None
    """The descriptor to write to; None before the pipe is opened, and once a message was written."""


def open_pipe() -> None:
    """Open the pipe, unless it is open. A server that starts from now on waits for a message there before it forks a
    worker.
    """
    if _Pipe.path is None:
        # The server gets the path in its environment. The end to read from is never closed, because nothing says when
        # the server has opened it.
        reader, _Pipe.writer = os.pipe()
        _Pipe.path = f"/proc/{os.getpid()}/fd/{reader}"


def name_tokenizer(folder: str, note: str, engine: str) -> None:
    """Tell the server, which may start later, what to load. Only the first message counts: it reads no other.

    Args:
        folder: the cache that has the tokenizer; "" for the user's cache.
        note: the name of the tokenizer's note in it.
        engine: the tokenizer engine.
    """
    open_pipe()
    _send("\0".join((folder, note, engine)))


def name_no_tokenizer() -> None:
    """Let a server that still waits for a message go on without a tokenizer. Called before a worker starts: whatever
    encodes has named its tokenizer by then, and what does not encode, such as packing cached parts, needs none.
    """
    if _Pipe.path is not None:
        _send("")


def _send(message: str) -> None:
    """Write a message and close the pipe, which ends the message; does nothing after the first one."""
    if _Pipe.writer is not None:
        os.write(_Pipe.writer, message.encode())
        os.close(_Pipe.writer)
        _Pipe.writer = None


def start_ahead() -> None:
    """Start the server before it is known which tokenizer it must load: it imports its modules while a run imports its
    own, and each takes 0.3 seconds.
    """
    open_pipe()
    with suppress(OSError):  # the first worker meets the same error, and reports it
        start_server()


def start_server() -> None:
    """Start the server, unless it runs.

    Terminals interrupt all processes of a command; the main process handles that, and stops the others. So the server
    and its workers inherit that interruptions are blocked.

    Raises:
        OSError: the machine is likely out of memory or of processes.
    """
    resource_tracker.ensure_running()  # first, because starting it unblocks them
    forkserver.set_forkserver_preload([*SERVER_MODULES])
    signals_before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
    if _Pipe.path is not None:
        os.environ[PIPE] = _Pipe.path
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop(PIPE, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals_before)
