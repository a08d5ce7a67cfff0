"""Activations kept in the host's memory between the forward and the backward pass, by torch's `save_on_cpu`.

Parameters stay on the device, where they are anyway, and so do small tensors, which cost more than they save.

Checkpointing and offloading do not add up: a checkpointed layer keeps its input where hooks do not reach it
(`use_reentrant=False`), so there is next to nothing left to move. Take one or the other.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu

MIN_BYTES = 64 << 10
"""Smaller tensors stay on the device."""


@contextmanager
def offloaded(model: nn.Module, *, min_bytes: int = MIN_BYTES) -> Iterator[None]:
    """A context for the forward pass: tensors saved for the backward pass move to host memory, page-locked on CUDA.

    Args:
        model: its parameters stay on the device, also as transposed views.
    """
    weights = frozenset(parameter.untyped_storage().data_ptr() for parameter in model.parameters())
    hooks = save_on_cpu(pin_memory=True)
    move = hooks.pack_hook

    def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        # FSDP's gathered parameters are not the model's own.
        gathered = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if gathered or tensor.nbytes < min_bytes or tensor.untyped_storage().data_ptr() in weights:
            return tensor.device, tensor
        packed: tuple[torch.device, torch.Tensor] = move(tensor)
        return packed

    hooks.pack_hook = pack
    with hooks:
        yield
