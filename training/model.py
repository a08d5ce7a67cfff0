"""A causal language model of transformers: found, read, loaded or drawn at random, adapted, and what it can take.

`train`, `probe`, `sample` and `explain-loss` all get their model here. Weights are read as tensors alone, and nothing
that a folder names is imported or fetched.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch

from ..schemas.errors import ConfigError, InputError
from ..schemas.model_facts import Limit, stretching
from .attention.apply import configs_of, refuse_foreign_attention, unwrap
from .packed_rows import PackedRows

if TYPE_CHECKING:
    from .trainer.train_config import ModelConfig

_LOG = logging.getLogger(__name__)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts in transformers' configurations."""
_POSITIONS = ("wpe", "embed_positions", "position_embeddings", "position_embedding")
"""Attribute names of position embeddings in transformers' models."""


def default_device() -> torch.device:
    """CUDA where there is any, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# Configurations and weights


def read_config(folder: Path) -> Any:
    """A model's configuration (transformers.PretrainedConfig), which cannot name code.

    Raises:
        ConfigError: it cannot be read, or wants code that is not installed.
    """
    from transformers import AutoConfig

    where = folder / "config.json"
    try:
        found = AutoConfig.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # architectures raise all kinds of errors if they cannot build a configuration
        raise ConfigError(f"model: the configuration {where} cannot be read: {message_of(error)}") from error
    refuse_foreign_attention(found, where)
    return found


def draw_weights(config: Any, seed: int, **options: Any) -> Any:
    """A model (transformers.PreTrainedModel) with random weights; the same seed gives the same ones.

    Args:
        options: of transformers' `from_config`.

    Raises:
        ConfigError: transformers makes no causal language model of the configuration.
    """
    from transformers import AutoModelForCausalLM

    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(config, **options)
    except Exception as error:  # as above
        raise ConfigError(
            f"model: {config.model_type}: transformers cannot build this model: {message_of(error)}"
        ) from error


def load_weights(folder: Path, **options: Any) -> Any:
    """A model (transformers.PreTrainedModel) with its weights, all of which must be there.

    Args:
        options: of transformers' `from_pretrained`.

    Raises:
        ConfigError: a file is missing, damaged or holds more than weights, or it is no causal language model.
    """
    from transformers import AutoModelForCausalLM

    options |= {"config": read_config(folder), "trust_remote_code": False, "local_files_only": True}
    try:
        model, report = AutoModelForCausalLM.from_pretrained(str(folder), output_loading_info=True, **options)
    except Exception as error:  # of a damaged or hostile folder, and of any architecture
        raise _not_loaded(folder, error) from error
    if (missing := sorted(report["missing_keys"])) and "quantization_config" not in options:
        raise ConfigError(  # transformers draws them at random, and only prints a table of them
            f"model: {folder} lacks {len(missing):,} of the model's weights, such as {', '.join(missing[:3])}; give "
            "the complete folder of a causal language model"
        )
    return model


def put_adapter(model: Any, folder: Path) -> Any:
    """The model with the adapter that a folder holds (peft.PeftModel).

    Raises:
        ConfigError: peft is missing, or the adapter does not fit.
    """
    peft = _peft()
    try:
        return peft.PeftModel.from_pretrained(model, str(folder))
    except Exception as error:  # of a damaged or hostile folder
        raise _not_loaded(folder, error) from error


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError(f"lora: adapters need peft ({error}); pip install 'packtrain[lora]'") from None
    return peft


def _not_loaded(folder: Path, error: Exception) -> ConfigError:
    if isinstance(error, UnpicklingError):  # torch reads tensors alone, and advises otherwise
        return ConfigError(
            f"model: {folder} holds a pickle with more than weights, which is not loaded; take weights in *.safetensors"
        )
    return ConfigError(f"model: transformers cannot load {folder} as a causal language model: {message_of(error)}")


def message_of(error: Exception) -> str:
    """An error's message in one line; or, if it has none, the name of its class."""
    return " ".join(str(error).split())[:400] or type(error).__name__


# The model to train


