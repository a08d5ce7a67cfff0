"""The configuration of a training: what is refused, with which reason, and what becomes of what is given."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from packtrain.schemas.errors import ConfigError
from packtrain.training.trainer.train_config import training_arguments, validated

GIVEN = {"out": "out", "model": "model", "data": "packed", "rows_per_step": 24, "rows_per_device": 3, "seed": 5}


def test_what_packtrain_decides_is_filled_in(tmp_path: Path) -> None:
    keys = {"learning_rate": yaml.safe_load("1e-4"), "warmup_steps": 0.1, "gradient_checkpointing": True}
    assert keys["learning_rate"] == "1e-4", "YAML takes it for text"
    found = training_arguments(validated({**GIVEN, "trainer": keys}), tmp_path, 2)
    assert found.output_dir == str(tmp_path / "out")
    assert (found.gradient_accumulation_steps, found.per_device_train_batch_size, found.seed) == (4, 3, 5)
    assert (found.learning_rate, found.warmup_steps, found.logging_nan_inf_filter) == (1e-4, 0.1, False)
    assert found.gradient_checkpointing


GRAPHS = {"torch_compile": True, "torch_compile_mode": "reduce-overhead"}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"trainer": GRAPHS, "loss_kernel": "liger"}, None),
        ({"trainer": {"gradient_checkpointing": True, "bf16": True}, "offload_activations": True}, None),
        ({"loss_kernel": "liger", "offload_activations": True}, "loss_kernel: liger.* writes"),
        ({"trainer": GRAPHS, "offload_activations": True}, "trainer.torch_compile_mode.* overwrite"),
    ],
)
def test_combinations_that_would_train_wrongly_are_refused_and_no_others(keys: dict[str, Any], says: str) -> None:
    if says is None:
        assert validated({**GIVEN, **keys}).rows_per_step == 24
        return
    with pytest.raises(ConfigError, match=says):
        validated({**GIVEN, **keys})
