"""How often packed attention ran in a forward pass: the free proof that no layer went another way.

transformers falls back to other attention with a warning at most. A layer that does so is missed here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_OPEN: list["Calls"] = []


class Calls:
    """What was counted: `calls` of packed attention by layers of one model."""

    def __init__(self, layers: frozenset[int]) -> None:
        self.calls = 0
        self.dtype: torch.dtype | None = None
        """Of the last call's values: autocast shows here and nowhere else."""
        self._layers = layers

    def see(self, module: torch.nn.Module, dtype: torch.dtype) -> None:
        """Called by attention itself."""
        if id(module) in self._layers:
            self.calls += 1
            self.dtype = dtype


def count(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """A layer attends. Compiled code runs without Python, so there nothing is counted; see `is_compiled`."""
    if torch.compiler.is_compiling():
        return
    for calls in _OPEN:
        calls.see(module, dtype)


def layers_of(model: torch.nn.Module) -> frozenset[int]:
    """What `count_calls` takes, to be made once for many steps."""
    return frozenset(id(module) for module in model.modules())


@contextmanager
def count_calls(model: torch.nn.Module, layers: frozenset[int] | None = None) -> Iterator[Calls]:
    """`with count_calls(model) as seen: model(**batch)`, then `seen.calls`.

    Put the forward pass alone into it: checkpointing runs attention again in the backward pass.
    """
    calls = Calls(layers_of(model) if layers is None else layers)
    _OPEN.append(calls)
    try:
        yield calls
    finally:
        _OPEN.remove(calls)


def expected_calls(model: torch.nn.Module) -> int:
    """Layers of self-attention that follow transformers' attention interface, by their looks.

    A layer that is run several times in a pass (Zamba's shared one, say) counts once here: `StepGuard` learns the
    true number from the first step after the probe.
    """
    return len(attention_layers(model))


def attention_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that call the attention interface: they say whether they are causal, and which layer they are."""
    found: list[torch.nn.Module] = []
    for module in model.modules():
        looks: Any = vars(module)
        if "is_causal" in looks and looks["is_causal"] and "layer_idx" in looks and "config" in looks:
            found.append(module)
    return found


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether torch.compile has hold of the model or a part of it."""
    for module in model.modules():
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            return True
    return False
