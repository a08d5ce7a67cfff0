"""Imported by the fork server: imports the modules of tasks and loads the engine, once for all workers.

Whatever goes wrong here goes wrong again in a worker, which reports it.
"""

import gc
import os
from contextlib import suppress
from importlib import import_module

from ...stages.tokenize.engines import FAST, load_engine
from ..execute.executor import EngineAhead
from ..execute.fork_server import IN_FORK_SERVER, TASK_MODULES, asked_engine
from ..execute.interrupts import ignore_interrupts
from .tokenizer import kept_answer


def load(ahead: EngineAhead) -> None:
    """Load an engine for `load_engine` to find. Only the fast one, whose loading starts no thread, may be loaded before
    a process is forked.
    """
    answer = kept_answer(ahead.tokenizer)
    if ahead.engine == FAST and answer is not None:
        load_engine(ahead.engine, answer["json"])


if IN_FORK_SERVER in os.environ:
    ignore_interrupts()
    gc.disable()  # imports leave no garbage
    for module in TASK_MODULES:
        import_module(module)
    asked = asked_engine()
    if asked is not None:
        with suppress(BaseException):  # a panic of fastokens is not an Exception
            load(asked)
    gc.freeze()  # workers need not look for garbage in what all of them share
    gc.enable()
