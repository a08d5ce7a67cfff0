"""The rank of this process in a training job, and how a step is divided among the ranks."""

import os
import sys
from dataclasses import dataclass

from ..schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A rank, the number of ranks, and where they were read from."""

    rank: int
    world_size: int
    origin: str

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank} of {self.world_size} ({self.origin}): ranks count from 0")


def detect_rank(rank: int | None = None, world_size: int | None = None) -> RankInfo:
    """The given rank; else the one from torch.distributed, or from the environment of torchrun or Slurm; else a single
    rank.

    Raises:
        ConfigError: only one of the two was given, or the rank is out of range.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        return RankInfo(rank, world_size, "given")
    # Only if already imported: a process without torch.distributed is not one of its ranks.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return RankInfo(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    for launcher, mine, all_of_them in (("torchrun", "RANK", "WORLD_SIZE"), ("Slurm", "SLURM_PROCID", "SLURM_NTASKS")):
        if mine in os.environ and all_of_them in os.environ:
            return RankInfo(int(os.environ[mine]), int(os.environ[all_of_them]), f"the environment of {launcher}")
    return RankInfo(0, 1, "single process: neither torch.distributed nor the environment names a rank")


def divisible(rows_per_step: int, world_size: int, accumulate: int = 1) -> int:
    """`rows_per_step`, if it can be divided equally among ranks and their batches.

    Raises:
        ConfigError: it cannot; the message names the nearest numbers that can.
    """
    if accumulate < 1:
        raise ConfigError(f"accumulate={accumulate}: must be at least 1")
    shares = world_size * accumulate
    if rows_per_step >= 1 and rows_per_step % shares == 0:
        return rows_per_step
    batches = f" with {accumulate:,} batches each" if accumulate > 1 else ""
    raise ConfigError(
        f"rows_per_step={rows_per_step:,} cannot be divided among {world_size:,} ranks{batches}, which must all get "
        f"the same number; take {nearest(rows_per_step, shares)}"
    )


def nearest(number: int, factor: int) -> str:
    """The multiples of `factor` next to a number, for a message; only the larger one if the smaller would be 0."""
    low = number // factor * factor
    return f"{low:,} or {low + factor:,}" if low > 0 else f"{factor:,}"
