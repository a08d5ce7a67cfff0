"""Counts how often packed attention ran in a forward pass, which proves at no cost that every layer used it.

transformers falls back to another attention with at most a warning. A layer with such a fallback is missing from the
count.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_OPEN: list["Calls"] = []


class Calls:
    """The number of `calls` of packed attention by layers of one model."""

    def __init__(self, layers: frozenset[int]) -> None:
        self.calls = 0
        self.dtype: torch.dtype | None = None
        """Dtype of the values in the last call, the only place where autocast shows."""
        self._layers = layers

    def see(self, module: torch.nn.Module, dtype: torch.dtype) -> None:
        """Record a call; packed attention calls this."""
        if id(module) in self._layers:
            self.calls += 1
            self.dtype = dtype


def count(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Count one call of a layer. Compiled code runs without Python, so its calls are not counted; see `is_compiled`."""
    if torch.compiler.is_compiling():
        return
    for calls in _OPEN:
        calls.see(module, dtype)


def layers_of(model: torch.nn.Module) -> frozenset[int]:
    """Return the `layers` argument of `count_calls`, to compute it once for many steps."""
    return frozenset(id(module) for module in model.modules())


@contextmanager
def count_calls(model: torch.nn.Module, layers: frozenset[int] | None = None) -> Iterator[Calls]:
    """Count calls: `with count_calls(model) as seen: model(**batch)`, then read `seen.calls`.

    Run only the forward pass inside: checkpointing runs attention again in the backward pass.
    """
    calls = Calls(layers_of(model) if layers is None else layers)
    _OPEN.append(calls)
    try:
        yield calls
    finally:
        _OPEN.remove(calls)


def expected_calls(model: torch.nn.Module) -> int:
    """Return the number of self-attention layers that follow transformers' attention interface, judged by their
    attributes.

    A layer that runs several times in a pass (such as Zamba's shared layer) counts once here; `StepGuard` learns the
    true number from the first step after the probe.
    """
    return len(attention_layers(model))


def attention_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Yield the modules that call the attention interface: those with `is_causal`, `layer_idx` and `config`."""
    found: list[torch.nn.Module] = []
    for module in model.modules():
        looks: Any = vars(module)
        if "is_causal" in looks and looks["is_causal"] and "layer_idx" in looks and "config" in looks:
            found.append(module)
    return found


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether the model or a part of it is compiled."""
    for module in model.modules():
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            return True
    return False
