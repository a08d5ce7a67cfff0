"""Who this process is among the ranks of a training job."""

import os
import sys
from dataclasses import dataclass

from ..schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    """A rank, the number of ranks, and where that was read."""

    rank: int
    world_size: int
    origin: str

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank} of {self.world_size} ({self.origin}): ranks count from 0")


def find_place(rank: int | None = None, world_size: int | None = None) -> Place:
    """What was given; else torch.distributed, torchrun's environment, Slurm's; else one rank alone.

    Raises:
        ConfigError: only one of the two was given, or they do not fit.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        return Place(rank, world_size, "given")
    # Only asked when somebody else imported it: a process that never did is no rank of it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Place(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    for origin, rank_name, size_name in (
        ("the environment of torchrun", "RANK", "WORLD_SIZE"),
        ("the environment of Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
    ):
        if rank_name in os.environ and size_name in os.environ:
            return Place(int(os.environ[rank_name]), int(os.environ[size_name]), origin)
    return Place(0, 1, "alone: neither torch.distributed nor an environment says otherwise")
