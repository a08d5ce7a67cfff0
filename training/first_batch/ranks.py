"""One verdict of all ranks: they must make the same passes, and fail together."""

from typing import Any

import torch


def highest_of_ranks(number: int, device: Any) -> int:
    """The highest number of all ranks."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return number
    highest = torch.tensor(number, device=device)
    torch.distributed.all_reduce(highest, torch.distributed.ReduceOp.MAX)
    return int(highest)


def is_first_rank() -> bool:
    """Whether this process speaks for all."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not distributed or torch.distributed.get_rank() == 0
