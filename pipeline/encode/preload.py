"""Loads a run's tokenizer once, in the process that workers are forked from: they share its memory, and start with it.

That process can only be told which modules to import, so this one loads when it is imported there.
"""

import gc
import os
from contextlib import suppress
from pathlib import Path
from threading import Thread

from ...schemas.errors import PacktrainError, TokenizerError
from ...stages.tokenize.engines import load_engine, reference_tokenizer
from ..execute.executor import limit_threads
from ..execute.pool import SERVER_ENVIRONMENT
from ..store.local import LocalStore
from ..store.open_store import Store
from .task import EncodeSpec, load_spec

_FOLDER, _NAME = "PACKTRAIN_PRELOAD_FOLDER", "PACKTRAIN_PRELOAD_NAME"


def share_tokenizer(spec: EncodeSpec, cache: Store) -> str:
    """Put the specification into the cache, and have workers start with its tokenizer loaded, if none has started yet.
    Returns the specification's name.

    Raises:
        StoreError: it cannot be written.
    """
    for store in {cache, cache.scratch}:
        spec.save(store)
    SERVER_ENVIRONMENT.update({_FOLDER: str(cache.scratch.root), _NAME: spec.name})
    return spec.name


def _load() -> None:
    """Load the specification and its engine, or the reference if the engine refuses the tokenizer. One that both refuse
    is refused again, with a message, by the task.
    """
    with suppress(PacktrainError):
        spec = load_spec(LocalStore(Path(os.environ[_FOLDER])), os.environ[_NAME])
        try:
            load_engine(spec.engine, spec.tokenizer.json)
        except TokenizerError:
            reference_tokenizer(spec.tokenizer.json)


if _NAME in os.environ:
    limit_threads()
    # What a thread allocates lies together, where workers write nothing, and so stays shared with them.
    loading = Thread(target=_load)
    loading.start()
    loading.join()
    gc.freeze()  # workers need not look for garbage in what they share, which would copy it
