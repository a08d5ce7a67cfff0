"""A whole training from its configuration: data, model, trainer, export. What `packtrain train` calls."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...schemas.errors import ConfigError
from ...schemas.units import plural
from ..order import Source
from ..place import detect_rank
from ..printing import Say, print_line
from ..steps import Balance
from .config import BalanceConfig, TrainConfig
from .output_lock import locked

_PLACES = {"cache", "cache_bytes", "storage_options", "verify"}
"""Keys of the loader about how files are opened."""
_SAME = (
    "rows_per_step", "rows_per_device", "epochs", "attention", "probe", "loss_kernel", "offload_activations",
    "document_losses",
)  # fmt: skip
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
    from ..launch.orphans import end_with_launcher
    from ..launch.rank_check import rank_check

    end_with_launcher()
    config, base = read_config(config, base)
    _require("transformers", "accelerate")
    place = detect_rank()
    if place.world_size > 1:
        digest = hashlib.blake2b(config.model_dump_json().encode(), digest_size=8)
        rank_check(agree={"configuration": digest.hexdigest()})
    with locked(base / config.out, place.rank):
        return _Training(config, base, say if place.rank == 0 else _silent).run(place.world_size)


def check(config: TrainConfig, base: Path) -> None:
    """Refuse what `train` would refuse before it loads anything: missing or unfinished data, a missing model.

    Args:
        base: where relative paths start.

    Raises:
        ConfigError, InputError, IntegrityError: see `train`.
    """
    _require("transformers", "accelerate")
    from ..rows import PackedRows
    from .model import read_model_config

    training = _Training(config, base, _silent)
    training.check_places()
    read_model_config(config.model, base)
    for source in training.sources():
        PackedRows(source.where, source.split, **training.remote())
    training.held_out()


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


class _Training:
    def __init__(self, config: TrainConfig, base: Path, say: Say) -> None:
        self.config, self.base, self.say = config, base, say
        self.out = base / config.out
        named = {True: self.out / "model", False: None}
        self.export = named[config.export] if isinstance(config.export, bool) else base / config.export

    def run(self, ranks: int) -> Outcome:
        """Train, and export the model."""
        from accelerate.utils.memory import should_reduce_batch_size
        from transformers.utils.logging import disable_progress_bar

        from .checkpoint import last_whole
        from .model import add_adapters, load_model
        from .settings import training_arguments
        from .trainer import PackedTrainer

        disable_progress_bar()  # of saving and loading, between the lines of the training
        config = self.config
        resume = last_whole(self.out) if config.resume == "auto" else self.base / config.resume
        self.check_places()
        arguments = training_arguments(config, self.base, ranks)
        trainer = PackedTrainer(
            add_adapters(load_model(config.model, self.base, config.seed), config.lora),
            arguments,
            data=self.sources(),
            loader=self._loader_options(),
            eval_data=self.held_out(),
            eval_every=config.eval.every if config.eval else None,
            say=self.say,
            **{key: getattr(config, key) for key in _SAME},
        )
        self._announce(trainer, resume)
        try:
            trainer.train(resume_from_checkpoint=resume)
        except RuntimeError as error:
            if should_reduce_batch_size(error):
                raise ConfigError(_memory_ran_out(config, trainer.loader.corpus.max_length, error)) from error
            raise
        if trainer.feed.over:
            self.say(f"{plural(trainer.steps_total, 'step was', 'steps were')} made already, none is left")
        if self.export is not None:
            self._export(trainer, self.export)
        log = list(trainer.state.log_history)
        return Outcome(
            steps=trainer.state.global_step,
            loss=next((entry["loss"] for entry in reversed(log) if "loss" in entry), None),
            metrics=next((dict(entry) for entry in reversed(log) if "eval_loss" in entry), {}),
            out=self.out,
            export=self.export,
            resumed_from=resume,
            log=log,
        )

    def check_places(self) -> None:
        """Refuse folders that would fail the export, or overwrite something, after hours of training."""
        tokenizer, model = self.config.tokenizer, self.config.model.path
        if tokenizer and not (self.base / tokenizer).is_dir():
            raise ConfigError(f"tokenizer: there is no folder {self.base / tokenizer}; check the spelling")
        if model is not None and self.export is not None and (self.base / model).resolve() == self.export.resolve():
            raise ConfigError(
                f"export: the finished model would overwrite the one that training starts from, {self.export}; name "
                "another folder"
            )

    def sources(self) -> list[Source]:
        """The data as the loader takes it."""
        return [Source(self._where(one.path), one.weight, one.epochs, one.split) for one in self.config.data]

    def _where(self, text: str) -> str:
        return text if "://" in text else str(self.base / text)

    def remote(self) -> dict[str, Any]:
        """How shards are opened, as `PackedRows` takes it."""
        given = self.config.loader.model_dump(include=_PLACES, exclude_none=True)
        return given | ({"cache": str(self.base / given["cache"])} if "cache" in given else {})

    def _loader_options(self) -> dict[str, Any]:
        options = self.config.loader.model_dump(exclude=_PLACES | {"balance"})
        balance = self.config.loader.balance
        options["balance"] = Balance(balance.block, balance.group) if isinstance(balance, BalanceConfig) else balance
        return {**options, **self.remote()}

    def held_out(self) -> Any:
        """The rows to measure the loss on (evaluation.HeldOut), or None."""
        from .evaluation import HeldOut

        wanted = self.config.eval
        if wanted is None:
            return None
        return HeldOut(
            self._where(wanted.data or self.config.data[0].path),
            wanted.split,
            limit=wanted.rows,
            rows_per_device=wanted.rows_per_device or self.config.rows_per_device,
            remote=self.remote(),
        )

    def _announce(self, trainer: Any, resume: Path | None) -> None:
        loader, applied, steps = trainer.loader, trainer.applied, trainer.steps_total
        batches = (
            f"{plural(trainer.accelerator.num_processes, 'rank')} · {plural(loader.accumulate, 'batch', 'batches')} · "
            f"{plural(trainer.args.per_device_train_batch_size, 'row')}"
        )
        rows = f"{steps * loader.rows_per_step:,} of {plural(loader.total_rows, 'row')}"
        self.say(f"{plural(steps, 'step')} of {plural(loader.rows_per_step, 'packed row')} = {batches}; {rows}")
        self.say(f"attention: {applied.name}, {applied.kernel} ({applied.reason})")
        if self.config.document_losses is None and not trainer.forward.gives_token_losses:
            fused = trainer.forward.fused.name
            self.say(
                f"losses by source and document: none, as loss_kernel {fused} gives only their sum; see document_losses"
            )
        begins = "starting at the beginning" if resume is None else f"resuming from {resume}"
        often = {"no": "never", "epoch": "every epoch", "steps": f"every {plural(trainer.args.save_steps, 'step')}"}
        saved = f"checkpoints: {often.get(str(trainer.args.save_strategy.value), 'as transformers decides')}"
        self.say(f"{begins}; {saved}")

    def _export(self, trainer: Any, folder: Path) -> None:
        from .checkpoint import writing
        from .export import export_model, find_tokenizer

        given = self.base / self.config.tokenizer if self.config.tokenizer else None
        with writing(f"the finished model in {folder}"):
            export_model(trainer, folder, find_tokenizer(given, trainer.loader.corpus.parts[0]))
        self.say(f"the finished model is in {folder}")


def _memory_ran_out(config: TrainConfig, max_length: int, error: Exception) -> str:
    from ..probe.probing import first_line

    less = "rows_per_device: 1" if config.rows_per_device > 1 else "trainer: {gradient_checkpointing: true}"
    return (
        f"memory ran out in a batch of {plural(config.rows_per_device, 'row')} of up to {max_length:,} tokens "
        f"({first_line(error)}). Set {less}, loss_kernel: chunked or offload_activations: true, or pack with a smaller "
        "truncate.max_length"
    )


def _require(*packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigError(f"training needs {' and '.join(missing)}; pip install 'packtrain[train]'")


def _silent(text: str) -> None:
    """Print nothing; used on all ranks but the first."""
