"""Runs a model as in training but without randomness, and restores it afterwards.

Train mode stays on, because gradient checkpointing happens only there; dropout and the jitter of routers are set to 0.
Auxiliary losses of routers take all tokens of a row together and have nothing to do with attention, so they are left
out.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from ..attention.apply import configs_of, unwrap

_CHANCE = ("dropout", "dropout_p", "jitter", "pdrop", "drop_rate", "layerdrop", "router_jitter_noise")


@contextmanager
def quiet(model: Any) -> Iterator[None]:
    """Switch off dropout, jitter and auxiliary losses; the model's modes, gradients, buffers and all random generators
    are restored at the end.
    """
    bare = unwrap(model)
    modules = list(model.modules())
    modes = [module.training for module in modules]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    # Dynamic rotary embeddings replace their buffers, and remember for which length.
    stretched = [(module, vars(module).copy(), module._buffers.copy()) for module in modules if _stretches(module)]
    grads = [(weight, weight.grad) for weight in model.parameters()]
    changed: list[tuple[Any, str, Any]] = []

    def put(what: Any, name: str, value: Any) -> None:
        changed.append((what, name, getattr(what, name)))
        setattr(what, name, value)

    with ExitStack() as stack:
        stack.enter_context(_random_state(next((weight.device for weight in bare.parameters()), None)))
        if type(model).__name__ == "DistributedDataParallel":
            stack.enter_context(model.no_sync())  # otherwise DDP waits for gradients of all parameters
        try:
            model.train()
            for module in modules:
                for name, value in list(vars(module).items()):
                    if isinstance(value, float) and 0 < value <= 1 and _is_chance(module, name):
                        put(module, name, 0.0)
            for config in configs_of(bare.config):
                if getattr(config, "output_router_logits", False):
                    put(config, "output_router_logits", False)
            yield
        finally:
            for what, name, value in reversed(changed):
                setattr(what, name, value)
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode
            for module, values, held in stretched:
                vars(module).update(values)
                module._buffers.update(held)
            with torch.no_grad():
                for buffer, before in buffers:
                    if buffer.shape == before.shape:
                        buffer.copy_(before)
            for weight, grad in grads:
                weight.grad = grad


def _stretches(module: torch.nn.Module) -> bool:
    return hasattr(module, "max_seq_len_cached") and hasattr(module, "rope_type")


def _is_chance(module: torch.nn.Module, name: str) -> bool:
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return name == "p"
    return any(name == one or name.endswith(one) for one in _CHANCE)


@contextmanager
def _random_state(device: torch.device | None) -> Iterator[None]:
    python, numbers = random.getstate(), np.random.get_state()
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
