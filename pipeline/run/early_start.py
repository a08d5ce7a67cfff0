"""Starts the fork server of a new run early, so that it loads a tokenizer engine while the driver imports the rest."""

import multiprocessing
from pathlib import Path

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError
from ..execute.executor import EngineAhead
from ..execute.fork_server import start_fork_server
from ..store.open import cache_root, is_url, resolve_place
from .worker_count import count_workers


def engine_ahead(engine: str, folder: Path, cache: Path) -> EngineAhead | None:
    """The engine that workers will probably need; None if the cache may have everything already.

    Args:
        engine: its name, or `auto`.
        folder: the tokenizer's.
    """
    return None if (cache / "encoded").exists() else EngineAhead(engine, folder, cache / "tokenizers")


def start_early(config: RunConfig, base: Path) -> None:
    """Start the fork server if the run certainly needs one: nothing is there yet, and several workers will be forked
    here. It loads an engine if the tokenizer is known; if the run fails, it ends with the driver.

    Whatever is wrong with the configuration is left to the run, which reports it.
    """
    section = config.run
    if section.executor != "local" or section.shard is not None or section.wait > 0:
        return
    try:
        out = resolve_place(config.out, base)
        cache = cache_root(config.cache, out, base)
        several = count_workers(section) > 1
    except ConfigError:
        return
    folder = (base / config.tokenizer.path).absolute()
    new = not (is_url(out) or is_url(cache) or Path(out).exists()) and folder.is_dir()
    if several and new and "forkserver" in multiprocessing.get_all_start_methods():
        ahead = engine_ahead(config.tokenizer.engine, folder, Path(cache))
        if ahead is not None:
            start_fork_server(ahead)
