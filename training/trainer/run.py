"""A whole training from its configuration: data, model, trainer, the end. `packtrain train` is a coat over it."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...schemas.errors import ConfigError
from ..balance import Balance
from ..printing import print_line
from ..ranks import find_place
from .config import BalanceConfig, TrainConfig
from .outlock import locked

Say = Callable[[str], None]
"""Prints a line."""
_PLACES = {"cache", "cache_bytes", "storage_options", "verify"}
"""Keys of the loader that say how files are opened."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training ended with."""

    steps: int
    """Optimizer steps made, those before a resumption included."""
    loss: float | None
    """The last logged training loss; None where nothing was left to do."""
    metrics: dict[str, float]
    """Of the last evaluation."""
    out: Path
    export: Path | None
    """The finished model's folder."""
    resumed_from: Path | None
    log: list[dict[str, Any]] = field(repr=False)
    """Everything that was logged, those before a resumption included."""


def train(
    config: TrainConfig | Mapping[str, Any] | str | Path, base: Path | None = None, say: Say = print_line
) -> Outcome:
    """Train as a configuration says, or go on where a training in the same folder stopped. Every rank calls it.

    Args:
        config: validated, plain data, or the path of a YAML file.
        base: where relative paths start; by default the file's folder, or the working directory.
        say: prints a line, on the first rank only.

    Raises:
        BusyError: another training works on `out`.
        ConfigError, InputError: what a person can mend; says which key, and how.
        LeakError: documents of a row see each other.
    """
    from ..launch.orphans import end_with_launcher
    from ..launch.rollcall import roll_call

    end_with_launcher()
    config, base = read_config(config, base)
    _require("transformers", "accelerate")
    place = find_place()
    if place.world_size > 1:
        roll_call(agree={"configuration": _fingerprint(config)})
    with locked(base / config.out, place.rank):
        return _Training(config, base, say if place.rank == 0 else _silent).run(place.world_size)


