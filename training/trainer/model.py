"""The model to train: loaded from a folder or with random weights, with adapters, and what it can take.

`lora:` of a configuration holds the keys of peft's `LoraConfig`. A quantised model keeps its weights as they are, and
only adapters are trained, in float32.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ...schemas.errors import ConfigError, InputError, did_you_mean
from ...schemas.model_facts import Limit
from ..attention.apply import refuse_foreign_attention
from ..probe.probing import document_limit, row_limit
from ..rows import ConcatRows
from .config import ModelConfig
from .watch import EXPERTS

_LOG = logging.getLogger(__name__)
_POSITIONS = ("wpe", "embed_positions", "position_embeddings", "position_embedding")
"""Attribute names of position embeddings in transformers' models."""


def load_model(config: ModelConfig, base: Path, seed: int) -> Any:
    """A causal language model (transformers.PreTrainedModel), on the CPU unless its quantisation says otherwise.

    Args:
        base: where a relative path starts.
        seed: of random weights; the same on every rank gives the same weights.

    Raises:
        ConfigError: the folder or a key does not exist, or transformers cannot make a causal model of it.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.quantizers import AutoQuantizationConfig

    place = _place(config, base)
    options: dict[str, Any] = {"config": read_model_config(config, base)}
    options["trust_remote_code"] = config.trust_remote_code
    if config.quantization:
        options["quantization_config"] = AutoQuantizationConfig.from_dict(dict(config.quantization))
    if config.dtype != "auto" or not config.quantization:
        options["dtype"] = getattr(torch, "float32" if config.dtype == "auto" else config.dtype)
    try:
        if config.random or config.config is not None:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                return AutoModelForCausalLM.from_config(**options)
        model, report = AutoModelForCausalLM.from_pretrained(place, output_loading_info=True, **options)
    except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
        raise ConfigError(
            f"model: transformers cannot load {_shown(config)} as a causal language model: {error}"
        ) from error
    if (missing := sorted(report["missing_keys"])) and not config.quantization:
        raise ConfigError(  # transformers draws them at random, and only prints a table of them
            f"model: {_shown(config)} lacks {len(missing):,} of the model's weights, such as "
            f"{', '.join(missing[:3])}; give the complete folder of a causal language model"
        )
    return model


def read_model_config(config: ModelConfig, base: Path) -> Any:
    """The configuration of the model (transformers.PretrainedConfig), with overrides.

    Raises:
        ConfigError: see `load_model`.
    """
    from huggingface_hub.errors import StrictDataclassError  # for contradictory values; it is no ValueError
    from transformers import AutoConfig

    place, unknown = _place(config, base), {}
    try:
        if config.config is not None:
            return AutoConfig.for_model(**{**config.config, **config.overrides})
        found, unknown = AutoConfig.from_pretrained(
            place, trust_remote_code=config.trust_remote_code, return_unused_kwargs=True, **config.overrides
        )
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        whole = " ".join(str(error).split())
        raise ConfigError(f"model: the configuration of {_shown(config)} cannot be read: {whole}") from error
    for key in config.overrides.keys() & unknown.keys():
        raise ConfigError(
            f"model.overrides.{key}: the model has no such key; check it{did_you_mean(key, found.to_dict())}"
        )
    if not config.trust_remote_code:
        refuse_foreign_attention(found, f"model: config.json of {_shown(config)}")
    return found


def add_adapters(model: Any, settings: Mapping[str, Any] | None) -> Any:
    """The model with adapters, whose weights alone are trained; without settings the model itself.

    Args:
        settings: keys of peft.LoraConfig. Defaults: rank 16, alpha twice the rank, all linear layers but the head.

    Raises:
        ConfigError: peft is not installed, or refuses the settings.
    """
    if settings is None:
        return model
    if find_spec("peft") is None:
        raise ConfigError("lora needs the package peft: pip install 'packtrain[lora]'")
    from peft import LoraConfig, get_peft_model

    rank = settings.get("r", 16)
    given = {"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **settings}
    try:
        return get_peft_model(model, LoraConfig(**given))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"lora: peft refuses it for {type(model).__name__}: {error}; fix that key of lora") from error


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The token ids and positions that a model takes."""

    ids: int
    """Number of token ids with embeddings."""
    document: Limit | None
    """The longest document, and what happens to longer ones; None where there is no limit."""
    row: Limit | None
    """The longest row of a batch, likewise."""
    trained: int | None
    """`max_position_embeddings`: positions beyond may never have been trained; None if the model does not say."""

    @classmethod
    def of(cls, model: Any) -> "ModelLimits":
        """Read them from a model's configuration and embeddings."""
        limits = []
        if (stretch := document_limit(model)) is not None:
            reason = f"the model's {stretch.reason}: a document's outputs would depend on the others in its batch"
            limits.append(Limit(stretch.tokens, reason))
        trained = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Embedding) and name.rpartition(".")[2] in _POSITIONS:
                learned = min(_rows(module.weight), trained or _rows(module.weight))
                limits.append(Limit(learned, f"the model has embeddings for {learned:,} positions"))
        shortest = min(limits, key=lambda limit: limit.tokens, default=None)
        return cls(_rows(model.get_input_embeddings().weight), shortest, row_limit(model), trained or None)

    def check_rows(self, name: str, rows: ConcatRows, rows_per_device: int = 1) -> None:
        """Refuse documents that are longer than the model takes; warn of those longer than it was trained for.

        Args:
            name: what the rows are called in the error.
            rows_per_device: rows of one batch.

        Raises:
            InputError: says how long the longest document is, and how long it may be.
        """
        if self.row is not None and (size := rows_per_device * rows.max_length) > self.row.tokens:
            raise InputError(
                f"a batch has up to {size:,} tokens in a row, but this model takes {self.row.tokens:,}: "
                f"{self.row.reason}. Take fewer rows_per_device, or a shorter max_length"
            )
        if self.document is not None and (longest := rows.longest(self.document.tokens)) > self.document.tokens:
            raise InputError(
                f"{name} has a document of {longest:,} tokens, but {self.document.reason}. Pack with "
                f"truncate.max_length: {self.document.tokens}, or take another model"
            )
        if self.trained is not None and (longest := rows.longest()) > self.trained:
            _LOG.warning(
                "%s has a document of %s tokens, longer than the model's max_position_embeddings (%s): positions "
                "beyond may never have been trained",
                name,
                f"{longest:,}",
                f"{self.trained:,}",
            )

    def check_batch(self, batch: Mapping[str, Any]) -> None:
        """Raise InputError for token ids that the model does not have; on a GPU they would fail unclearly."""
        if (highest := int(batch["input_ids"].max())) >= self.ids:
            raise InputError(
                f"the data has the token id {highest:,}, but the model has embeddings for {self.ids:,} ids: it was "
                "packed with another tokenizer than the model's. Pack it with the model's, or resize the model "
                f"(model.config.vocab_size: at least {highest + 1:,})"
            )


def may_leave_weights_unused(model: Any) -> bool:
    """Whether some weights may get no gradient in a step: experts without a token, or parts that text does not use."""
    config = model.config
    return any(getattr(config, name, None) for name in EXPERTS) or bool(getattr(config, "sub_configs", None))


def _rows(weight: Any) -> int:
    """Rows of an embedding. Under ZeRO-3 a rank holds a part of it, or nothing, and its shape is noted aside."""
    return int(getattr(weight, "ds_shape", weight.shape)[0])


def _place(config: ModelConfig, base: Path) -> str:
    """The path of a local folder, or a name on the hub; empty for a model that the configuration itself describes."""
    if config.path is None:
        return ""
    text = config.path
    folder = base / Path(text).expanduser()
    if folder.is_dir():
        return str(folder)
    if text.startswith((".", "/", "~")) or folder.parent.is_dir() or text.count("/") != 1:
        raise ConfigError(f"model.path: there is no folder {folder}; give one that holds config.json and weights")
    return text


def _shown(config: ModelConfig) -> str:
    return config.path if config.path is not None else f"model.config ({(config.config or {}).get('model_type')})"
