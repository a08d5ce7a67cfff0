"""A whole training from its configuration: data, model, trainer, export. What `packtrain train` calls."""

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...schemas.errors import ConfigError
from ...schemas.units import plural
from ..packed_rows import Source
from ..place import detect_rank
from . import Say, print_line
from .train_config import TrainConfig, training_arguments

_PLACES = {"cache", "cache_bytes", "storage_options"}
"""Keys of the loader about how files are opened."""
_SAME = ("rows_per_step", "rows_per_device", "epochs", "attention", "probe", "loss_kernel", "offload_activations")
"""Keys that PackedTrainer has under the same name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a training."""

    steps: int
    """Number of optimizer steps, including those before resuming."""
    loss: float | None
    """The last logged training loss; None if resuming found no steps left."""
    metrics: dict[str, float]
    """Metrics of the last evaluation."""
    out: Path
    export: Path | None
    """The finished model's folder."""
    resumed_from: Path | None
    log: list[dict[str, Any]] = field(repr=False)
    """All logs, including those before resuming."""


def train(
    config: TrainConfig | Mapping[str, Any] | str | Path, base: Path | None = None, say: Say = print_line
) -> Outcome:
    """Train as a configuration says, or resume the training in the same folder. Every rank calls it.

    Args:
        config: validated, plain data, or the path of a YAML file.
        base: where relative paths start; by default the file's folder, or the working directory.
        say: prints a line, on the first rank only.

    Raises:
        BusyError: another training works on `out`.
        ConfigError, InputError: a mistake in the configuration or the data; says which key, and how to fix it.
        LeakError: documents of a row see each other.
    """
    from ..launch.ranks import end_with_launcher, rank_check

    end_with_launcher()
    config, base = read_config(config, base)
    _require("transformers", "accelerate")
    place = detect_rank()
    if place.world_size > 1:
        digest = hashlib.blake2b(config.model_dump_json().encode(), digest_size=8)
        rank_check(agree={"configuration": digest.hexdigest()})
    from .checkpoint import locked

    with locked(base / config.out) if place.rank == 0 else nullcontext():
        return _run(config, base, say if place.rank == 0 else lambda text: None, place.world_size)


def check(config: TrainConfig, base: Path) -> None:
    """Refuse what `train` would refuse before it loads anything: missing or unfinished data, a missing model.

    Args:
        base: where relative paths start.

    Raises:
        ConfigError, InputError, IntegrityError: see `train`.
    """
    _require("transformers", "accelerate")
    from ..model import read_model_config
    from ..packed_rows import PackedRows

    _check_places(config, base)
    read_model_config(config.model, base)
    for source in sources_of(config, base):
        PackedRows(source.path, source.split, **_remote(config, base))
    _held_out(config, base)


