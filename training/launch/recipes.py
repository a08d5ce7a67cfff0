"""Configurations for accelerate and scripts for Slurm, handed out as files that a person keeps and changes."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ...schemas.errors import ConfigError, OutputError
from ...schemas.hints import did_you_mean


@dataclass(frozen=True, slots=True)
class Recipe:
    """One shipped file."""

    file: str
    """Below this package."""
    says: str


RECIPES = {
    "ddp": Recipe("configs/ddp.yaml", "accelerate: every device holds the whole model"),
    "fsdp2": Recipe("configs/fsdp2.yaml", "accelerate: the model is cut among the devices by torch"),
    "zero3": Recipe("configs/zero3.yaml", "accelerate: the same by DeepSpeed"),
    "slurm-node": Recipe("slurm/one_node.sh", "sbatch: one machine, all its GPUs"),
    "slurm-nodes": Recipe("slurm/many_nodes.sh", "sbatch: several machines"),
}


def recipe(name: str) -> str:
    """The text of a recipe.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}{did_you_mean(name, RECIPES)}")
    return (files(__package__) / RECIPES[name].file).read_text(encoding="utf-8")


def write(name: str, target: Path) -> None:
    """Put a recipe into a new file.

    Raises:
        ConfigError: there is no such recipe.
        OutputError: the file is there already, or cannot be written.
    """
    text = recipe(name)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise OutputError(f"{target} is there already; it may hold your changes. Choose another name") from None
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror or error}; name another file") from error


def listing() -> list[str]:
    """A line a recipe."""
    width = max(map(len, RECIPES))
    return [f"{name:<{width}}  {one.says}" for name, one in RECIPES.items()]
