"""Loads a run's tokenizer once, in the process that workers are forked from: they share its memory, and start with it.

That process can only be told which modules to import, so this one, the first of them, loads when it is imported there.
A thread reads from a pipe what to load, and waits for that: so the process can start before the tokenizer is known. The
engine takes 1.2 seconds of the four of a run on 17 MB, without Python's lock, while the other modules are imported.
"""

import gc
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from ...schemas.errors import PacktrainError, TokenizerError
from ...stages.tokenize.engines import load_engine, preferred_engine, reference_tokenizer
from ..execute.executor import limit_threads
from ..execute.server import PIPE, SERVER_MODULES, name_tokenizer, start_ahead
from ..store.local import LocalStore
from ..store.open_store import Store, cache_root, open_store, resolve_place
from ..store.sealed_notes import get_user_note
from .spec import EncodeSpec, RenderSpec, TokenizerSpec, load_render_spec
from .tokenizer import load_known

if TYPE_CHECKING:
    from ...schemas.config.config import RunConfig

_USER = ""
"""What stands for the user's cache in place of a folder."""
_begun = set[tuple[str, Path]]()
"""(path, base) of the tokenizers for which `load_ahead` was called in this process: the command calls it before a run
is imported, and the run again, for those who call it from Python."""


def load_ahead(config: "RunConfig", base: Path) -> None:
    """Begin what a run waits for longest, before it is checked and its inputs are scanned: the server
    (`execute.server`) starts, and loads the tokenizer if the user's cache knows it; a new one is asked of transformers.
    Nothing is written, and a second call for a tokenizer does nothing.

    On 17 MB with a known tokenizer this saves 0.6 of 3.8 seconds.

    Args:
        base: where relative paths of the configuration start.
    """
    section = config.tokenizer
    if (section.path, base) in _begun:
        return
    _begun.add((section.path, base))
    with suppress(PacktrainError, OSError):  # which the steps of the run meet, too
        # For a new tokenizer this only begins to ask transformers.
        known = load_known(section.path, base, section.chat_template)
        if config.run.executor != "local":
            return  # its workers are not forked from a server of this machine
        start_ahead()
        if known is None:
            return  # the server waits until `share_tokenizer` names the tokenizer
        cache = open_store(cache_root(config.cache, resolve_place(config.out, base), base))
        # The run's cache has this if rows were encoded with this tokenizer before. Then this run may only pack them
        # again, which needs no engine: the server waits for `share_tokenizer` here, too.
        if not cache.exists(RenderSpec.of(known.spec, section).name):
            name_tokenizer(_USER, known.note, preferred_engine(section.engine))


def share_tokenizer(spec: EncodeSpec, cache: Store) -> None:
    """Put how rows are rendered into the cache, and have workers start with the tokenizer and the engine loaded, if
    none has started yet.

    Raises:
        StoreError: it cannot be written.
    """
    # Into the cache for tasks on other machines, and into the scratch store, which is on this one, for the process that
    # workers are forked from. Of a local cache, both are the same store.
    for store in {cache, cache.scratch}:
        spec.render.save(store)
    name_tokenizer(str(cache.scratch.root), spec.render.name, spec.engine)


def _load() -> None:
    """Load the tokenizer and the engine, or the reference if the engine refuses the tokenizer. One that both refuse is
    refused again, with a message, by the task.
    """
    with suppress(PacktrainError, OSError, ValueError):
        message = Path(os.environ[PIPE]).read_bytes()  # until the driver closes its end
        folder, name, engine = message.decode().split("\0")  # a ValueError of "" if there is nothing to load
        tokenizer: TokenizerSpec | None
        if folder == _USER:
            tokenizer = get_user_note(name, TokenizerSpec)
        else:
            tokenizer = load_render_spec(LocalStore(Path(folder)), name).tokenizer
        if tokenizer is None:
            return
        try:
            # The first text takes fastokens a tenth of a second, which no worker need spend.
            load_engine(engine, tokenizer.json).encode(["a"])
        except TokenizerError:
            reference_tokenizer(tokenizer.json)


if PIPE in os.environ:
    limit_threads()
    # What a thread allocates lies together, where workers write nothing, and so stays shared with them.
    loading = Thread(target=_load)
    loading.start()
    for _module in SERVER_MODULES:
        import_module(_module)
    loading.join()
    gc.freeze()  # workers need not look for garbage in what they share, which would copy it
