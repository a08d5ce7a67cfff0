"""Parts of a model of transformers: the model inside of wrappers, its configurations, and its layers of attention."""

from typing import Any

import torch


def attention_layers(model: torch.nn.Module) -> list[Any]:
    """The modules of causal self-attention that call transformers' attention interface. They have no class in common,
    and are known by their attributes.
    """
    attributes = {"is_causal", "layer_idx", "config"}
    return [layer for layer in model.modules() if attributes <= vars(layer).keys() and vars(layer)["is_causal"]]


def unwrap(model: Any) -> Any:
    """The model of transformers inside PEFT, DDP, FSDP or torch.compile."""
    return wrappers_of(model)[-1]


def wrappers_of(model: Any) -> list[Any]:
    """The model itself, then what it wraps, and so on; the last one is the model of transformers."""
    chain = [model]
    while True:
        children = vars(model).get("_modules", {})  # not by attribute: PEFT passes unknown ones on to what it wraps
        if hasattr(model, "_orig_mod"):  # torch.compile
            model = model._orig_mod
        elif hasattr(model, "get_base_model"):  # PEFT
            model = model.get_base_model()
        elif isinstance(children.get("module"), torch.nn.Module):  # DDP, DeepSpeed
            model = model.module
        elif isinstance(children.get("_fsdp_wrapped_module"), torch.nn.Module):  # FSDP 1
            model = model._fsdp_wrapped_module
        else:
            return chain
        chain.append(model)


def configs_of(config: Any) -> list[Any]:
    """A configuration and all configurations within it, such as those of the text and the images of a model."""
    configs: list[Any] = []
    waiting = [config]
    while waiting:
        inner = waiting.pop()
        # By identity: two configurations may be equal, and a caller that changes them needs both.
        if inner is None or any(inner is earlier for earlier in configs):
            continue
        configs.append(inner)
        waiting += [getattr(inner, name, None) for name in getattr(inner, "sub_configs", {})]
    return configs
