"""What a run works with: its stores and its workers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...schemas.config.config import RunConfig, RunSection
from ...schemas.errors import ConfigError
from ..encode.parts import PartRecord
from ..execute.executor import Executor
from ..execute.pool import Pool
from ..observer import Observer
from ..pack.shard import forget_table
from ..store.local import LocalStore
from ..store.open_store import Store, cache_root, is_url, mark_cache, open_store, require_writable, resolve_place
from ..store.records import Records

WORKER_BYTES = 384 << 20
"""Memory that a worker needs: a tokenizer, its caches, a block of many rows and its tokens; or a shard that it
writes.
"""


def count_workers(section: RunSection) -> int:
    """The number of workers: the configured one; else one for each core, or fewer if together they would need more than
    half of the memory.
    """
    if section.workers is not None:
        return section.workers
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # a container or a batch system may allow fewer cores than the machine has
        cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores, memory // 2 // WORKER_BYTES))


@dataclass(frozen=True, slots=True)
class Workspace:
    """Everything besides the configuration that the steps of a run share."""

    base: Path
    """Where relative paths of the configuration start."""
    out: Store
    parts: Records[PartRecord]
    """The encoded parts in the cache."""
    observer: Observer

    @property
    def cache(self) -> Store:
        """The store for encoded parts, and for notes that save work in the next run."""
        return self.parts.store

    @property
    def scratch(self) -> LocalStore:
        """A local folder for temporary files: the cache itself if it is local."""
        return self.cache.scratch


def open_workspace(config: RunConfig, base: Path, observer: Observer) -> Workspace:
    """Open the stores that a configuration names. Writes nothing.

    Raises:
        ConfigError, OutputError: a store cannot be used.
    """
    out_place = resolve_place(config.out, base)
    require_writable(out_place)
    out = open_store(out_place)
    cache = cache_root(config.cache, out_place, base)
    require_writable(cache)
    if not is_url(cache) and Path(cache).is_file():
        raise ConfigError(f"cache: {cache} is a file; name a folder, which is made if it is not there")
    return Workspace(base, out, Records(open_store(cache), PartRecord), observer)


@contextmanager
def open_workers(section: RunSection, work: Workspace) -> Iterator[Executor]:
    """Open a run's executor, and mark the cache as one.

    Raises:
        ConfigError: the executor's package is missing.
    """
    executor: Executor
    workers = count_workers(section)
    if section.executor == "ray":
        # Imported here, because only few machines have it.
        from ..execute.ray_cluster import RayExecutor

        executor = RayExecutor(section.address, workers, seconds=section.task_seconds)
    else:
        executor = Pool(workers, seconds=section.task_seconds, shard=section.shard)
    mark_cache(work.scratch)  # only a marked folder is cleaned
    try:
        yield executor
    finally:
        executor.close()
        # Tasks that run in this process map files, which may be rewritten before the next run.
        forget_table()
