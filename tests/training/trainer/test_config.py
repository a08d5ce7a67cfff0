"""The configuration of a training: what is refused, with which reason, and what becomes of what is given."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from packtrain.pipeline.configfile import load_as
from packtrain.schemas.errors import ConfigError
from packtrain.training.trainer.train_config import TrainConfig, training_arguments
from packtrain.training.trainer.trainer import fill_in, refuse_conflicts

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


def test_arguments_of_one_s_own_are_filled_in_or_refused(tmp_path: Path) -> None:
    made = arguments(tmp_path)
    fill_in(made, make("Mixtral"), parts=2, rows_per_device=4, steps=9)
    assert (made.gradient_accumulation_steps, made.per_device_train_batch_size, made.max_steps) == (2, 4, 9)
    assert (made.ddp_find_unused_parameters, made.remove_unused_columns) == (True, False)
    for key, value, message in (
        ("gradient_accumulation_steps", 3, "=3, but rows_per_step makes it 2: leave it out"),
        ("neftune_noise_alpha", 5.0, "its noise is scaled by the length of a row"),
    ):
        with pytest.raises(ConfigError, match=f"args.{key}.*{message}"):
            fill_in(arguments(tmp_path, **{key: value}), make("Llama"), parts=2, rows_per_device=4, steps=9)


def found(model: Any, args: Any, **changes: Any) -> list[str]:
    """What is refused of these settings: the keys that the messages begin with."""
    settings: dict[str, Any] = {"liger": False, "offloads": False, **changes}
    try:
        refuse_conflicts(model, args, **settings)
    except ConfigError as error:
        messages = str(error).splitlines()
        assert all(". " in message for message in messages), "what to do"
        return [message.partition(": ")[0] for message in messages]
    return []


def test_combinations_that_would_train_wrongly_are_refused_and_no_others(tmp_path: Path) -> None:
    model, plain = make("Llama"), arguments(tmp_path)
    graphs = arguments(tmp_path, torch_compile=True, torch_compile_mode="reduce-overhead")
    checkpointed = arguments(tmp_path, gradient_checkpointing=True, bf16=True)
    for args in (plain, graphs, checkpointed):
        assert found(model, args) == found(model, args, liger=True) == []
    assert found(model, plain, offloads=True) == found(model, checkpointed, offloads=True) == []
    assert found(model, plain, liger=True, offloads=True) == ["loss_kernel"]
    assert found(model, graphs, offloads=True) == ["trainer.torch_compile_mode with offload_activations"]
    assert found(make("Llama", dtype=torch.bfloat16), plain) == []
    assert found(make("Llama", dtype=torch.float16), plain) == ["model.dtype"]
    assert found(make("Llama", dtype=torch.float16).requires_grad_(False), plain) == []
