"""How many workers a run has: as many as are configured, and as fit into memory."""

import os
from dataclasses import dataclass

import psutil

from ...schemas.config.config import RunSection
from ...schemas.errors import ConfigError
from ...schemas.units import size

WORKER_BYTES = 384 << 20
"""Memory that a worker needs: a tokenizer, its caches, a block of many rows and its tokens; or a shard that it
writes.
"""
DRIVER_BYTES = 512 << 20
"""Memory that the driver always needs: the reference tokenizer, and one chunk of documents."""
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
