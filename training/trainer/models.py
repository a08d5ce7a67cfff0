"""The model to train: loaded from a folder, or with random weights from its configuration."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...schemas.config.hints import did_you_mean
from ...schemas.errors import ConfigError
from ..probe.command import has_weights

if TYPE_CHECKING:
    from .config import ModelConfig


_POSITIONS = ("wpe", "embed_positions", "position_embeddings", "position_embedding")
"""Attribute names of position embeddings in transformers' models."""


def load_model(config: "ModelConfig", base: Path, seed: int) -> Any:
    """A causal language model (transformers.PreTrainedModel), on the CPU unless its quantisation says otherwise.

    Args:
        base: where a relative path starts.
        seed: of drawn weights; the same on every rank gives the same weights.

    Raises:
        ConfigError: the folder or a key does not exist, or transformers cannot make a causal model of it.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.quantizers import AutoQuantizationConfig

    model_config = _model_config(config, base)
    options: dict[str, Any] = {"config": model_config, "trust_remote_code": config.trust_remote_code}
    if config.dtype != "auto" or not config.quantization:
        options["dtype"] = getattr(torch, "float32" if config.dtype == "auto" else config.dtype)
    if config.quantization:
        options["quantization_config"] = AutoQuantizationConfig.from_dict(dict(config.quantization))
    try:
        if config.random or config.config is not None:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                return AutoModelForCausalLM.from_config(**options)
        model, found = AutoModelForCausalLM.from_pretrained(_place(config, base), output_loading_info=True, **options)
    except ConfigError:
        raise
    except SafetensorError as error:
        raise ConfigError(
            f"model: the weights in {_shown(config)} are damaged, or cut short: {error}; copy them again"
        ) from error
    except (OSError, ValueError, ImportError, KeyError, _strict()) as error:
        if isinstance(error, OSError):
            _require_weights(config, base, error)
        raise ConfigError(
            f"model: transformers cannot load {_shown(config)} as a causal language model: {error}; take another"
        ) from error
    if not config.quantization:
        _refuse_missing(found["missing_keys"], config)
    return model


def check_model(config: "ModelConfig", base: Path) -> None:
    """Check that there is a model: read its configuration, look for its weights.

    Raises:
        ConfigError: see `load_model`.
    """
    _model_config(config, base)
    if config.path is not None and not config.random:
        _require_weights(config, base)


def _require_weights(config: "ModelConfig", base: Path, error: Exception | None = None) -> None:
    if not has_weights(base / Path(str(config.path)).expanduser()):
        raise ConfigError(
            f"model: {_shown(config)} holds no weights (*.safetensors or pytorch_model*.bin); take a folder that "
            f"does, or start from random ones: model: {{path: {config.path}, random: true}}"
        ) from error


def _refuse_missing(names: Collection[str], config: "ModelConfig") -> None:
    """Raise for missing weights: transformers draws them at random, and only prints a table of them."""
    if names:
        some = ", ".join(sorted(names)[:3])
        raise ConfigError(
            f"model: {_shown(config)} lacks {len(names):,} of the model's weights, such as {some}; they would be drawn "
            "at random. Give the complete folder of a causal language model"
        )


def vocabulary(model: Any) -> int:
    """Number of token ids for which the model has embeddings."""
    weight = model.get_input_embeddings().weight
    return _shape(weight)[0]


def learned_positions(model: Any) -> int | None:
    """Number of positions with embeddings; None if positions are computed."""
    limit = longest_trained(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) and name.rpartition(".")[2] in _POSITIONS:
            return min(_shape(module.weight)[0], limit or _shape(module.weight)[0])
    return None


def longest_trained(model: Any) -> int | None:
    """The longest document that the model was made for, by its configuration; None if it does not say."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def trained_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each weight that takes a gradient."""
    return {name: _shape(weight) for name, weight in model.named_parameters() if weight.requires_grad}


def _shape(weight: Any) -> tuple[int, ...]:
    return tuple(getattr(weight, "ds_shape", weight.shape))  # under ZeRO-3 a rank holds a part, or nothing


def may_leave_weights_unused(model: Any) -> bool:
    """Whether some weights may get no gradient in a step: experts without a token, or parts that text does not use."""
    config = model.config
    experts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return any(getattr(config, name, None) for name in experts) or bool(getattr(config, "sub_configs", None))


def _model_config(config: "ModelConfig", base: Path) -> Any:
    from transformers import AutoConfig

    try:
        if config.config is not None:
            found = AutoConfig.for_model(**config.config)
        else:
            found = AutoConfig.from_pretrained(_place(config, base), trust_remote_code=config.trust_remote_code)
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError, _strict()) as error:
        raise ConfigError(f"model: the configuration of {_shown(config)} cannot be read: {_whole(error)}") from error
    for key, value in config.overrides.items():
        if not hasattr(found, key):
            hint = did_you_mean(key, found.to_dict())
            raise ConfigError(f"model.overrides.{key}: {found.model_type} has no such key{hint}")
        try:
            setattr(found, key, value)
        except (ValueError, TypeError, _strict()) as error:
            raise ConfigError(f"model.overrides.{key}: {_whole(error)}") from error
    return found


def _strict() -> type[Exception]:
    """The exception, not a ValueError, that transformers 5 raises for a configuration with contradictory values."""
    from huggingface_hub import errors

    found: type[Exception] = getattr(errors, "StrictDataclassError", ValueError)
    return found


def _whole(error: Exception) -> str:
    """The error's message on one line."""
    return " ".join(str(error).split())


def _place(config: "ModelConfig", base: Path) -> str:
    """The path of a local folder, or a name on the hub."""
    text = str(config.path)
    folder = base / Path(text).expanduser()
    if folder.is_dir():
        return str(folder)
    if text.startswith((".", "/", "~")) or folder.parent.is_dir() or text.count("/") != 1:
        raise ConfigError(f"model.path: there is no folder {folder}; give one that holds config.json and weights")
    return text


def _shown(config: "ModelConfig") -> str:
    return config.path if config.path is not None else f"model.config ({(config.config or {}).get('model_type')})"
