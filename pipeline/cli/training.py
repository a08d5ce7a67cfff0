"""Training on packed rows: `loader`, `train`, `explain-loss`, `probe` and `doctor`."""

import shlex
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...schemas.errors import AttentionError, ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import duration, large, plural
from .options import Config, Count, Folder, TrainSet
from .output import print_line, print_lines, training_extra

if TYPE_CHECKING:
    from ...training.attention.packed_attention import Applied
    from ...training.attention.probe_report import ProbeReport
    from ...training.loader import PackedLoader
    from ...training.trainer.explain import StepLoss
    from ...training.trainer.train_config import TrainConfig
    from ..report.grid import Lines

_MAX_SHOWN_DOCUMENTS = 20
"""Documents of a step that are shown, those with the largest losses."""
_STEP_HEAD = ("step", "rows", "documents", "tokens", "trained", "fill", "longest", "ranks max/mean", "came in")
_PAIR_STEP_HEAD = ("step", "rows", "pairs", "tokens", "trained", "fill", "longest side", "ranks max/mean", "came in")
"""The same, of preference pairs."""


def loader(folder: Folder, steps: Count = 5, rows_per_step: Count = 8, seed: int = 0, rank: str | None = None) -> None:
    """Show what a trainer would get: batches, their fill and balance, and how fast they come.

    Args:
        steps: how many batches to take.
        rows_per_step: rows per step, over all ranks.
        seed (N): of the order.
        rank (I/N): rank I, from 0, of N; by default from the environment.
    """
    with training_extra():
        from ...training.attention.packed_attention import Applied
        from ...training.attention.varlen import NAME
        from ...training.loader import PackedLoader
    # None for both: the loader takes them from the environment, as in a training that torchrun started.
    rank_number: int | None = None
    rank_count: int | None = None
    if rank is not None:
        number_text, _, count_text = rank.partition("/")
        if not (number_text.isdecimal() and count_text.isdecimal()):
            raise ConfigError(f"--rank {rank[:80]}: give a rank and how many there are, such as 0/8")
        rank_number = int(number_text)
        rank_count = int(count_text)
    # Rows whose documents share tokens are given only to a training with packed_varlen, which is `NAME`. Here is no
    # model, so this stands for its attention.
    no_model = Applied(name=NAME, kernel="none", reason="batches are counted, and no model takes them")
    packed_loader = PackedLoader(
        folder, rows_per_step=rows_per_step, seed=seed, rank=rank_number, world_size=rank_count, attention=no_model
    )
    print_lines(_step_lines(packed_loader, steps))


def _step_lines(packed_loader: "PackedLoader", steps: int) -> "Lines":
    """Take some steps of a loader, and say what came, and how fast."""
    from ...schemas.tables.columns import SIDES
    from ..report.grid import Grid

    # Before any step is taken, because the length of a loader is the number of steps that are left.
    epoch = f"{plural(len(packed_loader), 'step')} of {plural(packed_loader.rows_per_step, 'row')}"
    rows: list[list[str]] = []
    waits: list[float] = []  # seconds until each batch came
    tokens = 0
    head = _STEP_HEAD
    batches = iter(packed_loader)
    for number in range(min(steps, len(packed_loader))):
        asked_at = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - asked_at)
        tokens += batch["input_ids"].numel()
        rows.append([*_step_cells(packed_loader, number, batch), duration(waits[-1])])
        if SIDES in batch:
            head = _PAIR_STEP_HEAD
    place = packed_loader.place
    yield f"{epoch}, order {packed_loader.state_dict()['order']}"
    yield f"rank {place.rank} of {place.world_size} ({place.origin})", "dim"
    yield ""
    yield Grid("What this rank gets", head, rows, text_columns=0)
    yield ""
    yield (
        f"first batch after {duration(waits[0])}, {large(tokens / sum(waits))} tokens/s over "
        f"{plural(len(rows), 'step')}"
    )


