"""What a run works with: its stores, and as many workers as are configured and fit into memory.

Only memory that processes allocate counts. Memory-mapped files (encoded parts, layouts, the table of documents) are in
the page cache, which the system frees when it needs memory.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from ...schemas.config.config import RunConfig, RunSection
from ...schemas.errors import ConfigError
from ...schemas.units import size
from ..encode.known_parts import KnownParts
from ..encode.task import EncodeTask
from ..execute.executor import Executor
from ..execute.pool import Pool
from ..observer import Observer
from ..pack.shard import forget_table
from ..store.cache_tag import mark_cache
from ..store.local import LocalStore
from ..store.open_store import Store, cache_root, is_url, open_store, require_writable, resolve_place, scratch_of

WORKER_BYTES = 384 << 20
"""Memory that a worker needs: a tokenizer, its caches, a block of many rows and its tokens; or a shard that it
writes.
"""
DRIVER_BYTES = 512 << 20
"""Memory of the driver: the reference tokenizer, one chunk of documents, and the plan of some million documents."""
ENGINE_FACTOR = {"tokenizers": 200, "fastokens": 48}
"""Bytes that an engine needs per byte of one long text, at two bytes per token; measured on texts of 20 to 60 MB."""
FEW_ROWS = 4
"""A block with no more rows than this may consist of one long row."""


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that a worker needs."""

    bytes: int = WORKER_BYTES
    why: str = ""
    """Why so much, and how to reduce it; empty if little is needed."""


def count_workers(section: RunSection, need: Need | None = None) -> int:
    """The number of workers: at most the configured number, and at most what fits into memory.

    Without `run.memory`, the limit is half of the machine's memory; a single worker may use all of it.

    Raises:
        ConfigError: not even one worker fits. The message says how much memory is needed.
    """
    need = need or Need()
    total = psutil.virtual_memory().total
    memory, least = section.memory or total // 2, DRIVER_BYTES + need.bytes
    if least > (section.memory or total):
        given = f"run.memory ({size(memory)})" if section.memory else f"this machine ({size(total)})"
        raise ConfigError(
            f"{given} is too small for the driver and one worker; give it at least {-(-least // 2**20):,} MiB"
            f"{f': {need.why}' if need.why else ''}"
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(section.workers or cores, (memory - DRIVER_BYTES) // need.bytes))


def encoding_need(tasks: Sequence[EncodeTask], engine: str) -> Need:
    """The memory that a worker needs to encode, which depends on the longest row."""
    few = [task for task in tasks if task.block.lines <= FEW_ROWS and not task.block.too_long]
    of = max(few, key=lambda task: task.block.end - task.block.start, default=None)
    longest = of.block.end - of.block.start if of is not None else 0
    factor = ENGINE_FACTOR[engine]
    worker = WORKER_BYTES // 2 + factor * longest
    if of is None or worker <= WORKER_BYTES:
        return Need()
    return Need(
        worker,
        f"{of} has about {size(longest)}, and {engine} needs {factor} times as much to encode it; a smaller "
        "max_row_bytes for its source rejects such rows, and encodes the source again",
    )


@dataclass(frozen=True, slots=True)
class Workspace:
    """Everything besides the configuration that the steps of a run share."""

    base: Path
    """Where relative paths of the configuration start."""
    out: Store
    parts: KnownParts
    """The cache of encoded parts."""
    observer: Observer

    @property
    def cache(self) -> Store:
        """The store for encoded parts, and for notes that save work in the next run."""
        return self.parts.cache

    @property
    def scratch(self) -> LocalStore:
        """A local folder for temporary files: the cache itself if it is local."""
        return scratch_of(self.cache)


def open_workspace(config: RunConfig, base: Path, observer: Observer) -> Workspace:
    """Open the stores that a configuration names. Writes nothing.

    Raises:
        ConfigError, OutputError: a store cannot be used.
    """
    scratch = None if config.run.scratch is None else (base / config.run.scratch).absolute()
    place = resolve_place(config.out, base)
    require_writable(place)
    out = open_store(place, scratch=scratch)
    cache = cache_root(config.cache, place, base)
    require_writable(cache)
    if not is_url(cache) and Path(cache).is_file():
        raise ConfigError(f"cache: {cache} is a file; name a folder, which is made if it is not there")
    return Workspace(base, out, KnownParts(open_store(cache, scratch=scratch, keep=True)), observer)


@contextmanager
def open_workers(section: RunSection, work: Workspace) -> Iterator[Executor]:
    """Open a run's executor, and mark the cache as one.

    Raises:
        ConfigError: there is not enough memory for one worker, or the executor's package is missing.
    """
    workers = count_workers(section)
    if section.workers is not None and workers < section.workers:
        work.observer.note(f"{workers:,} of {section.workers:,} workers: run.memory is too small for more")
    executor = _open_executor(section, workers)
    mark_cache(work.scratch)
    try:
        yield executor
    finally:
        executor.close()
        # Tasks that run in this process map files, which may be rewritten before the next run.
        forget_table()


def _open_executor(section: RunSection, workers: int) -> Executor:
    if section.executor == "ray":
        from ..execute.ray_cluster import RayExecutor

        return RayExecutor(section.address, section.workers or workers, seconds=section.task_seconds)
    return Pool(workers, seconds=section.task_seconds, shard=section.shard)


def fit_workers(section: RunSection, need: Need, executor: Executor, observer: Observer) -> None:
    """Limit the workers to what fits into memory, now that it is known how much they need.

    Raises:
        ConfigError: there is not enough memory for one worker.
    """
    before, workers = count_workers(section), count_workers(section, need)
    if workers < before and need.why:
        observer.note(f"{workers:,} of {before:,} workers: {need.why}")
    executor.limit(workers)
