"""`packtrain train`: reads the configuration as all commands do, and hands it to the training module."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ..schemas.errors import ConfigError
from .cli_options import print_json
from .cli_streams import print_line
from .configfile import load_as
from .console import make_console, say


def start(
    config: Path | None, settings: Sequence[str], *, demo: bool, out: Path | None, dry_run: bool, as_json: bool = False
) -> None:
    """Train; or, with `dry_run`, only check the configuration, and that its data and its model are there.

    Args:
        config: a YAML file; None with `demo`, which brings its own.
        settings: `key=value` overrides.
        out: overrules the configuration's.
        as_json: with `dry_run`, print the configuration with all that it leaves to defaults.

    Raises:
        ConfigError: there is no configuration, it is wrong, or torch is not installed.
        ConfigError, InputError, IntegrityError: the data or the model is not there, or not whole.
    """
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f"packtrain train needs torch, which cannot be imported ({error}). Install the build that fits this "
            "machine, then pip install 'packtrain[train]'"
        ) from error
    if as_json and not dry_run:
        raise ConfigError("--json prints what would be trained; give --dry-run as well")
    from ..training.trainer.config import TrainConfig
    from ..training.trainer.run import check, train

    overrides = [*settings, *([f"out={json.dumps(str(out.absolute()))}"] if out is not None else [])]
    if demo:
        # So tiny a model gains nothing by several threads, which wait for each other where other work runs beside them.
        torch.set_num_threads(1)
        if config is not None:
            raise ConfigError("--demo brings its own configuration; leave the file out")
        loaded, base = load_as(TrainConfig, _embedded(), Path.cwd(), overrides)
        if not (base / loaded.data[0].path / "manifest.json").is_file():
            raise ConfigError(f"there is no dataset in {loaded.data[0].path}; packtrain run --demo makes it")
    elif config is not None:
        loaded, base = load_as(TrainConfig, config, None, overrides)
    else:
        raise ConfigError("give a configuration file, or --demo after packtrain run --demo")
    if dry_run:
        check(loaded, base)
    if as_json:
        print_json({"out": str(base / loaded.out), "config": loaded.model_dump(mode="json")})
        return
    if dry_run:
        say(
            make_console(),
            f"the configuration, its data and its model are in order; it would train into {base / loaded.out}",
        )
        return
    train(loaded, base, say=partial(print_line, flush=True))


def _embedded() -> dict[str, Any]:
    from . import demo

    data: dict[str, Any] = yaml.safe_load((Path(demo.__file__).parent / "train.yaml").read_text(encoding="utf-8"))
    return data