def read_config(
    config: TrainConfig | Mapping[str, Any] | str | Path, base: Path | None = None
) -> tuple[TrainConfig, Path]:
    """A validated configuration, and the folder where its relative paths start.

    Raises:
        ConfigError: names the key, and what is wrong.
    """
    if isinstance(config, TrainConfig):
        return config, base or Path.cwd()
    where = "the configuration"
    if isinstance(config, str | Path):
        import yaml

        from ...schemas.config.yamltext import MAX_BYTES, parse_yaml

        path, where = Path(config), str(config)
        try:
            with path.open(encoding="utf-8") as file:
                config, _ = parse_yaml(file.read(MAX_BYTES + 1))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"the configuration {path} cannot be read: {error}; give a file of UTF-8 text") from None
        base = base or path.absolute().parent
    try:
        return TrainConfig.model_validate(config), base or Path.cwd()
    except ValidationError as error:
        lines = [f"{where}: {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise ConfigError("\n".join(lines).replace("Value error, ", "")) from None


def sources_of(config: TrainConfig, base: Path) -> list[Source]:
    """The data as the loader takes it."""
    return [replace(one, path=_where(str(one.path), base)) for one in config.data]


def loader_options(config: TrainConfig, base: Path) -> dict[str, Any]:
    """The options of the loader, besides rows, ranks, seed and epochs."""
    return {**config.loader.model_dump(exclude=_PLACES), **_remote(config, base)}


def _where(text: str, base: Path) -> str:
    return text if "://" in text else str(base / text)


def _remote(config: TrainConfig, base: Path) -> dict[str, Any]:
    """How shards are opened, as `PackedRows` takes it."""
    given = config.loader.model_dump(include=_PLACES, exclude_none=True)
    return given | ({"cache": str(base / given["cache"])} if "cache" in given else {})


def _held_out(config: TrainConfig, base: Path) -> Any:
    """The rows to measure the loss on (evaluate.HeldOut), or None."""
    from .evaluate import HeldOut

    if (wanted := config.eval) is None:
        return None
    return HeldOut(
        _where(wanted.data or str(config.data[0].path), base),
        wanted.split,
        limit=wanted.rows,
        rows_per_device=wanted.rows_per_device or config.rows_per_device,
        remote=_remote(config, base),
    )


def _export_of(config: TrainConfig, base: Path) -> Path | None:
    named = {True: base / config.out / "model", False: None}
    return named[config.export] if isinstance(config.export, bool) else base / config.export


def _check_places(config: TrainConfig, base: Path) -> None:
    """Refuse folders that would fail the export, or overwrite something, after hours of training."""
    tokenizer, model, export = config.tokenizer, config.model.path, _export_of(config, base)
    if tokenizer and not (base / tokenizer).is_dir():
        raise ConfigError(f"tokenizer: there is no folder {base / tokenizer}; check the spelling")
    if model is not None and export is not None and (base / model).resolve() == export.resolve():
        raise ConfigError(
            f"export: the finished model would overwrite the one that training starts from, {export}; name another "
            "folder"
        )


def _run(config: TrainConfig, base: Path, say: Say, ranks: int) -> Outcome:
    """Train, and export the model."""
    from accelerate.utils.memory import should_reduce_batch_size
    from transformers.utils.logging import disable_progress_bar

    from ..model import add_adapters, load_model
    from .checkpoint import last_whole, writing
    from .final_model import export_model, find_tokenizer, refuse_other_tokenizer
    from .trainer import PackedTrainer

    disable_progress_bar()  # of saving and loading, between the lines of the training
    out, export = base / config.out, _export_of(config, base)
    resume = last_whole(out) if config.resume == "auto" else base / config.resume
    _check_places(config, base)
    arguments = training_arguments(config, base, ranks)
    trainer = PackedTrainer(
        add_adapters(load_model(config.model, base, config.seed), config.lora),
        arguments,
        data=sources_of(config, base),
        loader=loader_options(config, base),
        eval_data=_held_out(config, base),
        eval_every=config.eval.every if config.eval else None,
        say=say,
        **{key: getattr(config, key) for key in _SAME},
    )
    given = base / config.tokenizer if config.tokenizer else None
    trainer.tokenizer = find_tokenizer(given, trainer.loader.corpus)
    if trainer.tokenizer is not None and config.model.path is not None:
        refuse_other_tokenizer(base / config.model.path, trainer.tokenizer)
    _announce(trainer, resume, say)
    try:
        trainer.train(resume_from_checkpoint=resume)
    except RuntimeError as error:
        if should_reduce_batch_size(error):
            raise ConfigError(_memory_ran_out(config, trainer.loader.corpus.max_length, error)) from error
        raise
    if export is not None:
        with writing(f"the finished model in {export}"):
            export_model(trainer, export)
        say(f"the finished model is in {export}")
    log = list(trainer.state.log_history)
    return Outcome(
        steps=trainer.state.global_step,
        loss=next((entry["loss"] for entry in reversed(log) if "loss" in entry), None),
        metrics=next((dict(entry) for entry in reversed(log) if "eval_loss" in entry), {}),
        out=out,
        export=export,
        resumed_from=resume,
        log=log,
    )


def _announce(trainer: Any, resume: Path | None, say: Say) -> None:
    loader, applied, steps = trainer.loader, trainer.applied, int(trainer.args.max_steps)
    batches = (
        f"{plural(trainer.accelerator.num_processes, 'rank')} · {plural(loader.accumulate, 'batch', 'batches')} · "
        f"{plural(trainer.args.per_device_train_batch_size, 'row')}"
    )
    rows = f"{steps * loader.rows_per_step:,} of {plural(loader.total_rows, 'row')}"
    say(f"{plural(steps, 'step')} of {plural(loader.rows_per_step, 'packed row')} = {batches}; {rows}")
    say(f"attention: {applied.name}, {applied.kernel} ({applied.reason})")
    begins = "starting at the beginning" if resume is None else f"resuming from {resume}"
    often = {"no": "never", "epoch": "every epoch", "steps": f"every {plural(trainer.args.save_steps, 'step')}"}
    saved = f"checkpoints: {often.get(str(trainer.args.save_strategy.value), 'as transformers decides')}"
    say(f"{begins}; {saved}")


def _memory_ran_out(config: TrainConfig, max_length: int, error: Exception) -> str:
    from ..model import message_of

    less = "rows_per_device: 1" if config.rows_per_device > 1 else "trainer: {gradient_checkpointing: true}"
    return (
        f"memory ran out in a batch of {plural(config.rows_per_device, 'row')} of up to {max_length:,} tokens "
        f"({message_of(error)}). Set {less}, loss_kernel: chunked or offload_activations: true, or pack with a smaller "
        "truncate.max_length"
    )


def _require(*packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigError(f"training needs {' and '.join(missing)}; pip install 'packtrain[train]'")
