"""Loads a run's tokenizer once, in the process that workers are forked from: they share its memory, and start with it.

That process can only be told which modules to import, so this one loads when it is imported there. It reads from a pipe
what to load, and waits for that: so its imports, half a second, can begin before the tokenizer is known.
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
from .spec import EncodeSpec
from .task import load_render_spec

_PIPE = "PACKTRAIN_PRELOAD_PIPE"
"""The variable that names the pipe's end to read from, as a path that another process can open."""


class _Pipe:
    """The driver's end of the pipe."""

    def __init__(self) -> None:
        self._writer: int | None = None

    def open(self) -> None:
        """Open the pipe, if this process has not yet. Its end to read from stays open until the process ends, because
        nothing says when the other process has opened it.
        """
        if _PIPE not in SERVER_ENVIRONMENT:
            reader, self._writer = os.pipe()
            SERVER_ENVIRONMENT[_PIPE] = f"/proc/{os.getpid()}/fd/{reader}"

    def tell(self, *parts: str) -> None:
        """Say what to load, if nothing was said before; without parts: nothing."""
        self.open()
        if self._writer is not None:
            os.write(self._writer, "\0".join(parts).encode())
            os.close(self._writer)
            self._writer = None


_pipe = _Pipe()
expect_tokenizer = _pipe.open
"""Let workers' process start before `share_tokenizer`, which it waits for."""


def expect_nothing() -> None:
    """Let workers' process go on without a tokenizer, if it still waits for one."""
    if _PIPE in SERVER_ENVIRONMENT:
        _pipe.tell()


def share_tokenizer(spec: EncodeSpec, cache: Store) -> None:
    """Put how rows are rendered into the cache, and have workers start with the tokenizer and the engine loaded, if
    none has started yet.

    Raises:
        StoreError: it cannot be written.
    """
    for store in {cache, cache.scratch}:
        spec.render.save(store)
    _pipe.tell(str(cache.scratch.root), spec.render.name, spec.engine)


def _load() -> None:
    """Load the tokenizer and the engine, or the reference if the engine refuses the tokenizer. One that both refuse is
    refused again, with a message, by the task.
    """
    with suppress(PacktrainError, OSError, ValueError):
        message = Path(os.environ[_PIPE]).read_bytes()  # until the driver closes its end
        folder, name, engine = message.decode().split("\0")
        spec = load_render_spec(LocalStore(Path(folder)), name)
        try:
            load_engine(engine, spec.tokenizer.json)
        except TokenizerError:
            reference_tokenizer(spec.tokenizer.json)


if _PIPE in os.environ:
    limit_threads()
    # What a thread allocates lies together, where workers write nothing, and so stays shared with them.
    loading = Thread(target=_load)
    loading.start()
    loading.join()
    gc.freeze()  # workers need not look for garbage in what they share, which would copy it
