"""Training on packed rows: `train`, `explain-loss`, `probe` and `doctor`."""

import shlex
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...schemas.errors import AttentionError, ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import plural
from .options import Config, Device, Json, TrainSet, measured
from .streams import print_json, print_line

if TYPE_CHECKING:
    from rich.console import Console

    from ...training.attention import Applied
    from ...training.probe import ProbeReport
    from ...training.trainer.explain_loss import StepLoss
    from ...training.trainer.train_config import TrainConfig


def train(
    config: Config = None,
    settings: TrainSet = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Train a tiny random model on the output of packtrain run --demo.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check configuration, data and model, and stop.")] = False,
    recipe: Annotated[
        Literal["ddp", "fsdp2", "zero3", "slurm-node", "slurm-nodes"] | None,
        typer.Option(
            metavar="NAME",
            help="Print a configuration for accelerate (ddp, fsdp2, zero3) or a script for Slurm (slurm-node, "
            "slurm-nodes) that starts a training, and stop.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print the whole configuration.")] = False,
) -> None:
    """Train a model on packed shards. Document isolation is checked first; use torchrun for many devices."""
    if recipe is not None:
        from ...training.launch.recipes import recipe as text_of

        print_line(text_of(recipe).removesuffix("\n"))
        return
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f"packtrain train needs torch, which cannot be imported ({error}). Install the build that fits this "
            "machine, then pip install 'packtrain[train]'"
        ) from error
    if as_json and not dry_run:
        raise ConfigError("--json works with --dry-run only; add --dry-run")
    from ...training.trainer.train import check
    from ...training.trainer.train import train as start
    from ..report.printing import say
    from .console import make_console

    if demo:
        # Several threads gain nothing on so tiny a model, and wait for each other on a busy machine.
        torch.set_num_threads(1)
    loaded, base = load_training(config, demo, settings or [])
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
    from ...training.trainer.train_config import TrainConfig
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
        from ...training.trainer.explain_loss import explain_step
    except ModuleNotFoundError as error:
        raise ConfigError(f"explain-loss needs {error.name}; pip install 'packtrain[train]'") from None
    from .console import make_console

    loaded, base = load_training(config, demo, settings or [])
    found = explain_step(loaded, base, step)
    if as_json:
        print_json(replace(found, documents=found.documents[:top]))
    else:
        _print_documents(make_console(), found, top)


def _print_documents(console: "Console", step: "StepLoss", top: int) -> None:
    from ..report.printing import Grid, print_grids, say

    weights = step.checkpoint or "the weights that training starts from"
    pieces = f"{plural(len(step.documents), 'document')} with {plural(step.tokens, 'trained token')}"
    say(console, f"step {step.step:,} by {weights}: loss {step.loss:.4f}; {pieces}")
    words = ("source", "id", "dataset") if len({one.dataset for one in step.documents}) > 1 else ("source", "id")
    rows = [
        (
            *(str(getattr(one, word)) for word in words),
            *(f"{one.loss:.4f}", f"{one.trained:,}", f"{one.share:.1%}", f"{one.row}"),
        )
        for one in step.documents[:top]
    ]
    print_grids(console, [Grid("", (*words, "loss", "tokens", "share", "row"), rows, len(words))])
    if step.documents:
        first = shlex.join(["packtrain", "inspect", step.documents[0].dataset, "--id", step.documents[0].id])
        say(console, f"the first: {escape_line(first)}")


def probe(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder: its config.json is enough.")],
    attention: Annotated[
        Literal["auto", "packed_varlen", "flash_attention_2", "sdpa", "eager"], typer.Option(help="Which attention.")
    ] = "auto",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="In which precision.", show_default="bfloat16 on CUDA, else float32"),
    ] = None,
    device: Device = None,
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
    from ..report.printing import Grid, print_grids, say

    say(console, f"{report.model}, {made}")
    say(console, f"attention {applied.name}: {applied.kernel}; {applied.reason}", "dim")
    say(console)
    rows = [(one.name, "ok" if one.passed else "FAILED", one.value, one.threshold, one.detail) for one in report.checks]
    print_grids(console, [Grid("", ("check", "", "found", "should be", " "), rows, 5)])
    say(console)
    say(console, report.verdict)
    if report.hint:
        say(console, f"  fix: {report.hint}")


def doctor(
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Under torchrun or accelerate launch: do all ranks reach each other?")
    ] = False,
    timeout: Annotated[
        float, measured("DURATION", "With --ranks: how long to wait for a rank.", default="1min")
    ] = 60.0,
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
