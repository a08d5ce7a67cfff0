"""A CUDA device that is not there: tensors on it have shapes, dtypes and a device, but no values.

What runs on it is the code that a GPU would run, down to the choice of each operator. A value that is read on the host
fails, because there is none: on a GPU that is where the host would wait for the device.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from packtrain.training.attention import kernels
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda", 0)
_CUDA, _META = 1, 14
"""Numbers of device types in torch's C++ (c10/core/DeviceType.h)."""
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
"""The table of what sets the current device, by device type (c10::impl::device_guard_impl_registry)."""


class OperatorCalls(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """A context that keeps the positional arguments of each call of one operator, such as `aten::mm`."""

    def __init__(self, operator: str) -> None:
        super().__init__()
        self._operator = operator
        self.arguments: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch."""
        if func.name().partition(".")[0] == self._operator:
            self.arguments.append(args)
        return func(*args, **(kwargs or {}))


@contextmanager
def _no_op_guard() -> Iterator[None]:
    """Operators on CUDA tensors set the current device. Builds of torch without CUDA have nothing that does, and fail;
    the guard of the device `meta`, which does nothing, stands in.
    """
    if torch.backends.cuda.is_built():  # FakeTensorMode takes care of it
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__path__[0]) / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (_META + 1)).in_dll(library, _GUARDS)
    before = guards[_CUDA]
    guards[_CUDA] = guards[_META]
    try:
        yield
    finally:
        guards[_CUDA] = before


@contextmanager
def bf16_autocast() -> Iterator[None]:
    """What `torch.autocast("cuda", torch.bfloat16)` sets if a device is available. It does nothing where none is."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """A mode, entered, in which `DEVICE` is an H200 without values, and packtrain has not asked for devices yet."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *args: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *args: "H200")
    monkeypatch.setattr(kernels, "_WHY_NOT", {})
    with _no_op_guard(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def put_on_device(mode: FakeTensorMode, value: Any) -> Any:
    """A real tensor, moved to `DEVICE`; anything else as it is."""
    return mode.from_tensor(value).to(DEVICE) if torch.is_tensor(value) else value
