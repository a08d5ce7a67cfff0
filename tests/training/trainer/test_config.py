"""The configuration of a training: what is refused, with which reason, and what becomes of what is given."""

from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("transformers")

from packtrain.pipeline import demo
from packtrain.pipeline.configfile import load_as
from packtrain.schemas.errors import ConfigError
from packtrain.training.trainer.config import TrainConfig, training_arguments
from packtrain.training.trainer.run import read_config

LEAST: dict[str, Any] = {"out": "out", "model": "model", "data": "packed", "rows_per_step": 8}


def config(**keys: Any) -> TrainConfig:
    return load_as(TrainConfig, {**LEAST, **keys})[0]


def test_short_forms_stand_for_long_ones() -> None:
    short = config(export="finished")
    assert (short.model.path, short.data[0].path, short.data[0].split) == ("model", "packed", "train")
    assert short.export == "finished"
    assert config(export=False).export is False
    mixed = config(data=["one", {"path": "two", "weight": 0.3}])
    assert [(source.path, source.weight) for source in mixed.data] == [("one", None), ("two", 0.3)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rows_per_stpe": 3}, "rows_per_stpe: there is no such key; did you mean rows_per_step"),
        ({"rows_per_step": 5, "rows_per_device": 8}, "must be a multiple of rows_per_device .8.; take 8$"),
        ({"rows_per_step": 7, "rows_per_device": 2}, "must be a multiple of rows_per_device .2.; take 6 or 8"),
        ({"model": {"random": True}}, "model: give either path .* or config"),
        ({"model": {"config": {"hidden_size": 3}}}, "needs a model_type"),
        ({"loss_kernel": "fast"}, "loss_kernel: input should be 'auto'"),
        ({"data": ["one", "two"], "eval": {}}, "eval.data is needed where the training data is a mixture"),
        ({"trainer": {"per_device_train_batch_size": 4}}, "per_device_train_batch_size cannot be set.*rows_per_device"),
        ({"trainer": {"dataloader_num_workers": 4}}, "dataloader_num_workers cannot be set: .* use loader"),
        ({"trainer": {"num_train_epochs": 4, "output_dir": "x"}}, "use epochs; trainer.output_dir .*: use out"),
        ({"trainer": {"save_strategy": "epoch"}}, "use steps, with save_steps"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_can(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**keys)
    with pytest.raises(ConfigError):
        read_config({**LEAST, **keys})


def test_the_shipped_configuration_loads() -> None:
    data = yaml.safe_load((Path(demo.__file__).parent / "train.yaml").read_text(encoding="utf-8"))
    shipped = config(**data)
    assert shipped.epochs > 1
    assert training_arguments(shipped, Path("/nowhere"), 1).lr_scheduler_type == "cosine"
