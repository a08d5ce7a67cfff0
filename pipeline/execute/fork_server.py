"""The process that local workers are forked from. It has imported the modules of tasks, and may have loaded a tokenizer
engine, so that workers start in milliseconds and share the memory of both.
"""

import os
from multiprocessing import forkserver

from .executor import ENGINE_THREADS, EngineAhead
from .interrupts import deaf_to_interrupts

_PIPELINE = __package__.rpartition(".")[0]
TASK_MODULES = tuple(
    f"{_PIPELINE}.{module}" for module in ("encode.task", "encode.first_look", "pack.shard", "pack.documents")
)
"""Modules of the tasks. They are given by name, because they import modules of this folder."""
_PRELOADED = f"{_PIPELINE}.encode.preload"
"""The module that imports them, and loads the engine."""
IN_FORK_SERVER = "PACKTRAIN_FORK_SERVER"
"""Environment variable that only the fork server has. The engine's, if there is one, begin with the same word."""
_ENGINE = tuple(f"{IN_FORK_SERVER}_{name}" for name in ("ENGINE", "TOKENIZER"))


def start_fork_server(ahead: EngineAhead | None = None) -> None:
    """Start the fork server unless it runs. Returns at once, because it loads in the background; the first worker waits
    for it.

    Args:
        ahead: an engine to load.
    """
    forkserver.set_forkserver_preload([_PRELOADED])
    settings = {IN_FORK_SERVER: "1"}
    if ahead is not None:
        settings |= ENGINE_THREADS | dict(zip(_ENGINE, ahead, strict=True))
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with deaf_to_interrupts():
            forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def asked_engine() -> EngineAhead | None:
    """In the fork server: the engine to load, if there is one. Its workers do not see it in their environment."""
    found = [os.environ.pop(name, "") for name in (IN_FORK_SERVER, *_ENGINE)][1:]
    return EngineAhead(*found) if all(found) else None
