"""`trainer:` as transformers.TrainingArguments: names checked, packtrain's own keys filled in."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...schemas.config.hints import did_you_mean
from ...schemas.errors import ConfigError
from ..order.options import divisible

if TYPE_CHECKING:  # pydantic is needed for configurations only, not for a PackedTrainer
    from .config import TrainConfig

_FILES = ("deepspeed", "fsdp_config")
"""Keys whose value may be the path of a file."""


def accumulation(rows_per_step: int, rows_per_device: int, ranks: int) -> int:
    """Micro-batches of each rank in a step.

    Raises:
        ConfigError: the rows cannot be divided among the ranks.
    """
    if rows_per_device < 1:
        raise ConfigError(f"rows_per_device={rows_per_device}: at least 1")
    return divisible(rows_per_step, ranks * rows_per_device) // (ranks * rows_per_device)


def training_arguments(config: "TrainConfig", base: Path, ranks: int) -> Any:
    """transformers.TrainingArguments of a configuration. It also joins the process group, where there are ranks.

    Raises:
        ConfigError: a key is unknown, or transformers refuses a value; quotes transformers.
    """
    from transformers import TrainingArguments

    known = sorted(field.name for field in fields(TrainingArguments) if field.init)
    for key in config.trainer:
        if key not in known:
            raise ConfigError(
                f"trainer.{key}: transformers.TrainingArguments has no such key{did_you_mean(key, known)}"
            )
    numbers = {field.name: type(field.default) for field in fields(TrainingArguments)}
    given = {
        _today(key, known): _number(key, value) if numbers[key] in (int, float) else _placed(key, value, base)
        for key, value in config.trainer.items()
    }
    try:
        return TrainingArguments(**{**given, **_defaults(config, given), **_ours(config, base, ranks)})
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        raise ConfigError(
            f"trainer: transformers.TrainingArguments refuses it: {error}; fix that key, or leave it out"
        ) from error


def _defaults(config: "TrainConfig", given: Mapping[str, Any]) -> dict[str, Any]:
    """packtrain's own defaults for keys that are not given, and what keys imply."""
    ours: dict[str, Any] = {
        "report_to": ["tensorboard"] if find_spec("tensorboard") else [],
        "logging_steps": 10,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,  # a NaN should be seen; looking for it costs a synchronisation a batch
    }
    out = {key: value for key, value in ours.items() if key not in given}
    if "use_cpu" not in given and not torch.accelerator.is_available():
        out["use_cpu"] = True  # transformers asks for it before it computes in bfloat16 on a CPU
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        if given.get(name):
            out[f"{name}_kwargs"] = {"use_reentrant": False, **(given.get(f"{name}_kwargs") or {})}
    if config.compile:
        options = config.compile if isinstance(config.compile, dict) else {}
        unknown = sorted(set(options) - {"backend", "mode"})
        if unknown:
            raise ConfigError(f"compile.{unknown[0]}: there is no such key; known keys: backend, mode")
        out |= {"torch_compile": True}
        out |= {f"torch_compile_{key}": value for key, value in options.items()}
    if config.eval is not None:
        out |= {"eval_strategy": "steps", "eval_steps": config.eval.every or given.get("save_steps", 500)}
    return out


def _ours(config: "TrainConfig", base: Path, ranks: int) -> dict[str, Any]:
    return {
        "output_dir": str(base / config.out),
        "per_device_train_batch_size": config.rows_per_device,
        "per_device_eval_batch_size": (config.eval and config.eval.rows_per_device) or config.rows_per_device,
        "gradient_accumulation_steps": accumulation(config.rows_per_step, config.rows_per_device, ranks),
        "seed": config.seed,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "ignore_data_skip": True,
        "average_tokens_across_devices": True,
    }


def _today(key: str, known: Sequence[str]) -> str:
    """The key's present name: transformers 5.23 renamed gradient checkpointing, and warns of the old name."""
    new = key.replace("gradient_checkpointing", "activation_checkpointing")
    return new if new in known else key


def _number(key: str, value: Any) -> Any:
    """A number, also where YAML reads one as text (1e-3): transformers would take the text, and fail late.

    Raises:
        ConfigError: it is not a number.
    """
    number = value
    if isinstance(value, str):
        with suppress(ValueError):
            number = float(value)
            number = int(number) if number.is_integer() else number
    if not isinstance(number, int | float) or isinstance(number, bool) or math.isnan(number):
        raise ConfigError(f"trainer.{key}: {value!r} is not a number; for transformers' own default leave the key out")
    if key == "learning_rate" and number < 0:
        raise ConfigError(f"trainer.{key}: {value!r} is below 0; give 0 or more")
    return number


def _placed(key: str, value: Any, base: Path) -> Any:
    """Resolve the path of a file against the configuration's folder."""
    return str(base / value) if key in _FILES and isinstance(value, str) and (base / value).is_file() else value
