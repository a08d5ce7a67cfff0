"""The model to train: from a folder, or drawn from its configuration."""

import difflib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...schemas.errors import ConfigError

if TYPE_CHECKING:
    from .config import ModelConfig


WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Files in which transformers keeps weights."""
_POSITIONS = ("wpe", "embed_positions", "position_embeddings", "position_embedding")
"""How models of transformers call a table of position embeddings."""


def load_model(config: "ModelConfig", base: Path, seed: int) -> Any:
    """A causal language model (transformers.PreTrainedModel), on the CPU unless its quantisation says otherwise.

    Args:
        base: where a relative path starts.
        seed: of drawn weights; the same on every rank gives the same weights.

    Raises:
        ConfigError: there is no such folder, no such key, or transformers cannot make a causal model of it.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    model_config = _model_config(config, base)
    dtype = None if config.dtype == "auto" and config.quantization else _dtype(config)
    options: dict[str, Any] = {"config": model_config, "trust_remote_code": config.trust_remote_code}
    if dtype is not None:
        options["dtype"] = dtype
    if config.quantization:
        options["quantization_config"] = _quantization(config.quantization)
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
            f"model: transformers makes no causal language model of {_shown(config)}: {error}; take one that it knows"
        ) from error
    if not config.quantization:
        _refuse_missing(found["missing_keys"], config)
    return model


def check_model(config: "ModelConfig", base: Path) -> None:
    """Whether there is a model: its configuration is read, its weights only looked for.

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
            f"does, or draw them: model: {{path: {config.path}, random: true}}"
        ) from error


def has_weights(folder: Path) -> bool:
    """Whether a model's folder holds weights; true of a name for the hub, of which nothing is known here."""
    return not folder.is_dir() or any(next(folder.glob(pattern), None) for pattern in WEIGHTS)


def _refuse_missing(names: Collection[str], config: "ModelConfig") -> None:
    """transformers draws weights that a folder lacks, and only prints a table of them."""
    if names:
        some = ", ".join(sorted(names)[:3])
        raise ConfigError(
            f"model: {_shown(config)} lacks {len(names):,} of the model's weights, such as {some}; they would be drawn "
            "at random. Take a folder that is whole, and of a causal language model"
        )


def vocabulary(model: Any) -> int:
    """Token ids that the model has embeddings for."""
    weight = model.get_input_embeddings().weight
    return _shape(weight)[0]


def learned_positions(model: Any) -> int | None:
    """How many positions there are embeddings for; None where positions are computed."""
    limit = longest_trained(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) and name.rpartition(".")[2] in _POSITIONS:
            return min(_shape(module.weight)[0], limit or _shape(module.weight)[0])
    return None


def longest_trained(model: Any) -> int | None:
    """The longest document that the model was made for, as its configuration says; None where it does not."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    limit = getattr(config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def trained_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each weight that takes a gradient."""
    return {name: _shape(weight) for name, weight in model.named_parameters() if weight.requires_grad}


def _shape(weight: Any) -> tuple[int, ...]:
    return tuple(getattr(weight, "ds_shape", weight.shape))  # under ZeRO-3 a rank holds a part, or nothing


def may_leave_weights_unused(model: Any) -> bool:
    """Whether a step may give some weights no gradient: experts without a token, or parts that no text goes through."""
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
        raise ConfigError(f"model: no configuration can be read of {_shown(config)}: {_whole(error)}") from error
    for key, value in config.overrides.items():
        if not hasattr(found, key):
            near = difflib.get_close_matches(key, found.to_dict(), n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"model.overrides.{key}: a {found.model_type} has no such key{hint}")
        try:
            setattr(found, key, value)
        except (ValueError, TypeError, _strict()) as error:
            raise ConfigError(f"model.overrides.{key}: {_whole(error)}") from error
    return found


def _strict() -> type[Exception]:
    """What configurations of transformers 5 raise where values do not go together: no ValueError."""
    from huggingface_hub import errors

    found: type[Exception] = getattr(errors, "StrictDataclassError", ValueError)
    return found


def _whole(error: Exception) -> str:
    """Its message, in one line."""
    return " ".join(str(error).split())


def _place(config: "ModelConfig", base: Path) -> str:
    """A folder here; else a name for the hub."""
    text = str(config.path)
    folder = base / Path(text).expanduser()
    if folder.is_dir():
        return str(folder)
    if text.startswith((".", "/", "~")) or folder.parent.is_dir() or text.count("/") != 1:
        raise ConfigError(f"model.path: there is no folder {folder}; give one that holds config.json and weights")
    return text


def _dtype(config: "ModelConfig") -> torch.dtype:
    name = "float32" if config.dtype == "auto" else config.dtype
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def _quantization(options: dict[str, Any]) -> Any:
    from transformers.quantizers import AutoQuantizationConfig

    return AutoQuantizationConfig.from_dict(dict(options))


def _shown(config: "ModelConfig") -> str:
    return config.path if config.path is not None else f"model.config ({(config.config or {}).get('model_type')})"
