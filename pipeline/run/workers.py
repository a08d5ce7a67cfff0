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
from ..pack.window_plan import WINDOW_TOKENS
from ..store.cache_tag import mark_cache
from ..store.local import LocalStore
from ..store.open_store import Store, cache_root, is_url, open_store, require_writable, resolve_place, scratch_of

WORKER_BYTES = 384 << 20
"""Memory that a worker needs: a tokenizer, its caches, a block of many rows and its tokens; or a shard that it
writes.
"""
DRIVER_BYTES = 512 << 20
"""Memory that the driver always needs: the reference tokenizer, and one chunk of documents."""
PART_BYTES = 4 << 10
"""Bytes that the driver keeps per block, with its task and record."""
PIECE_BYTES = 192
"""Bytes that planning needs per piece of a window; `wrapped` needs them all, the other strategies two thirds."""
PIECES_FREE = 1_000_000
"""Number of pieces that DRIVER_BYTES already covers."""
ENGINE_FACTOR = {"tokenizers": 200, "fastokens": 48}
"""Bytes that an engine needs per byte of one long text, at two bytes per token; measured on texts of 20 to 60 MB."""
FEW_ROWS = 4
"""A block with no more rows than this may consist of one long row."""
_GRAIN = 16 << 20
"""The memory that the driver needs is rounded down to a multiple of this, so that the limit suggested for one stage
suffices for the next.
"""


@dataclass(frozen=True, slots=True)
class Need:
    """Peak memory of one stage of a run, in bytes."""

    driver: int
    worker: int
    """Bytes per worker."""
    why: str
    """Why so much memory is needed, and how to reduce it; empty if little is needed."""

    @property
    def least(self) -> int:
        """Bytes needed with one worker."""
        return self.driver + self.worker


def count_workers(section: RunSection, need: Need | None = None) -> int:
    """The number of workers: at most the configured number, and at most what fits into memory.

    Without `run.memory`, the limit is half of the machine's memory; a single worker may use all of it.

    Raises:
        ConfigError: not even one worker fits. The message says how much memory is needed.
    """
    need = need or Need(DRIVER_BYTES, WORKER_BYTES, "")
    total = psutil.virtual_memory().total
    memory = section.memory or total // 2
    driver = need.driver // _GRAIN * _GRAIN
    fit = (memory - driver) // need.worker
    if fit < 1 and (section.memory is not None or need.least > total):
        enough = -(-(driver + need.worker) // 2**20)
        given = f"run.memory ({size(memory)})" if section.memory else f"this machine ({size(total)})"
        raise ConfigError(
            f"{given} is too small for the driver and one worker; "
            f"{'give it at least' if section.memory else 'the run needs at least'} {enough:,} MiB"
            f"{f': {need.why}' if need.why else ''}"
        )
    return max(1, min(section.workers or _cores(), int(fit)))


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def encoding_need(tasks: Sequence[EncodeTask], engine: str) -> Need:
    """The memory that encoding needs, which depends on the longest row."""
    longest, of = 0, None
    for task in tasks:
        block, long = task.block, task.block.end - task.block.start
        if block.lines <= FEW_ROWS and not block.too_long and long > longest:
            longest, of = long, task
    factor = ENGINE_FACTOR[engine]
    worker = max(WORKER_BYTES, WORKER_BYTES // 2 + factor * longest)
    why = ""
    if of is not None and worker > WORKER_BYTES:
        row = of.at(of.block.first_line) + (" or just after it," if of.block.lines > 1 else "")
        why = (
            f"{row} has about {size(longest)}, and {engine} needs {factor} times as much to encode it; a "
            "smaller max_row_bytes for its source rejects such rows, and encodes the source again"
        )
    return Need(DRIVER_BYTES + PART_BYTES * len(tasks), worker, why)


def packing_need(documents: int, tokens: int, blocks: int, config: RunConfig, *, pairs: bool) -> Need:
    """The memory for planning the largest window while workers pack the one before it. The table is mapped.

    Args:
        documents, tokens: what is packed, with all copies.
        blocks: of the inputs.
        pairs: whether these are preference pairs, which are ordered together.
    """
    limit, strategy = config.pack.window_tokens or WINDOW_TOKENS, config.pack.strategy
    each = PIECE_BYTES if strategy == "wrapped" else PIECE_BYTES * 2 // 3
    if pairs:
        most, why = documents, f"{documents:,} pairs are kept in memory to be ordered"
    else:
        # There are at most as many cuts as full rows.
        most = int((documents + tokens // config.truncate.max_length) * min(1.0, limit / max(tokens, 1)))
        why = (
            f"the largest window has about {most:,} pieces to plan together; a smaller pack.window_tokens needs less "
            "memory, but gives other rows, so it needs another `out`"
        )
    driver = DRIVER_BYTES + PART_BYTES * blocks + each * max(0, most - PIECES_FREE)
    return Need(driver, WORKER_BYTES, why)


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