def _step_cells(loader: "PackedLoader", number: int, batch: dict[str, Any]) -> list[str]:
    """What this rank gets in a step: the cells under `_STEP_HEAD`, without the last one, the time.

    Args:
        number: of the step, from 0.
        batch: what the loader gave for it.
    """
    from ...schemas.layout import fill_of
    from ...schemas.rows import IGNORE_INDEX
    from ...schemas.tables.columns import CHOSEN_SIDE, SIDES
    from ...training.branches import piece_bounds

    # A step is found by the place of its first row in the order: of steps of 8 rows, step 2 is at 16.
    step = loader.steps.at(number * loader.rows_per_step)
    rows = step.rows[step.shares[loader.place.rank]]  # numbers of this rank's rows in the split
    lengths = piece_bounds(batch).diff()  # tokens of each piece of the batch
    # Of a preference pair both sides are pieces of the batch, and one of them is chosen.
    documents = int((batch[SIDES] == CHOSEN_SIDE).sum()) if SIDES in batch else len(lengths)
    tokens = batch["input_ids"].numel()
    trained = int((batch["labels"] != IGNORE_INDEX).sum())
    # Without the padding of `pack.align` and `pack.parallel`, which the lengths of the batch include.
    document_tokens = sum(int(loader.corpus.row(row).own_lengths.sum()) for row in rows.tolist())
    fill = fill_of(document_tokens, len(rows), loader.corpus.row_length)
    # FLOPs of each rank: `shares` has a list of indices into `step.rows` for each rank, all of one length, so that
    # indexing gives (ranks, rows of a rank) costs.
    flops = loader.corpus.costs(step.rows)[step.shares].sum(axis=1)
    # All ranks wait for the busiest: 1.1 means that a step takes a tenth longer than need be.
    imbalance = float(flops.max() / flops.mean()) if flops.any() else 1.0
    return [
        f"{number:,}",
        f"{len(rows):,}",
        f"{documents:,}",
        f"{tokens:,}",
        f"{trained / max(tokens, 1):.1%}",
        f"{fill:.2%}",
        f"{int(lengths.max()):,}",
        f"{imbalance:.3f}",
    ]


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
    with training_extra():
        import torch

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
        return load_as(TrainConfig, config, base=None, overrides=overrides)  # None: paths start in the file's folder
    if not demo:
        raise ConfigError("give a configuration file, or --demo after packtrain run --demo")
    from .. import demo as home  # for its folder, which has the configuration

    # The file lies in the package, but its paths are those of `packtrain run --demo`, below the working directory.
    file = Path(home.__file__).parent / "train.yaml"
    loaded, base = load_as(TrainConfig, file, base=Path.cwd(), overrides=overrides)
    if not (base / loaded.data / "manifest.json").is_file():
        raise ConfigError(f"there is no dataset in {loaded.data}; packtrain run --demo makes it")
    return loaded, base


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
    with training_extra():
        from ...training.trainer.explain import explain_step
    loaded, base = load_training(config, demo, settings or [])
    print_lines(_loss_lines(explain_step(loaded, base, step)))


def _loss_lines(step: "StepLoss") -> "Lines":
    """The loss of a step, and the documents that make most of it."""
    from ..report.grid import Grid

    weights = step.checkpoint or "the weights that training starts from"
    contents = f"{plural(len(step.documents), 'document')} with {plural(step.tokens, 'trained token')}"
    yield f"step {step.step:,} by {weights}: loss {step.loss:.4f}; {contents}"
    head = ("source", "id", "loss", "tokens", "share", "row")
    rows = []
    for document in step.documents[:_MAX_SHOWN_DOCUMENTS]:  # the largest loss comes first
        loss = f"{document.loss:.4f}"
        share = f"{document.share:.1%}"  # of the step's loss
        rows.append((document.source, document.id, loss, f"{document.trained:,}", share, f"{document.row}"))
    yield Grid("", head, rows, text_columns=2)
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
    with training_extra():
        from ...training.attention.isolation_probe import probe_model

    try:
        report, applied, how_made = probe_model(model, attention=attention, dtype=dtype)
    except AttentionError as error:  # the model cannot be trained packed: a result, not a failure of the command
        print_line(f"NOT isolated: {error}")
        raise typer.Exit(1) from None
    print_lines(_probe_lines(report, applied, how_made))
    if not report.isolated:
        raise typer.Exit(1)


def _probe_lines(report: "ProbeReport", applied: "Applied", how_made: str) -> "Lines":
    """The table of checks, then the verdict and what to do.

    Args:
        applied: how attention is done.
        how_made: says whether the model has its own weights, or random ones, for the first line.
    """
    from ..report.grid import Grid

    yield f"{report.model}, {how_made}"
    yield f"attention {applied.name}: {applied.kernel}; {applied.reason}", "dim"
    yield ""
    rows = [
        (check.name, "ok" if check.passed else "FAILED", check.value, check.threshold, check.detail)
        for check in report.checks
    ]
    yield Grid("", ("check", "", "found", "should be", " "), rows, text_columns=5)
    yield ""
    if report.isolated:
        yield "isolated"
    else:
        yield f"NOT isolated. Fix: {report.hint or 'what the check says, or give weights'}"


def doctor() -> None:
    """Check what is installed for training, what is wrong with it, and how to fix it."""
    from ...training.launch.doctor import report

    # `report` prints a line for each finding, and returns whether nothing is broken.
    if not report(print_line):
        raise typer.Exit(1)
