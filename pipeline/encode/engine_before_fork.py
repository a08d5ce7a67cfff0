"""Imported by the fork server: loads the engine that its environment names, once for all workers.

Whatever goes wrong here goes wrong again in a worker, which reports it.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...stages.tokenize.engines import STARTS_NO_THREAD
from ...stages.tokenize.likely_json import likely_json
from ..execute.fork_server import ENGINE, TOKENIZER
from .task import load_engine
from .tokenizer import read_answer

_SECONDS = 20
"""Processor time that loading an engine from a folder may take. The largest vocabularies take five seconds."""


def load(engine: str, tokenizer: Path) -> None:
    """Load an engine for `load_engine` to find, if a process may be forked after that.

    Args:
        tokenizer: the stored answer of `TokenizerLoading`; or the folder, if transformers is still being asked. Then
            the answer is predicted, and workers use the engine only if the prediction was right.
    """
    if engine not in STARTS_NO_THREAD:
        return
    if tokenizer.is_dir():
        with suppress(BaseException), _limited():  # whatever a library raises, as transformers has not seen the folder
            predicted = _predict(tokenizer)
            if predicted is not None:
                load_engine(engine, predicted)
        return
    answer = read_answer(tokenizer)
    if answer is not None:
        with suppress(Exception):
            load_engine(engine, answer["json"])


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


if ENGINE in os.environ:
    load(os.environ[ENGINE], Path(os.environ[TOKENIZER]))
