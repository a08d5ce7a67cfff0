"""Configurations for accelerate and a script for Slurm, to keep and change."""

from importlib.resources import files
from typing import Literal

Recipe = Literal["ddp", "fsdp2", "zero3", "slurm"]


def recipe(name: Recipe) -> str:
    """The text of a recipe."""
    return (files(__package__) / "configs" / f"{name}.{'sh' if name == 'slurm' else 'yaml'}").read_text("utf-8")
