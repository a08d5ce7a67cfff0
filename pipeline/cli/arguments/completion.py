"""Shell completion of what typer does not complete by itself: keys of `--set`, recipes, and paths given as texts."""

from collections.abc import Iterator
from typing import Any, get_args


def path(incomplete: str) -> list[str]:
    """Nothing, so that the shell completes files and folders itself."""
    return []


def device(incomplete: str) -> list[str]:
    """Types of devices."""
    return [one for one in ("cpu", "cuda") if one.startswith(incomplete)]


def launch(incomplete: str) -> list[str]:
    """The recipes of `packtrain launch`."""
    from ....training.launch.recipes import RECIPES

    return [one for one in RECIPES if one.startswith(incomplete)]


def setting(incomplete: str) -> list[str]:
    """`KEY=` of a run's configuration."""
    from ....schemas.config.config import RunConfig

    return [f"{key}=" for key in _keys(RunConfig) if key.startswith(incomplete)]


def train_setting(incomplete: str) -> list[str]:
    """`KEY=` of a training's configuration."""
    from ....training.trainer.config import TrainConfig

    return [f"{key}=" for key in _keys(TrainConfig) if key.startswith(incomplete)]


def _keys(model: Any, before: str = "") -> Iterator[str]:
    """The keys of a pydantic model and of its sections; in a list of sections, those of the first."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        section = next((one for one in kinds if hasattr(one, "model_fields")), None)
        if section is None:
            yield f"{before}{name}"
        else:
            in_list = section is not field.annotation and type(None) not in kinds
            yield from _keys(section, f"{before}{name}.{'0.' if in_list else ''}")
