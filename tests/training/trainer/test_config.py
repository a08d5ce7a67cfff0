"""The configuration of a training: what is refused, with which reason, and what becomes of what is given."""

from pathlib import Path

import yaml
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
