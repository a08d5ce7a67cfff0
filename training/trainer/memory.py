"""Activations kept in the host's memory between the forward and the backward pass.

What a forward pass keeps for its backward pass is copied to the host as it is kept, and back when it is asked for.
On CUDA the copies out run on a stream of their own, beside the computation, from and into page-locked memory. The
values are the same, to the bit.

Not everything is worth the way: parameters stay where they are anyway (also seen through a transposition), small
tensors cost more than they save, and what several operations keep is copied once.

Checkpointing and offloading do not add up: a checkpointed layer keeps its input outside of what can be offloaded
(`use_reentrant=False`), so beside checkpointing there is next to nothing left to move. Take one or the other.
"""

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

MIN_BYTES = 64 << 10
"""Smaller tensors stay on the device."""


@dataclass(slots=True)
class Moved:
    """What one forward pass has moved."""

    bytes: int = 0
    tensors: int = 0


@dataclass(slots=True, weakref_slot=True)
class _Parcel:
    """A tensor on the host, on its way there, or as it was."""

    tensor: torch.Tensor
    """On the host; or, if `device` is None, the tensor itself."""
    device: torch.device | None = None
    arrived: Any = None
    """A CUDA event: the copy to the host is complete."""


@dataclass(slots=True)
class _Offload:
    """The two hooks of one forward pass."""

    skip: frozenset[int]
    """Addresses of parameters' memory."""
    min_bytes: int
    from_cpu: bool
    moved: Moved = field(default_factory=Moved)
    known: dict[tuple[Any, ...], tuple[StorageWeakRef, "weakref.ref[_Parcel]"]] = field(default_factory=dict)
    streams: dict[torch.device, Any] = field(default_factory=dict)

    def pack(self, tensor: torch.Tensor) -> _Parcel:
        """Called as autograd keeps a tensor."""
        if self._stays(tensor):
            return _Parcel(tensor)
        # The same memory in the same version holds the same values, as long as it is not given away: the next layer's
        # activations have the same shape, and soon the same address.
        storage = tensor.untyped_storage()
        key = (tensor.data_ptr(), tensor._version, tensor.dtype, tensor.shape, tensor.stride())
        memory, known = self.known.get(key, (None, None))
        if memory is not None and known is not None and not memory.expired() and memory.cdata == storage._cdata:
            parcel = known()
            if parcel is not None:
                return parcel
        parcel = self._send(tensor)
        self.known[key] = (StorageWeakRef(storage), weakref.ref(parcel))
        self.moved.bytes += tensor.numel() * tensor.element_size()
        self.moved.tensors += 1
        return parcel

    def unpack(self, parcel: _Parcel) -> torch.Tensor:
        """Called as the backward pass asks for it."""
        if parcel.device is None:
            return parcel.tensor
        if parcel.arrived is not None:
            parcel.arrived.wait()  # the stream that computes waits, not the program
        return parcel.tensor.to(parcel.device, non_blocking=True, copy=True)

    def _stays(self, tensor: torch.Tensor) -> bool:
        if tensor.device.type == "cpu" and not self.from_cpu:
            return True
        if tensor.numel() * tensor.element_size() < self.min_bytes:
            return True
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return True  # FSDP's gathered ones are none of the model's own
        return tensor.untyped_storage().data_ptr() in self.skip

    def _send(self, tensor: torch.Tensor) -> _Parcel:
        if tensor.device.type != "cuda":
            return _Parcel(tensor.detach().to("cpu", copy=True), tensor.device)
        stream = self.streams.setdefault(tensor.device, torch.cuda.Stream(tensor.device))
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            host.copy_(tensor.detach(), non_blocking=True)
            arrived = stream.record_event()
        tensor.record_stream(stream)  # its memory is not given away before the copy is made
        return _Parcel(host, tensor.device, arrived)


@contextlib.contextmanager
def offloaded(model: nn.Module, *, min_bytes: int = MIN_BYTES, from_cpu: bool = False) -> Iterator[Moved]:
    """Around a forward pass: what it keeps for the backward pass goes to the host's memory.

    Args:
        model: whose parameters stay where they are.
        min_bytes: smaller tensors stay, too.
        from_cpu: also copy tensors that are on the host already, which saves nothing: to see what would be moved.

    Yields:
        What has been moved, counted as it is.
    """
    skip = frozenset(parameter.untyped_storage().data_ptr() for parameter in model.parameters())
    offload = _Offload(skip, min_bytes, from_cpu)
    with torch.autograd.graph.saved_tensors_hooks(offload.pack, offload.unpack):
        yield offload.moved
