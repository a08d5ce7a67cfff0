"""Imported by the fork server: loads the engine that its environment names, once for all workers.

Whatever goes wrong here goes wrong again in a worker, which reports it.
"""

import os
from contextlib import suppress
from pathlib import Path

from ...stages.tokenize.engines import STARTS_NO_THREAD
from ..execute.fork_server import ENGINE, TOKENIZER
from .task import load_engine
from .tokenizer import read_answer


def load(engine: str, tokenizer: Path) -> None:
    """Load an engine for `load_engine` to find, if a process may be forked after that.

    Args:
        tokenizer: the stored answer of `TokenizerLoading`.
    """
    answer = read_answer(tokenizer) if engine in STARTS_NO_THREAD else None
    if answer is not None:
        with suppress(Exception):
            load_engine(engine, answer["json"])


if ENGINE in os.environ:
    load(os.environ[ENGINE], Path(os.environ[TOKENIZER]))
