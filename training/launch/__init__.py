"""Starting a training on many devices: the rank check, a report on the environment, and recipes to keep and change."""

from importlib.resources import files
from typing import Literal

Recipe = Literal["ddp", "fsdp2", "zero3", "slurm"]


def recipe(name: Recipe) -> str:
    """The text of a configuration for accelerate, or of a script for Slurm."""
    return (files(__package__) / "configs" / f"{name}.{'sh' if name == 'slurm' else 'yaml'}").read_text("utf-8")
