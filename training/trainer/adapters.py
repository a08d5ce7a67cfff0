"""Low-rank adapters through peft, also on quantised models.

`lora:` of a configuration holds the keys of peft's `LoraConfig` (`r`, `lora_alpha`, `target_modules`, `use_dora`, …).
Defaults: rank 16, alpha twice the rank, every linear layer but the head, no dropout.

transformers loads a quantised model by its `quantization_config` (bitsandbytes, GPTQ, AWQ, torchao and others); its
weights stay as they are, and only adapters are trained, in float32.
"""

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ...schemas.config.hints import did_you_mean
from ...schemas.errors import ConfigError

_LOG = logging.getLogger(__name__)
RANK = 16


def add_adapters(model: Any, settings: Mapping[str, Any] | None) -> Any:
    """The model with adapters, whose weights alone are trained; without settings the model itself.

    Args:
        settings: keys of peft.LoraConfig.

    Raises:
        ConfigError: peft is not installed, a key is unknown, or no layer has a name in target_modules.
    """
    if settings is None:
        return model
    if find_spec("peft") is None:
        raise ConfigError("lora needs the package peft: pip install 'packtrain[lora]'")
    from peft import LoraConfig, get_peft_model

    given: dict[str, Any] = dict(settings)
    known = LoraConfig.__dataclass_fields__
    for key in given:
        if key not in known:
            hint = did_you_mean(key, known) or did_you_mean(f"lora_{key}", known)
            raise ConfigError(f"lora.{key}: peft.LoraConfig has no such key{hint}")
    if given.get("task_type", "CAUSAL_LM") != "CAUSAL_LM":
        raise ConfigError(
            f"lora.task_type: {given['task_type']}: causal language models are trained here; leave it out"
        )
    rank = int(given.setdefault("r", RANK))
    given.setdefault("lora_alpha", 2 * rank)
    given.setdefault("target_modules", "all-linear")
    try:
        adapted = get_peft_model(model, LoraConfig(**given, task_type="CAUSAL_LM"))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"lora: peft refuses it for {type(model).__name__}: {error}; fix the keys of lora") from error
    trained, total = adapted.get_nb_trainable_parameters()
    _LOG.info("lora: %s of %s weights are trained (%.2f %%)", f"{trained:,}", f"{total:,}", 100 * trained / total)
    return adapted


def is_adapted(model: Any) -> bool:
    """Whether the model has PEFT adapters."""
    return hasattr(model, "get_base_model") and hasattr(model, "peft_config")


def is_quantised(model: Any) -> bool:
    """Whether transformers loaded or made the model's weights quantised."""
    base = model.get_base_model() if is_adapted(model) else model
    return bool(getattr(base, "is_quantized", False)) or getattr(base, "hf_quantizer", None) is not None


def merged(model: Any) -> Any:
    """Merge the adapters into the model's weights, in place. A model without adapters stays as it is.

    Raises:
        ConfigError: the weights are quantised, and rounding would take back what was learned.
    """
    if not is_adapted(model):
        return model
    if is_quantised(model):
        raise ConfigError(
            "export.merge: the weights are quantised, and merging would round away what the adapters learned; export "
            "the adapters alone (merge: false), and merge them into the model loaded without quantization"
        )
    return model.merge_and_unload()
