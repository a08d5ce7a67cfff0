"""`packtrain train`: load the configuration and start the training."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError
from .arguments.options import Config, TrainSet
from .views.streams import print_json, print_line

if TYPE_CHECKING:
    from ...training.trainer.config import TrainConfig


def train(
    config: Config = None,
    settings: TrainSet = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Train a tiny random model on the output of packtrain run --demo.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The folder to write; overrides the configuration.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check configuration, data and model, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print the whole configuration.")] = False,
) -> None:
    """Train a model on packed shards. Document isolation is checked first; use torchrun for many devices."""
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f"packtrain train needs torch, which cannot be imported ({error}). Install the build that fits this "
            "machine, then pip install 'packtrain[train]'"
        ) from error
    if as_json and not dry_run:
        raise ConfigError("--json works with --dry-run only; add --dry-run")
    from ...training.trainer.run import check
    from ...training.trainer.run import train as start
    from ..report.printing import say
    from .views.console import make_console

    overrides = [*(settings or []), *([f"out={json.dumps(str(out.absolute()))}"] if out is not None else [])]
    if demo:
        # Several threads gain nothing on so tiny a model, and wait for each other on a busy machine.
        torch.set_num_threads(1)
    loaded, base = load_training(config, demo, overrides)
    if dry_run:
        check(loaded, base)
    if as_json:
        print_json({"out": str(base / loaded.out), "config": loaded.model_dump(mode="json")})
        return
    if dry_run:
        say(
            make_console(),
            f"the configuration, its data and its model are valid; training would write to {base / loaded.out}",
        )
        return
    start(loaded, base, say=partial(print_line, flush=True))


def load_training(config: Path | None, demo: bool, overrides: list[str]) -> "tuple[TrainConfig, Path]":
    """The configuration of a training, and the folder where its relative paths start.

    Raises:
        ConfigError: there is none, or it is invalid.
    """
    from ...training.trainer.config import TrainConfig
    from ..configfile import load_as

    if config is not None:
        if demo:
            raise ConfigError("--demo brings its own configuration; leave the file out")
        return load_as(TrainConfig, config, None, overrides)
    if not demo:
        raise ConfigError("give a configuration file, or --demo after packtrain run --demo")
    loaded, base = load_as(TrainConfig, _embedded(), Path.cwd(), overrides)
    if not (base / loaded.data[0].path / "manifest.json").is_file():
        raise ConfigError(f"there is no dataset in {loaded.data[0].path}; packtrain run --demo makes it")
    return loaded, base


def _embedded() -> dict[str, Any]:
    import yaml

    from .. import demo

    data: dict[str, Any] = yaml.safe_load((Path(demo.__file__).parent / "train.yaml").read_text(encoding="utf-8"))
    return data
