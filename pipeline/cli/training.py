"""Training on packed rows: `train`, `explain-loss`, `probe`, `doctor` and `launch`."""

import json
import shlex
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...schemas.errors import AttentionError, ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import plural
from .options import Config, Json, TrainSet, seconds_option
from .streams import print_json, print_line

if TYPE_CHECKING:
    from rich.console import Console

    from ...training.attention import Applied
    from ...training.probe import ProbeReport
    from ...training.trainer.config import TrainConfig
    from ...training.trainer.explain import StepLoss


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
    from .console import make_console

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


def explain_loss(
    step: Annotated[int, typer.Option(min=1, help="Which step, from 1.")],
    config: Config = None,
    settings: TrainSet = None,
    demo: Annotated[bool, typer.Option("--demo", help="The training of packtrain train --demo.")] = False,
    top: Annotated[int, typer.Option(min=1, help="How many documents to show.")] = 20,
    as_json: Json = False,
) -> None:
    """Show the documents of a training step by their losses, computed from the last checkpoint before it."""
    try:
        from ...training.trainer.explain import explain_step
    except ModuleNotFoundError as error:
        raise ConfigError(f"explain-loss needs {error.name}; pip install 'packtrain[train]'") from None
    from .console import make_console

    loaded, base = load_training(config, demo, settings or [])
    found = explain_step(loaded, base, step)
    if as_json:
        print_json({**vars_of(found), "documents": found.documents[:top]})
    else:
        _print_documents(make_console(), found, top)


def vars_of(step: "StepLoss") -> dict[str, object]:
    """The figures of a step, without its documents."""
    return {"step": step.step, "checkpoint": step.checkpoint, "loss": step.loss, "tokens": step.tokens}


def _print_documents(console: "Console", step: "StepLoss", top: int) -> None:
    from rich.table import Table
    from rich.text import Text

    from ..report.printing import say

    weights = step.checkpoint or "the weights that training starts from"
    pieces = f"{plural(len(step.documents), 'document')} with {plural(step.tokens, 'trained token')}"
    say(console, f"step {step.step:,} by {weights}: loss {step.loss:.4f}; {pieces}")
    table = Table(show_edge=False, pad_edge=False)
    for name in ("loss", "tokens", "share", "row"):
        table.add_column(name, justify="right")
    for name in ("source", "id", "dataset"):
        table.add_column(name, overflow="fold")
    for one in step.documents[:top]:
        numbers = (f"{one.loss:.4f}", f"{one.trained:,}", f"{one.share:.1%}", f"{one.row}")
        table.add_row(*numbers, *(Text(escape_line(word)) for word in (one.source, one.id, one.dataset)))
    console.print(table)
    if step.documents:
        # One line however narrow the terminal, so that it can be copied.
        first = shlex.join(["packtrain", "inspect", step.documents[0].dataset, "--id", step.documents[0].id])
        console.print(Text(f"the first: {escape_line(first)}"), soft_wrap=True)


def probe(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder: its config.json is enough.")],
    attention: Annotated[
        Literal["auto", "packed_varlen", "flash_attention_2", "sdpa", "eager"], typer.Option(help="Which attention.")
    ] = "auto",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="In which precision.", show_default="bfloat16 on CUDA, else float32"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu or cuda.", show_default="CUDA if available"),
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="Use random weights, even if the folder has weights.")
    ] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Use a tiny model of the same architecture.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="A packed dataset: also probe with documents as long as its longest.", metavar="PACKED"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find out whether a model keeps packed documents apart. Exit code 0 if and only if it does."""
    from ..report.printing import say
    from .console import make_console

    try:
        from ...training.probe_command import probe_model
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the probe needs {error.name}, which is not installed; pip install 'packtrain[train]'"
        ) from None
    console = make_console()
    try:
        report, applied, made = probe_model(
            model, attention=attention, dtype=dtype, device=device, random=random, tiny=tiny, data=data
        )
    except AttentionError as error:  # the model cannot be trained packed: a result, not a failure of the command
        if as_json:
            print_json({"model": str(model), "isolated": False, "reason": str(error)})
        else:
            say(console, f"NOT isolated: {error}")
        raise typer.Exit(1) from None
    if as_json:
        print_json({**asdict(report), "isolated": report.isolated, "applied": asdict(applied), "made": made})
    else:
        _print_report(console, report, applied, made)
    if not report.isolated:
        raise typer.Exit(1)


def _print_report(console: "Console", report: "ProbeReport", applied: "Applied", made: str) -> None:
    """The table of checks, then the verdict and what to do."""
    from rich.table import Table
    from rich.text import Text

    from ..report.printing import say

    say(console, f"{report.model}, {made}")
    say(console, f"attention {applied.name}: {applied.kernel}; {applied.reason}", "dim")
    say(console)
    table = Table(show_edge=False, pad_edge=False)
    for name in ("check", "", "found", "should be", ""):
        table.add_column(name, overflow="fold")
    for one in report.checks:
        mark = Text("ok", "green") if one.passed else Text("FAILED", "bold red")
        table.add_row(one.name, mark, Text(one.value), Text(one.threshold), Text(one.detail, "dim"))
    console.print(table)
    say(console)
    say(console, report.verdict)
    if report.hint:
        say(console, f"  fix: {report.hint}")


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
    from .console import make_console

    # Plain lines: a rich table would have no room for the advice.
    if not report(as_json=as_json, width=make_console().width, say=print_line):
        raise typer.Exit(1)


def launch(
    name: Annotated[
        Literal["ddp", "fsdp2", "zero3", "slurm-node", "slurm-nodes"] | None,
        typer.Argument(metavar="NAME", help="ddp, fsdp2, zero3, slurm-node or slurm-nodes."),
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
