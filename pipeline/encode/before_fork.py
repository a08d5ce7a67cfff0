"""Imported by the fork server: imports the modules of tasks, and meanwhile loads an engine, once for all workers.

Whatever goes wrong here goes wrong again in a worker, which reports it.
"""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from ...stages.tokenize.engines import STARTS_NO_THREAD, guess_engine, load_engine
from ...stages.tokenize.likely_json import likely_json
from ..execute.executor import EngineAhead
from ..execute.fork_server import IN_FORK_SERVER, TASK_MODULES, asked_engine
from ..execute.interrupts import ignore_interrupts
from .tokenizer.load import stored_answer

_LOOK = 0.1
"""Seconds between two looks at whether the driver still runs."""
_SECONDS = 20
"""Processor time that loading an engine from a folder may take. The largest vocabularies take five seconds."""


def load(ahead: EngineAhead) -> None:
    """Load an engine for `load_engine` to find, if a process may be forked after that.

    If transformers must still be asked about the tokenizer, its answer is predicted, and workers use the engine only if
    the prediction was right.
    """
    with suppress(BaseException):  # whatever a library raises about a folder that transformers has not seen
        engine, _ = guess_engine(ahead.engine, ())
        if engine not in STARTS_NO_THREAD:
            return
        answer = stored_answer(ahead.folder, ahead.answers)
        if answer is not None:
            load_engine(engine, answer["json"])
            return
        with _limited():
            predicted = _predict(ahead.folder)
            if predicted is not None:
                load_engine(engine, predicted)


def _predict(folder: Path) -> str | None:
    whole, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not whole.is_file():
        return None
    return likely_json(whole.read_bytes(), config.read_bytes() if config.is_file() else b"{}")


@contextmanager
def _limited() -> Iterator[None]:
    """Silence the standard error stream, and end this process if it takes too long: workers then start without it."""
    error = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.dup2(error, 2)
        os.close(error)
        os.close(nothing)


def get_ready(ahead: EngineAhead | None) -> None:
    """Import the modules, and load the engine in a thread, which has ended when this returns. Engines are loaded
    without Python's lock, so that both run at once. Ends the process if its driver is gone by then.
    """
    driver = os.getppid()
    gc.disable()  # imports leave no garbage
    loading = threading.Thread(target=load, args=(ahead,), daemon=True) if ahead is not None else None
    if loading is not None:
        loading.start()
    try:
        for module in TASK_MODULES:
            import_module(module)
    finally:
        while loading is not None and loading.is_alive():
            loading.join(_LOOK)
            if os.getppid() != driver:
                os._exit(0)
        gc.freeze()  # workers need not look for garbage in what all of them share
        gc.enable()


if IN_FORK_SERVER in os.environ:
    ignore_interrupts()
    get_ready(asked_engine())
