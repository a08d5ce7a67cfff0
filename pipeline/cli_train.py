"""The commands of the training module: train, probe, doctor, launch."""

from pathlib import Path
from typing import Annotated

import typer

from ..schemas.errors import ConfigError
from . import completion
from .cli_options import Config, Json, TrainSet, print_json, seconds_option
from .cli_streams import print_line


def doctor(
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Under torchrun or accelerate launch: do all ranks reach each other?")
    ] = False,
    timeout: Annotated[float, seconds_option("With --ranks: the time that a rank may take.", default="1min")] = 60.0,
    as_json: Json = False,
) -> None:
    """Say what there is to train with, what is wrong with it, and how to mend it."""
    from ..training.launch.doctor import report, report_ranks

    if ranks:
        report_ranks(timeout=timeout, as_json=as_json, say=print_line)
        return
    from .console import make_console

    # Printed as it is: a table of rich's would have no room for what to do.
    if not report(as_json=as_json, width=make_console().width, say=print_line):
        raise typer.Exit(1)


def launch(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="ddp, fsdp2, zero3, slurm-node or slurm-nodes.", autocompletion=completion.launch
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file to write.")] = None,
    as_json: Json = False,
) -> None:
    """Print a configuration for accelerate or a script for Slurm, to keep and change; without a name, list them."""
    from ..training.launch.recipes import RECIPES, listing, recipe, write

    if output is not None and name is None:
        raise ConfigError(f"--output {output}: say which recipe to write; packtrain launch lists them")
    if output is not None and name is not None:
        write(name, output)
    if as_json:
        known = RECIPES if name is None else {name: RECIPES[name]} if recipe(name) else {}
        print_json([{"name": key, "says": one.says, "text": recipe(key)} for key, one in known.items()])
    elif name is None:
        print_line("\n".join(listing()))
    elif output is None:
        print_line(recipe(name).removesuffix("\n"))


def train(
    config: Config = None,
    settings: TrainSet = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Train a tiny random model on what packtrain run --demo made.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The folder to write; overrules the configuration.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check configuration, data and model, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print the whole configuration.")] = False,
) -> None:
    """Train a model on packed shards, isolation proved first. Under torchrun or accelerate, on many devices."""
    from .train_command import start

    start(config, list(settings or []), demo=demo, out=out, dry_run=dry_run, as_json=as_json)


def probe(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder: its config.json is enough.")],
    attention: Annotated[
        str,
        typer.Option(
            help="auto, packed_varlen, packed_block_mask, sdpa or eager.", autocompletion=completion.attention
        ),
    ] = "auto",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16 or float16.",
            show_default="bfloat16 on CUDA, else float32",
            autocompletion=completion.dtype,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu or cuda.", show_default="CUDA if there is any", autocompletion=completion.device),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Weights at random, even if there are some.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="A tiny model of the same architecture.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="A packed dataset: probe with documents as long as its longest, too.", metavar="PACKED"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find out whether a model keeps packed documents apart. Exit code 0 if and only if it does."""
    from .probe_view import show_probe

    if not show_probe(model, attention, dtype, device, random=random, tiny=tiny, data=data, as_json=as_json):
        raise typer.Exit(1)
