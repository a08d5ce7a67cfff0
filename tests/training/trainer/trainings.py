"""Trainings in this process, and what they logged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from packtrain.training.model import load_model
from packtrain.training.trainer.train import Outcome, train
from packtrain.training.trainer.train_config import ModelConfig

Settings = Callable[..., dict[str, Any]]
SGD = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0, "weight_decay": 0.0}
"""Gradient descent, in which a wrong gradient shows as it is."""


def quietly(config: dict[str, Any]) -> Outcome:
    """Train, and print nothing."""
    return train(config, say=lambda text: None)


def losses(outcome: Outcome) -> list[float]:
    """The loss of every step that was logged."""
    return [entry["loss"] for entry in outcome.log if "loss" in entry]


def initial(config: dict[str, Any]) -> Any:
    """The model of a configuration, as its training begins."""
    return load_model(ModelConfig.model_validate(config["model"]), Path.cwd(), config["seed"])
