"""`packtrain doctor` and `packtrain launch`: what is installed for training, and how to start on many devices."""

from pathlib import Path
from typing import Annotated

import typer

from ...schemas.errors import ConfigError
from .arguments import completion
from .arguments.options import Json, seconds_option
from .views.streams import print_json, print_line


def doctor(
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Under torchrun or accelerate launch: do all ranks reach each other?")
    ] = False,
    timeout: Annotated[float, seconds_option("With --ranks: how long to wait for a rank.", default="1min")] = 60.0,
    as_json: Json = False,
) -> None:
    """Check what is installed for training, what is wrong with it, and how to fix it."""
    from ...training.launch.doctor import report

    if ranks:
        from ...training.launch.ranks import report_ranks

        report_ranks(timeout=timeout, as_json=as_json, say=print_line)
        return
    from .views.console import make_console

    # Plain lines: a rich table would have no room for the advice.
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
    """Print a configuration for accelerate or a script for Slurm to start from; without a name, list them."""
    from ...training.launch.recipes import RECIPES, recipe, write

    if output is not None and name is None:
        raise ConfigError(f"--output {output}: name the recipe to write; packtrain launch lists them")
    if output is not None and name is not None:
        write(name, output)
    if as_json:
        known = [(key, recipe(key)) for key in (RECIPES if name is None else [name])]
        print_json([{"name": key, "says": RECIPES[key][1], "text": text} for key, text in known])
    elif name is None:
        for key, (_, says) in RECIPES.items():
            print_line(f"{key:<11}  {says}")
    elif output is None:
        print_line(recipe(name).removesuffix("\n"))
