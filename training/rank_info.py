"""Which rank this process is, of how many, and how many rows of a step each rank gets."""

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..schemas.errors import ConfigError

_LAUNCHERS = (("torchrun", "RANK", "WORLD_SIZE"), ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
"""Launchers, and the variables in which each says a process's rank and the number of ranks."""


class RankInfo(NamedTuple):
    """A rank, the number of ranks, and where they were read from."""

    rank: int
    world_size: int
    origin: str


def detect_rank(rank: int | None = None, world_size: int | None = None) -> RankInfo:
    """The given rank; else the one from torch.distributed, or from the environment of torchrun or Slurm; else a single
    rank.

    Raises:
        ConfigError: only one of the two was given, or the rank is out of range.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        info = RankInfo(rank, world_size, "given")
    else:
        info = (
            _from_torch()
            or _from_environment(os.environ)
            or RankInfo(0, 1, "single process: neither torch.distributed nor the environment names a rank")
        )
    if not 0 <= info.rank < info.world_size:
        raise ConfigError(f"rank {info.rank} of {info.world_size} ({info.origin}): ranks count from 0")
    return info


def highest_of_ranks(number: int, device: Any) -> int:
    """The highest number of all ranks, which must all call it: so they take the same branch, and fail together.

    Args:
        device: one through which ranks reach each other.
    """
    if _from_torch() is None:
        return number
    import torch

    highest = torch.tensor(number, device=device)
    torch.distributed.all_reduce(highest, torch.distributed.ReduceOp.MAX)
    return int(highest)


def _from_torch() -> RankInfo | None:
    """The rank in torch.distributed, where it is initialised."""
    # Only if already imported: a process without torch.distributed is not one of its ranks.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return RankInfo(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _from_environment(environment: Mapping[str, str]) -> RankInfo | None:
    """The rank that a launcher has written into the environment.

    Raises:
        ConfigError: it is not a number.
    """
    # torchrun first: started by Slurm, it gives each of its processes a rank that Slurm knows nothing of.
    for launcher, rank_variable, size_variable in _LAUNCHERS:
        if rank_variable not in environment or size_variable not in environment:
            continue
        rank = environment[rank_variable]
        world_size = environment[size_variable]
        if not rank.isdecimal() or not world_size.isdecimal():
            raise ConfigError(f"{rank_variable}={rank}, {size_variable}={world_size}: both must be numbers")
        return RankInfo(int(rank), int(world_size), f"the environment of {launcher}")
    return None


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
    """The multiples of `factor` next to a number, for a message: `8 or 12` for 10 and 4, `4` alone for 3 and 4."""
    low = number // factor * factor
    return f"{low:,} or {low + factor:,}" if low > 0 else f"{factor:,}"
