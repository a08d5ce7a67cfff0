"""The process that workers are forked from: what it imports, and the pipe that tells it what to load besides.

It can only be told which modules to import, before it starts. So one of them reads from the pipe, in a thread, which
tokenizer the workers will need: the process starts, and imports the others, before that is known.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker

SERVER_MODULES = tuple(
    f"{__package__.rpartition('.')[0]}.{module}"
    for module in ("encode.preload", "encode.task", "encode.first_look", "pack.shard", "pack.documents")
)
"""What the server imports: first what loads the tokenizer meanwhile, then the modules of tasks. Given by name, because
these modules import modules of this folder.
"""
PIPE = "PACKTRAIN_PRELOAD_PIPE"
"""The server's variable that names the pipe's end to read from, as a path that it can open."""
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)


class _Pipe:
    """The pipe to the server of this process, which has only one."""

    path: str | None = None
    """Of the end to read from; None before the pipe is opened."""
    writer: int | None = None
    """The descriptor to write to; None before the pipe is opened, and once something was told."""


def expect_tokenizer() -> None:
    """Let the server, if it starts now, wait for `tell`. The end to read from stays open until this process ends,
    because nothing says when the server has opened it.
    """
    if _Pipe.path is None:
        reader, _Pipe.writer = os.pipe()
        _Pipe.path = f"/proc/{os.getpid()}/fd/{reader}"


def tell(*parts: str) -> None:
    """Tell the server what to load, unless it was told before; it starts now or later. Without parts: nothing."""
    expect_tokenizer()
    if _Pipe.writer is not None:
        os.write(_Pipe.writer, "\0".join(parts).encode())
        os.close(_Pipe.writer)
        _Pipe.writer = None


def expect_nothing() -> None:
    """Let the server go on without a tokenizer, if it still waits for one: no worker starts before."""
    if _Pipe.path is not None:
        tell()


@contextmanager
def server_ahead() -> Iterator[None]:
    """Start the server before it is known what it must load: its imports take 0.3 seconds, and so do those of a run.
    At the end, a server that was told nothing goes on without.
    """
    expect_tokenizer()
    with suppress(OSError):  # which the first task meets, too
        start_server()
    try:
        yield
    finally:
        expect_nothing()


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