def load_model(config: "ModelConfig", base: Path, seed: int) -> Any:
    """The model of a training (transformers.PreTrainedModel), on the CPU unless its quantisation says otherwise.

    Args:
        base: where a relative path starts.
        seed: of random weights.

    Raises:
        ConfigError: there is no such folder, or transformers cannot make a causal model of it.
    """
    from transformers import AutoConfig
    from transformers.quantizers import AutoQuantizationConfig

    options: dict[str, Any] = {}
    if config.quantization:
        options["quantization_config"] = AutoQuantizationConfig.from_dict(dict(config.quantization))
    if config.dtype != "auto" or not config.quantization:
        options["dtype"] = getattr(torch, "float32" if config.dtype == "auto" else config.dtype)
    if config.path is not None:
        folder = base / Path(config.path).expanduser()
        if not folder.is_dir():
            raise ConfigError(
                f"model.path: there is no folder {folder}; give one that holds config.json and weights, such as "
                "`hf download OWNER/NAME --local-dir FOLDER` makes"
            )
        return load_weights(folder, **options)
    try:
        made = AutoConfig.for_model(**(config.config or {}))
    except Exception as error:  # as in `read_config`
        raise ConfigError(f"model: the configuration of model.config cannot be read: {message_of(error)}") from error
    return draw_weights(made, seed, **options)


def add_adapters(model: Any, settings: Mapping[str, Any] | None) -> Any:
    """The model with adapters, whose weights alone are trained, in float32; without settings the model itself.

    Args:
        settings: keys of peft.LoraConfig. Defaults: rank 16, alpha twice the rank, all linear layers but the head.

    Raises:
        ConfigError: peft is not installed, or refuses the settings.
    """
    if settings is None:
        return model
    peft, rank = _peft(), settings.get("r", 16)
    given = {"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **settings}
    try:
        return peft.get_peft_model(model, peft.LoraConfig(**given))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"lora: peft refuses it for {type(model).__name__}: {error}; fix that key of lora") from error


# What a model can take


def may_leave_weights_unused(model: Any) -> bool:
    """Whether some weights may get no gradient in a step: experts without a token, or parts that text does not use."""
    config = model.config
    return any(getattr(config, name, None) for name in EXPERTS) or bool(getattr(config, "sub_configs", None))


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The token ids and positions that a model takes."""

    ids: int
    """Number of token ids with embeddings."""
    document: Limit | None
    """The longest document, and what happens to longer ones; None where there is no limit."""
    trained: int | None
    """`max_position_embeddings`: positions beyond may never have been trained; None if the model does not say."""

    @classmethod
    def of(cls, model: Any) -> "ModelLimits":
        """Read them from the configuration and embeddings of a model.

        Rotary embeddings may stretch with the longest document of a batch (`stretching`), and learned ones end.
        """
        model = unwrap(model)
        limits = [limit for config in configs_of(model.config) for limit in stretching(config)]
        trained = getattr(model.config.get_text_config(), "max_position_embeddings", None) or None
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Embedding) and name.rpartition(".")[2] in _POSITIONS:
                learned = min(_rows(module.weight), trained or _rows(module.weight))
                limits.append(Limit(learned, f"it has embeddings for {learned:,} positions"))
        shortest = min(limits, key=lambda limit: limit.tokens, default=None)
        return cls(_rows(model.get_input_embeddings().weight), shortest, trained)

    def check_rows(self, name: str, rows: PackedRows, *, padded: bool = False) -> None:
        """Refuse documents that are longer than the model takes; warn of those longer than it was trained for.

        Args:
            name: what the rows are called in the error.
            padded: the rest of every row is padding, a document of its own, which may be as long as a row.

        Raises:
            InputError: says how long the longest document is, and how long it may be.
        """
        known = [self.document.tokens if self.document else None, self.trained]
        within = all(limit is None or rows.max_length <= limit for limit in known)  # as nearly always
        longest = rows.max_length if padded or within else rows.longest
        if self.document is not None and longest > self.document.tokens:
            raise InputError(
                f"{name} has {'padding' if padded else 'a document'} of {longest:,} tokens, more than the model takes: "
                f"{self.document.reason}. Pack with truncate.max_length: {self.document.tokens}, or take another model"
            )
        if self.trained is not None and longest > self.trained and not padded:
            _LOG.warning(
                f"{name} has a document of {longest:,} tokens, longer than the model's max_position_embeddings "
                f"({self.trained:,}): positions beyond may never have been trained"
            )

    def check_batch(self, batch: Mapping[str, Any]) -> None:
        """Raise InputError for token ids that the model does not have; on a GPU they would fail unclearly."""
        if (highest := int(batch["input_ids"].max())) >= self.ids:
            raise InputError(
                f"the data has the token id {highest:,}, but the model has embeddings for {self.ids:,} ids: it was "
                "packed with another tokenizer than the model's. Pack it with the model's, or resize the model "
                f"(model.config.vocab_size: at least {highest + 1:,})"
            )


def _rows(weight: Any) -> int:
    """Rows of an embedding. Under ZeRO-3 a rank holds a part of it, or nothing, and its shape is noted aside."""
    return int(getattr(weight, "ds_shape", weight.shape)[0])
