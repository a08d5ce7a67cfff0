"""How many workers fit."""

import os

import psutil

from ..schemas.config import RunSection
from ..schemas.errors import ConfigError

WORKER_BYTES = 384 << 20
"""What a worker needs at most: a tokenizer, its caches, a block and what it becomes."""
DRIVER_BYTES = 512 << 20
"""What the driver needs: the reference tokenizer, and the plan of some million documents."""


def count_workers(section: RunSection) -> int:
    """How many workers run: as many as asked for and as memory allows."""
    memory = section.memory or psutil.virtual_memory().total // 2
    fit = (memory - DRIVER_BYTES) // WORKER_BYTES
    if fit < 1:
        raise ConfigError(
            f"run.memory ({memory / 2**20:.0f} MiB) is too small for the driver and one worker; "
            f"give it at least {(DRIVER_BYTES + WORKER_BYTES) / 2**20:.0f} MiB"
        )
    return min(section.workers or _cores(), int(fit))


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
