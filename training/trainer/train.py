"""A whole training from its configuration: data, model, trainer, the finished model. What `packtrain train` calls."""

from collections.abc import Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.errors import ConfigError, IntegrityError, PacktrainError
from ...schemas.units import plural
from ..rank_info import detect_rank
from . import Say, print_line
from .train_config import TrainConfig, validated

if TYPE_CHECKING:
    from .trainer import PackedTrainer


def train(config: TrainConfig | Mapping[str, Any], base: Path | None = None, say: Say = print_line) -> "PackedTrainer":
    """Train as a configuration says, or resume the training in the same folder. Every rank calls it.

    Args:
        config: validated, or plain data.
        base: where relative paths start; by default the working directory.
        say: prints a line, on the first rank only.

    Returns:
        The trainer, whose `state` has the number of steps and the log.

    Raises:
        BusyError: another training works on `out`.
        ConfigError, InputError: a mistake in the configuration or the data; says which key, and how to fix it.
        IntegrityError: a checkpoint is damaged.
        LeakError: documents of a row see each other.
    """
    from ..launch.ranks import end_with_launcher, rank_check

    end_with_launcher()  # workers of a launcher that was killed would go on training
    config = validated(config)
    base = base or Path.cwd()
    if find_spec("accelerate") is None:
        raise ConfigError("training needs accelerate; pip install 'packtrain[train]'")
    # Before transformers joins the process group: that would wait ten minutes, and not say which rank is missing.
    rank_check()
    from .checkpoint import locked

    # One rank holds the lock for all: the others could not take it.
    with locked(base / config.out) if detect_rank().rank == 0 else nullcontext():
        return _run(config, base, say)


def _run(config: TrainConfig, base: Path, say: Say) -> "PackedTrainer":
    """Train, and export the finished model. `train` has checked that all ranks are there, and holds the folder's lock.

    Raises:
        ConfigError: settings that do not go together, or memory ran out; says what to change.
        IntegrityError: the checkpoint that training would go on from cannot be loaded.
    """
    from transformers.utils.logging import disable_progress_bar

    from ..models.model import is_out_of_memory, message_of
    from .checkpoint import last_whole
    from .trainer import PackedTrainer

    disable_progress_bar()  # of saving and loading, between the lines of the training
    out = base / config.out
    export = out / "model" if config.export else None
    resume = last_whole(out)
    start = base / (config.model.path or "")
    if export is not None and start.resolve() == export.resolve():
        raise ConfigError(
            f"export: the finished model would overwrite the one that training starts from, {export}; name another out"
        )
    trainer = PackedTrainer(config, base, say=say)
    _announce(trainer, resume)
    try:
        trainer.train(resume_from_checkpoint=resume)
    except PacktrainError:
        raise
    except Exception as error:
        # transformers loads the checkpoint before the first batch, so an error until then is likely the checkpoint's.
        if resume is not None and not trainer.meter.running:
            raise IntegrityError(
                f"resuming from {resume} failed before its first batch: {message_of(error)}. If it is damaged, delete "
                "it: the one before it is taken then"
            ) from error
        if not is_out_of_memory(error):
            raise
        # Memory goes with the length of rows. Where documents are shorter than rows, `pack.row_length` is that length;
        # elsewhere rows are as long as the longest document may be, and `truncate.max_length` says both.
        has_shorter_documents = trainer.loader.corpus.manifest.max_length < trainer.loader.corpus.row_length
        key = "pack.row_length" if has_shorter_documents else "truncate.max_length"
        setting = "rows_per_device: 1" if config.rows_per_device > 1 else "trainer: {gradient_checkpointing: true}"
        raise ConfigError(
            f"memory ran out in a batch of {plural(config.rows_per_device, 'row')} ({str(error).splitlines()[0]}). Set "
            f"{setting}, loss_kernel: chunked or offload_activations: true, or pack with a smaller {key}"
        ) from error
    if export is not None:
        trainer.export(export)
        trainer.say(f"the finished model is in {export}")
    return trainer


def _announce(trainer: "PackedTrainer", resume: Path | None) -> None:
    """Say what a step consists of, how many there are, and where training starts."""
    say = trainer.say
    loader = trainer.loader
    steps = int(trainer.args.max_steps)
    batches = (
        f"{plural(trainer.accelerator.num_processes, 'rank')} · {plural(loader.accumulate, 'batch', 'batches')} · "
        f"{plural(trainer.args.per_device_train_batch_size, 'row')}"
    )
    rows = f"{steps * loader.rows_per_step:,} of {plural(loader.total_rows, 'row')}"
    say(f"{plural(steps, 'step')} of {plural(loader.rows_per_step, 'packed row')} = {batches}; {rows}")
    say("starting at the beginning" if resume is None else f"resuming from {resume}")
