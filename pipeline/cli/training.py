"""Training on packed rows: `train`, `explain-loss`, `probe` and `doctor`."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...schemas.errors import AttentionError, ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import plural
from .options import Config, TrainSet
from .output import print_line, show

if TYPE_CHECKING:
    from ...training.attention import Applied
    from ...training.probe import ProbeReport
    from ...training.trainer.evaluate import StepLoss
    from ...training.trainer.train_config import TrainConfig
    from ..report.grid import Lines

    Probed = tuple[ProbeReport, Applied, str] | AttentionError
    """What a probe found, how attention was done, and of what model; or why the model cannot be trained packed."""


_DOCUMENTS = 20
"""Documents of a step that are shown, those with the largest losses."""


def train(
    config: Config = None,
    settings: TrainSet = None,
    demo: bool = False,
    recipe: Literal["ddp", "fsdp2", "zero3", "slurm"] | None = None,
) -> None:
    """Train a model on packed shards. Document isolation is checked first; use torchrun for many devices.

    Args:
        demo: train a tiny random model on the output of packtrain run --demo.
        recipe: print a configuration for accelerate (ddp, fsdp2, zero3) or a script for Slurm that starts a training,
            and stop.
    """
    if recipe is not None:
        from ...training.launch import recipe as text_of

        print_line(text_of(recipe).removesuffix("\n"))
        return
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f"packtrain train needs torch, which cannot be imported ({error}). Install the build that fits this "
            "machine, then pip install 'packtrain[train]'"
        ) from error
    from ...training.trainer.train import train as start

    if demo:
        # Several threads gain nothing on so tiny a model, and wait for each other on a busy machine.
        torch.set_num_threads(1)
    loaded, base = load_training(config, demo, settings or [])
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
    if not (base / loaded.data / "manifest.json").is_file():
        raise ConfigError(f"there is no dataset in {loaded.data}; packtrain run --demo makes it")
    return loaded, base


def _embedded() -> dict[str, Any]:
    import yaml

    from .. import demo

    data: dict[str, Any] = yaml.safe_load((Path(demo.__file__).parent / "train.yaml").read_text(encoding="utf-8"))
    return data


def explain_loss(
    step: Annotated[int, typer.Option(min=1)],
    config: Config = None,
    settings: TrainSet = None,
    demo: bool = False,
) -> None:
    """Show the documents of a training step by their losses, computed from the last checkpoint before it.

    Args:
        step: which step, from 1.
        demo: the training of packtrain train --demo.
    """
    try:
        from ...training.trainer.evaluate import explain_step
    except ModuleNotFoundError as error:
        raise ConfigError(f"explain-loss needs {error.name}; pip install 'packtrain[train]'") from None
    loaded, base = load_training(config, demo, settings or [])

    show(lambda _: explain_step(loaded, base, step), _step_lines)


def _step_lines(step: "StepLoss") -> "Lines":
    from ..report.grid import Grid

    weights = step.checkpoint or "the weights that training starts from"
    pieces = f"{plural(len(step.documents), 'document')} with {plural(step.tokens, 'trained token')}"
    yield f"step {step.step:,} by {weights}: loss {step.loss:.4f}; {pieces}"
    rows = [
        (one.source, one.id, f"{one.loss:.4f}", f"{one.trained:,}", f"{one.share:.1%}", f"{one.row}")
        for one in step.documents[:_DOCUMENTS]
    ]
    yield Grid("", ("source", "id", "loss", "tokens", "share", "row"), rows, 2)
    if step.documents:
        first = shlex.join(["packtrain", "inspect", step.data, "--id", step.documents[0].id])
        yield f"the first: {escape_line(first)}"


def probe(
    model: Path,
    attention: Literal["auto", "packed_varlen", "flash_attention_2", "sdpa", "eager"] = "auto",
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
) -> None:
    """Find out whether a model keeps packed documents apart. Exit code 0 if and only if it does.

    Args:
        model (MODEL): a model's folder; or its config.json, for a tiny model of the same architecture.
        attention: which attention.
        dtype: in which precision; by default bfloat16 on CUDA, else float32.
    """
    try:
        from ...training.probe import probe_model
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the probe needs {error.name}, which is not installed; pip install 'packtrain[train]'"
        ) from None

    def look(_: object) -> "Probed":
        try:
            return probe_model(model, attention=attention, dtype=dtype)
        except AttentionError as error:  # the model cannot be trained packed: a result, not a failure of the command
            return error

    found = show(look, _probe_lines)
    if isinstance(found, AttentionError) or not found[0].isolated:
        raise typer.Exit(1)


def _probe_lines(found: "Probed") -> "Lines":
    """The table of checks, then the verdict and what to do."""
    from ..report.grid import Grid

    if isinstance(found, AttentionError):
        yield f"NOT isolated: {found}"
        return
    report, applied, made = found
    yield f"{report.model}, {made}"
    yield f"attention {applied.name}: {applied.kernel}; {applied.reason}", "dim"
    yield ""
    rows = [(one.name, "ok" if one.passed else "FAILED", one.value, one.threshold, one.detail) for one in report.checks]
    yield Grid("", ("check", "", "found", "should be", " "), rows, 5)
    yield ""
    yield (
        "isolated" if report.isolated else f"NOT isolated. Fix: {report.hint or 'what the check says, or give weights'}"
    )


def doctor() -> None:
    """Check what is installed for training, what is wrong with it, and how to fix it."""
    from ...training.launch.doctor import report

    if not report(print_line):
        raise typer.Exit(1)