def check(config: TrainConfig, base: Path) -> None:
    """What `train` would refuse before it loads anything: data that is not there or not finished, a missing model.

    Args:
        base: where relative paths start.

    Raises:
        ConfigError, InputError, IntegrityError: as of `train`.
    """
    _require("transformers", "accelerate")
    _Training(config, base, _silent).check()


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

        from ...schemas.yamltext import MAX_BYTES, parse_yaml

        path, where = Path(config), str(config)
        try:
            with path.open(encoding="utf-8") as file:
                config, _ = parse_yaml(file.read(MAX_BYTES + 1))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(
                f"the configuration {path} cannot be read: {error}; it must be a file of UTF-8 text that you may read"
            ) from None
        base = base or path.absolute().parent
    try:
        return TrainConfig.model_validate(config), base or Path.cwd()
    except ValidationError as error:
        lines = [f"{where}: {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise ConfigError("\n".join(lines).replace("Value error, ", "")) from None


class _Training:
    def __init__(self, config: TrainConfig, base: Path, say: Say) -> None:
        self.config, self.base, self.say = config, base, say

    def run(self, ranks: int) -> Outcome:
        """From the beginning to the exported model."""
        from transformers.utils.logging import disable_progress_bar

        from .arguments import training_arguments
        from .combinations import check_combinations
        from .trainer import PackedTrainer

        disable_progress_bar()  # of saving and loading, between the lines of the training

        config = self.config
        out = self.base / config.out
        resume = self._resume(out)
        self._check_places(out)
        arguments = training_arguments(config, self.base, ranks)
        model = self._model()
        check_combinations(config, model, arguments)
        trainer = PackedTrainer(
            model,
            arguments,
            data=self._sources(),
            rows_per_step=config.rows_per_step,
            rows_per_device=config.rows_per_device,
            epochs=config.epochs,
            loader=self._loader_options(),
            batching=config.batching,
            attention=config.attention,
            probe=config.probe,
            loss=config.loss,
            loss_kernel=config.loss_kernel,
            offload_activations=config.offload_activations,
            eval_data=self._held_out(),
            eval_every=config.eval.every if config.eval else None,
            say=self.say,
        )
        self._announce(trainer, resume)
        trainer.train(resume_from_checkpoint=resume)
        if trainer.feed.over:
            self.say(f"all {trainer.steps_total:,} steps were made already")
        export = self._export(trainer, out)
        history = trainer.state.log_history
        losses = [entry["loss"] for entry in history if "loss" in entry]
        evaluations = [entry for entry in history if "eval_loss" in entry]
        return Outcome(
            steps=trainer.state.global_step,
            loss=losses[-1] if losses else None,
            metrics=dict(evaluations[-1]) if evaluations else {},
            out=out,
            export=export,
            resumed_from=resume,
            log=list(history),
        )

    def check(self) -> None:
        """See `check`."""
        from ..rows import PackedRows
        from .models import check_model

        self._check_places(self.base / self.config.out)
        check_model(self.config.model, self.base)
        for source in self._sources():
            PackedRows(source.where, source.split, **self._remote())
        self._held_out()

    def _check_places(self, out: Path) -> None:
        """What would otherwise fail, or be written over, after hours of training."""
        for key, path in self._data_paths():
            if "://" not in path and (self.base / path).is_file():
                raise ConfigError(
                    f"{key}: {self.base / path} is a file; give the folder of packed rows that `packtrain run` has "
                    "made, or makes of it"
                )
        tokenizer, model, export = self.config.tokenizer, self.config.model.path, self._export_folder(out)
        if tokenizer and not (self.base / tokenizer).is_dir():
            raise ConfigError(f"tokenizer: there is no folder {self.base / tokenizer}; check the spelling")
        if model is not None and export is not None and (self.base / model).resolve() == export.resolve():
            raise ConfigError(
                f"export: the finished model would be written over the one that training begins with, {export}; name "
                "another folder (out, or export: {path: …})"
            )

    def _data_paths(self) -> list[tuple[str, str]]:
        """(key of the configuration, path or URL) of every dataset."""
        held_out = self.config.eval.data if self.config.eval is not None else None
        many = len(self.config.data) > 1
        data = [(f"data.{number}.path" if many else "data", one.path) for number, one in enumerate(self.config.data)]
        return [*data, *([("eval.data", held_out)] if held_out is not None else [])]

    def _resume(self, out: Path) -> Path | None:
        """The checkpoint to go on from."""
        from .checkpoint import checkpoints, last_whole

        wanted = self.config.resume
        if wanted == "auto":
            return last_whole(out)
        if wanted != "never":
            return self.base / wanted
        if found := checkpoints(out):
            raise ConfigError(
                f"resume: never, but {out} holds {found[0].name} of an earlier training; name another folder (out), or "
                "move it away"
            )
        return None

    def _model(self) -> Any:
        from .models import load_model

        model = load_model(self.config.model, self.base, self.config.seed)
        if self.config.lora is not None:
            from .adapters import add_adapters

            model = add_adapters(model, self.config.lora)
        return model

    def _sources(self) -> list[Any]:
        return [replace(one, where=self._where(str(one.where))) for one in self.config.sources()]

    def _where(self, text: str) -> str:
        return text if "://" in text else str(self.base / text)

    def _remote(self) -> dict[str, Any]:
        given = self.config.loader.model_dump(include=_PLACES, exclude_none=True)
        if "cache" in given:
            given["cache"] = str(self.base / given["cache"])
        return given

    def _loader_options(self) -> dict[str, Any]:
        options = self.config.loader.model_dump(exclude=_PLACES | {"balance"})
        balance = self.config.loader.balance
        options["balance"] = Balance(balance.block, balance.group) if isinstance(balance, BalanceConfig) else balance
        return {**options, **self._remote()}

    def _held_out(self) -> Any:
        from .evaluation import HeldOut

        wanted = self.config.eval
        if wanted is None:
            return None
        return HeldOut(
            self._where(wanted.data or self.config.data[0].path),
            wanted.split,
            limit=wanted.rows,
            rows_per_device=wanted.rows_per_device or self.config.rows_per_device,
            remote=self._remote(),
            padded=self.config.batching == "padded",
        )

    def _announce(self, trainer: Any, resume: Path | None) -> None:
        loader, applied = trainer.loader, trainer.applied
        rows, ranks = loader.rows_per_step, trainer.accelerator.num_processes
        steps, per_device = trainer.steps_total, trainer.args.per_device_train_batch_size
        micro = f"{_count(ranks, 'rank')} · {_count(loader.accumulate, 'batch', 'es')} · {_count(per_device, 'row')}"
        self.say(f"{_count(steps, 'step')} of {_count(rows, 'packed row')} = {micro}; {self._used(trainer)}")
        if applied is not None:
            self.say(f"attention: {applied.name}, {applied.kernel} ({applied.reason})")
        if resume is not None:
            self.say(f"going on from {resume}")

    def _used(self, trainer: Any) -> str:
        """How much of the data the steps take, and why not all of it."""
        used, there = trainer.steps_total * trainer.loader.rows_per_step, trainer.loader.total_rows
        if used >= there:
            return f"{there:,} rows in all"
        why = "trainer.max_steps" if trainer.steps_total < trainer.feed.steps else "it fills no step; loader.tail: drop"
        return f"{used:,} of {there:,} rows, the rest is left out ({why})"

    def _export_folder(self, out: Path) -> Path | None:
        wanted = self.config.export
        return None if wanted is None else self.base / wanted.path if wanted.path else out / "model"

    def _export(self, trainer: Any, out: Path) -> Path | None:
        from .checkpoint import writing
        from .export import export_model, find_tokenizer

        wanted = self.config.export
        if wanted is None:
            return None
        folder = self._export_folder(out)
        assert folder is not None
        given = self.base / self.config.tokenizer if self.config.tokenizer else None
        found = find_tokenizer(given, trainer.loader.corpus.parts[0])
        with writing(f"the finished model in {folder}"):
            export_model(trainer, folder, found, merge=wanted.merge)
        self.say(f"the finished model is in {folder}")
        return folder


def _count(number: int, what: str, many: str = "s") -> str:
    """Such as: 1 row, or 4 rows."""
    return f"{number:,} {what}{'' if number == 1 else many}"


def _require(*packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigError(f"training needs {' and '.join(missing)}; pip install 'packtrain[train]'")


def _fingerprint(config: TrainConfig) -> str:
    return hashlib.blake2b(
        json.dumps(config.model_dump(mode="json"), sort_keys=True).encode(), digest_size=8
    ).hexdigest()


def _silent(text: str) -> None:
    """On the other ranks."""
