"""The process that local workers are forked from. It has imported the modules of tasks, and may have loaded a tokenizer
engine, so that workers start in milliseconds and share the memory of both.
"""

import os
from multiprocessing import forkserver
from pathlib import Path

from .executor import ENGINE_THREADS
from .interrupts import deaf_to_interrupts

_PIPELINE = __package__.rpartition(".")[0]
TASK_MODULES = tuple(
    f"{_PIPELINE}.{module}" for module in ("encode.task", "encode.engine_choice", "pack.task", "pack.documents")
)
"""Modules of the tasks. They are given by name, because they import modules of this folder."""
ENGINE_MODULE = f"{_PIPELINE}.encode.engine_before_fork"
"""The module that loads the engine when it is imported."""
ENGINE, TOKENIZER = "PACKTRAIN_FORK_SERVER_ENGINE", "PACKTRAIN_FORK_SERVER_TOKENIZER"
"""Environment variables of the fork server: the engine's name, and the file of the tokenizer."""


def start_fork_server(engine: tuple[str, Path] | None = None) -> None:
    """Start the fork server unless it runs. Returns at once, because it loads in the background; the first worker waits
    for it.

    Args:
        engine: name of an engine to load, and the stored answer of `TokenizerLoading`.
    """
    forkserver.set_forkserver_preload([*TASK_MODULES, *([ENGINE_MODULE] if engine else [])])
    settings = {**ENGINE_THREADS, ENGINE: engine[0], TOKENIZER: str(engine[1])} if engine else {}
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
