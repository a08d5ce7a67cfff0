"""A model without randomness for a while, in which nothing is left changed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..attention.apply import configs_of, unwrap

_CHANCE = ("dropout", "dropout_p", "jitter", "pdrop", "drop_rate", "layerdrop", "router_jitter_noise")


@contextmanager
def undisturbed(model: Any) -> Iterator[Callable[[], None]]:
    """The model in train mode, because gradient checkpointing happens only there. At the end its modes, gradients and
    buffers and all random generators are as they were.

    The value switches off dropout, jitter and auxiliary losses of routers, which take all tokens of a row together.
    """
    bare, modules = unwrap(model), list(model.modules())
    modes = [module.training for module in modules]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    # Dynamic rotary embeddings replace their buffers, and remember for which length.
    stretched = [
        (module, vars(module).copy(), module._buffers.copy())
        for module in modules
        if hasattr(module, "max_seq_len_cached") and hasattr(module, "rope_type")
    ]
    grads = [(weight, weight.grad) for weight in model.parameters()]
    changed: list[tuple[Any, str, Any]] = []

    def calm() -> None:
        for module in modules:
            dropout = isinstance(module, torch.nn.modules.dropout._DropoutNd)
            for name, value in list(vars(module).items()):
                chance = name == "p" if dropout else name.endswith(_CHANCE)
                if chance and isinstance(value, float) and 0 < value <= 1:
                    changed.append((module, name, value))
        changed.extend(
            (config, "output_router_logits", True)
            for config in configs_of(bare.config)
            if getattr(config, "output_router_logits", False)
        )
        for what, name, value in changed:
            setattr(what, name, type(value)(0))

    with ExitStack() as stack:
        on_gpus = {weight.device for weight in bare.parameters() if weight.device.type == "cuda"}
        stack.enter_context(torch.random.fork_rng(devices=list(on_gpus)))
        if type(model).__name__ == "DistributedDataParallel":
            stack.enter_context(model.no_sync())  # otherwise DDP waits for gradients of all parameters
        try:
            model.train()
            yield calm
        finally:
            for what, name, value in changed:
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
