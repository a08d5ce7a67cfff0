"""A causal language model of transformers: read, loaded or drawn at random, adapted.

`train`, `probe`, `sample` and `explain-loss` all get their model here. Weights are read as tensors alone, and nothing
that a folder names is imported or fetched.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch

from ...schemas.errors import ConfigError
from ...schemas.files.foreign import LISTING_BYTES, SETTINGS_BYTES, read_regular
from ...schemas.files.model_folder import check_model_folder
from ...schemas.files.safe_names import check_name
from ...schemas.jsontext import parse_json
from ...schemas.models.model_facts import refuse_too_many_parts
from ..packed_rows import PackedRows
from .adapter import import_peft
from .model_parts import configs_of, unwrap

if TYPE_CHECKING:
    from .model_config import ModelConfig

_LOG = logging.getLogger(__name__)
SCORE_WEIGHT = "score.weight"
"""The head of a reward model, which a causal language model lacks."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts in transformers' configurations."""


def default_device() -> torch.device:
    """CUDA where there is any, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# Configurations and weights


def read_config(folder: Path) -> Any:
    """A model's configuration (transformers.PretrainedConfig), which cannot name code.

    Raises:
        ConfigError: it cannot be read, has more layers than any model, or wants code that is not installed.
    """
    from transformers import AutoConfig

    where = folder / "config.json"
    try:
        check_model_folder(folder)
        refuse_too_many_parts(parse_json(read_regular(where, limit=SETTINGS_BYTES)))
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except OSError as error:
        raise ConfigError(
            f"model: {error.filename or where} cannot be read: {error.strerror or message_of(error)}; copy the model "
            "again"
        ) from error
    except Exception as error:  # architectures raise all kinds of errors if they cannot build a configuration
        raise ConfigError(f"model: the configuration {where} cannot be read: {message_of(error)}") from error
    for inner in configs_of(config):
        attention = str(getattr(inner, "_attn_implementation", None))
        if "/" in attention:  # a repository, whose code transformers would fetch and run
            raise ConfigError(
                f"{where} wants attention from elsewhere, {attention!r}; code that a model's folder names is not run: "
                "remove the key attn_implementation"
            )
    return config


def draw_weights(config: Any, seed: int, *, scores: bool = False, **options: Any) -> Any:
    """A model (transformers.PreTrainedModel) with random weights; the same seed gives the same ones.

    Args:
        scores: a reward model, for sequence classification with one label, in place of a causal language model.
        options: of transformers' `from_config`.

    Raises:
        ConfigError: transformers makes no such model of the configuration.
    """
    try:
        with _seeded(seed):
            return _loader_of(config, scores).from_config(config, **options)
    except Exception as error:  # architectures raise all kinds of errors if they cannot be built
        raise ConfigError(
            f"model: {config.model_type}: transformers cannot build this model: {message_of(error)}"
        ) from error


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """A context with random numbers of a seed on the CPU, after which its generator is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _loader_of(config: Any, scores: bool) -> Any:
    """The class of transformers that makes a model.

    For a reward model (`scores`), the configuration is changed: it gets one label, so that the head gives one score.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    if not scores:
        return AutoModelForCausalLM
    config.num_labels = 1
    return AutoModelForSequenceClassification


def load_weights(folder: Path, *, scores: bool = False, seed: int = 0, **options: Any) -> Any:
    """A model (transformers.PreTrainedModel) with its weights, all of which must be there.

    Args:
        scores: a reward model, as in `draw_weights`. The head of a causal language model is left out. The head that
            scores is read, or drawn if the folder has none.
        seed: for drawing that head.
        options: of transformers' `from_pretrained`.

    Raises:
        ConfigError: a file is missing, damaged, outside of the folder or holds more than weights; or the folder holds
            no causal language model.
    """
    options |= {"config": read_config(folder), "trust_remote_code": False, "local_files_only": True}
    try:
        for index in folder.glob("*.index.json"):
            for name in parse_json(read_regular(index, limit=LISTING_BYTES))["weight_map"].values():
                check_name(name)  # refuses paths out of the folder, which transformers would open
        with _seeded(seed):
            loader = _loader_of(options["config"], scores)
            model, report = loader.from_pretrained(str(folder), output_loading_info=True, **options)
    except Exception as error:  # a damaged or hostile folder may cause any error, and so may an architecture
        raise _not_loaded(folder, error) from error
    missing_weights = set(report["missing_keys"])
    if scores:  # its head was drawn if the folder has none
        missing_weights.discard(SCORE_WEIGHT)
    missing = sorted(missing_weights)
    # Missing weights are no error if this call quantises the model.
    if missing and "quantization_config" not in options:
        raise ConfigError(  # transformers draws them at random, and only prints a table of them
            f"model: {folder} lacks {len(missing):,} of the model's weights, such as {', '.join(missing[:3])}; give "
            "the complete folder of a causal language model"
        )
    return model


def _not_loaded(folder: Path, error: Exception) -> ConfigError:
    """The error for a model that transformers could not load."""
    if isinstance(error, UnpicklingError):  # torch's own message would advise to load it all the same
        return ConfigError(
            f"model: {folder} holds a pickle with more than weights, which is not loaded; take weights in *.safetensors"
        )
    return ConfigError(f"model: transformers cannot load {folder} as a causal language model: {message_of(error)}")


def message_of(error: Exception) -> str:
    """An error's message in one line; or, if it has none, the name of its class."""
    return " ".join(str(error).split())[:400] or type(error).__name__


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that memory ran out on a device or on this machine. Compiled code
    wraps errors.
    """
    # What torch, its CPU allocator and NVIDIA's libraries write: they raise a plain RuntimeError.
    phrases = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases):
            return True
        error = error.__cause__
    return False


# The model to train


def load_model(config: "ModelConfig", base: Path, seed: int, *, scores: bool = False) -> Any:
    """The model of a training (transformers.PreTrainedModel), on the CPU unless its quantisation says otherwise.

    Args:
        base: where a relative path starts.
        seed: of random weights.
        scores: a reward model, as in `draw_weights`.

    Raises:
        ConfigError: there is no such folder, or transformers cannot make such a model of it.
    """
    from transformers import AutoConfig
    from transformers.quantizers import AutoQuantizationConfig

    options: dict[str, Any] = {}
    if config.quantization:
        options["quantization_config"] = AutoQuantizationConfig.from_dict(dict(config.quantization))
    if config.dtype != "auto":
        options["dtype"] = getattr(torch, config.dtype)
    elif not config.quantization:  # a quantised model's configuration says it
        options["dtype"] = torch.float32
    if config.path is not None:
        folder = base / Path(config.path).expanduser()
        if not folder.is_dir():
            raise ConfigError(
                f"model.path: there is no folder {folder}; give one that holds config.json and weights, such as "
                "`hf download OWNER/NAME --local-dir FOLDER` makes"
            )
        return load_weights(folder, scores=scores, seed=seed, **options)
    try:
        model_config = AutoConfig.for_model(**(config.config or {}))
    except Exception as error:  # as in `read_config`
        raise ConfigError(f"model: the configuration of model.config cannot be read: {message_of(error)}") from error
    return draw_weights(model_config, seed, scores=scores, **options)


def add_adapters(model: Any, settings: Mapping[str, Any] | None, seed: int, *, scores: bool = False) -> Any:
    """The model with adapters, whose weights alone are trained, in float32; without settings the model itself.

    Args:
        settings: keys of peft.LoraConfig; None for no adapters. Defaults: rank 16, alpha twice the rank, all linear
            layers but the head.
        seed: of the adapters' random weights.
        scores: it is a reward model, whose head is trained, too.

    Raises:
        ConfigError: peft is not installed, or refuses the settings.
    """
    if settings is None:
        return model
    peft = import_peft()
    rank = settings.get("r", 16)
    task = "SEQ_CLS" if scores else "CAUSAL_LM"
    defaults = {"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear", "task_type": task}
    try:
        with _seeded(seed):
            return peft.get_peft_model(model, peft.LoraConfig(**{**defaults, **settings}))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"lora: peft refuses it for {type(model).__name__}: {error}; fix that key of lora") from error


def name_dataset(model: Any, rows: PackedRows) -> None:
    """Put the hash of the dataset's manifest into the model's configuration, if the model has a configuration.

    TensorBoard, Weights & Biases, MLflow, trackio and others show that configuration as transformers' own callbacks log
    it, and every checkpoint and finished model holds it in config.json.
    """
    config = getattr(unwrap(model), "config", None)
    if config is None:
        return
    for name, value in rows.lineage.items():
        setattr(config, name, value)


def may_leave_weights_unused(model: Any) -> bool:
    """Whether some weights may get no gradient in a step: experts without a token, or parts that text does not use."""
    config = model.config
    return any(getattr(config, name, None) for name in EXPERTS) or bool(getattr(config, "sub_configs", None))
