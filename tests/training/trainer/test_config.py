"""The configuration of a training: what is refused, with which reason, and what becomes of what is given."""

from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from packtrain.pipeline.configfile import load_as
from packtrain.schemas.errors import ConfigError
from packtrain.training.trainer.train_config import TrainConfig, training_arguments
from packtrain.training.trainer.trainer import fill_in

from tests.training.trainer.tiny_models import make


def arguments(folder: Path, **changes: Any) -> Any:
    return transformers.TrainingArguments(str(folder), use_cpu=True, report_to=[], **changes)


def test_what_packtrain_decides_is_filled_in(tmp_path: Path) -> None:
    keys = {"learning_rate": yaml.safe_load("1e-4"), "warmup_steps": 0.1, "gradient_checkpointing": True}
    assert keys["learning_rate"] == "1e-4", "YAML takes it for text"
    given = {"out": "out", "model": "model", "data": "packed", "rows_per_step": 24, "rows_per_device": 3, "seed": 5}
    found = training_arguments(load_as(TrainConfig, {**given, "trainer": keys})[0], tmp_path, 2)
    assert found.output_dir == str(tmp_path / "out")
    assert (found.gradient_accumulation_steps, found.per_device_train_batch_size, found.seed) == (4, 3, 5)
    assert (found.learning_rate, found.warmup_steps, found.logging_nan_inf_filter) == (1e-4, 0.1, False)
    assert found.gradient_checkpointing


def wrong(args: Any, model: Any = None, **settings: Any) -> list[str]:
    """What is refused of these settings: the keys that the messages begin with."""
    try:
        fill_in(args, model or make("Llama"), **{"parts": 2, "rows_per_device": 4, "steps": 9, **settings})
    except ConfigError as error:
        return [message.partition(": ")[0].partition("=")[0] for message in str(error).splitlines()]
    return []


def test_arguments_of_one_s_own_are_filled_in_or_refused(tmp_path: Path) -> None:
    made = arguments(tmp_path)
    assert wrong(made, make("Mixtral")) == []
    assert (made.gradient_accumulation_steps, made.per_device_train_batch_size, made.max_steps) == (2, 4, 9)
    assert (made.ddp_find_unused_parameters, made.remove_unused_columns) == (True, False)
    several = arguments(tmp_path, gradient_accumulation_steps=3, neftune_noise_alpha=5.0, max_steps=10)
    assert wrong(several) == ["args.neftune_noise_alpha", "args.gradient_accumulation_steps", "max_steps"]


def test_combinations_that_would_train_wrongly_are_refused_and_no_others(tmp_path: Path) -> None:
    def plain(**changes: Any) -> Any:
        return arguments(tmp_path, **changes)

    graphs: dict[str, Any] = {"torch_compile": True, "torch_compile_mode": "reduce-overhead"}
    assert (
        wrong(plain(**graphs), liger=True) == wrong(plain(gradient_checkpointing=True, bf16=True), offloads=True) == []
    )
    assert wrong(plain(), liger=True, offloads=True) == ["loss_kernel"]
    assert wrong(plain(**graphs), offloads=True) == ["trainer.torch_compile_mode with offload_activations"]
    assert wrong(plain(), make("Llama", dtype=torch.bfloat16)) == []
    assert wrong(plain(), make("Llama", dtype=torch.float16)) == ["model.dtype"]
    assert wrong(plain(), make("Llama", dtype=torch.float16).requires_grad_(False)) == []
