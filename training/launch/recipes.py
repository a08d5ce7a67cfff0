"""Configurations for accelerate and scripts for Slurm, to keep and change."""

from importlib.resources import files

from ...schemas.errors import ConfigError, did_you_mean

RECIPES = {
    "ddp": ("configs/ddp.yaml", "accelerate: every device holds the whole model"),
    "fsdp2": ("configs/fsdp2.yaml", "accelerate: torch cuts the model among the devices"),
    "zero3": ("configs/zero3.yaml", "accelerate: DeepSpeed cuts the model among the devices"),
    "slurm-node": ("slurm/one_node.sh", "sbatch: one machine, all its GPUs"),
    "slurm-nodes": ("slurm/many_nodes.sh", "sbatch: several machines"),
}
"""Name → file within this package, and what it is for."""


def recipe(name: str) -> str:
    """The text of a recipe.

    Raises:
        ConfigError: no recipe has that name.
    """
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}{did_you_mean(name, RECIPES)}")
    return (files(__package__) / RECIPES[name][0]).read_text(encoding="utf-8")
