"""A whole training from its configuration: data, model, trainer, export. What `packtrain train` calls."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...schemas.errors import ConfigError
from ...schemas.units import plural
from ..order.balance import Balance
from ..order.rank import detect_rank
from ..printing import print_line
from .config import BalanceConfig, TrainConfig
from .output_lock import locked

Say = Callable[[str], None]
"""Prints a line."""
_PLACES = {"cache", "cache_bytes", "storage_options", "verify"}
"""Keys of the loader about how files are opened."""
_SAME = (
    "rows_per_step", "rows_per_device", "epochs", "attention", "probe", "loss", "loss_kernel", "offload_activations",
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
        rank_check(agree={"configuration": _fingerprint(config)})
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

        from ...schemas.config.yamltext import MAX_BYTES, parse_yaml

        path, where = Path(config), str(config)
        try:
            with path.open(encoding="utf-8") as file:
                config, _ = parse_yaml(file.read(MAX_BYTES + 1))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(
                f"the configuration {path} cannot be read: {error}; it must be a readable file of UTF-8 text"
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
        self.out = base / config.out
        wanted = config.export
        self.export = None if wanted is None else base / wanted.path if wanted.path else self.out / "model"

    def run(self, ranks: int) -> Outcome:
        """Train, and export the model."""
        from transformers.utils.logging import disable_progress_bar

        from .arguments import training_arguments
        from .combinations import check_combinations
        from .trainer import PackedTrainer

        disable_progress_bar()  # of saving and loading, between the lines of the training
        config = self.config
        resume = self._resume()
        self._check_places()
        arguments = training_arguments(config, self.base, ranks)
        model = self._model()
        check_combinations(config, model, arguments)
        trainer = PackedTrainer(
            model,
            arguments,
            data=self._sources(),
            loader=self._loader_options(),
            eval_data=self._held_out(),
            eval_every=config.eval.every if config.eval else None,
            say=self.say,
            **{key: getattr(config, key) for key in _SAME},
        )
        self._announce(trainer, resume)
        trainer.train(resume_from_checkpoint=resume)
        if trainer.feed.over:
            self.say(f"all {trainer.steps_total:,} steps were made already")
        self._export(trainer)
        log = list(trainer.state.log_history)
        losses = [entry["loss"] for entry in log if "loss" in entry]
        evaluations = [entry for entry in log if "eval_loss" in entry]
        return Outcome(
            steps=trainer.state.global_step,
            loss=losses[-1] if losses else None,
            metrics=dict(evaluations[-1]) if evaluations else {},
            out=self.out,
            export=self.export,
            resumed_from=resume,
            log=log,
        )

    def check(self) -> None:
        """See `check`."""
        from ..shards.dataset_rows import PackedRows
        from .models import check_model

        self._check_places()
        check_model(self.config.model, self.base)
        for source in self._sources():
            PackedRows(source.where, source.split, **self._remote())
        self._held_out()

    def _check_places(self) -> None:
        """Refuse settings that would fail or overwrite something after hours of training."""
        many = len(self.config.data) > 1
        data = [(f"data.{number}.path" if many else "data", one.path) for number, one in enumerate(self.config.data)]
        if self.config.eval is not None and self.config.eval.data is not None:
            data.append(("eval.data", self.config.eval.data))
        for key, path in data:
            if "://" not in path and (self.base / path).is_file():
                raise ConfigError(
                    f"{key}: {self.base / path} is a file; give the folder of packed rows that `packtrain run` has "
                    "made, or makes of it"
                )
        tokenizer, model = self.config.tokenizer, self.config.model.path
        if tokenizer and not (self.base / tokenizer).is_dir():
            raise ConfigError(f"tokenizer: there is no folder {self.base / tokenizer}; check the spelling")
        if model is not None and self.export is not None and (self.base / model).resolve() == self.export.resolve():
            raise ConfigError(
                f"export: the finished model would overwrite the one that training starts from, {self.export}; name "
                "another folder (out, or export: {path: …})"
            )

    def _resume(self) -> Path | None:
        """The checkpoint to resume from; None to start from the beginning."""
        from .checkpoint import checkpoints, last_whole

        wanted = self.config.resume
        if wanted == "auto":
            return last_whole(self.out)
        if wanted != "never":
            return self.base / wanted
        if found := checkpoints(self.out):
            raise ConfigError(
                f"resume: never, but {self.out} holds {found[0].name} of an earlier training; name another folder "
                "(out), or move it away"
            )
        return None

    def _model(self) -> Any:
        from .adapters import add_adapters
        from .models import load_model

        return add_adapters(load_model(self.config.model, self.base, self.config.seed), self.config.lora)

    def _sources(self) -> list[Any]:
        return [replace(one, where=self._where(str(one.where))) for one in self.config.sources()]

    def _where(self, text: str) -> str:
        return text if "://" in text else str(self.base / text)

    def _remote(self) -> dict[str, Any]:
        given = self.config.loader.model_dump(include=_PLACES, exclude_none=True)
        return given | ({"cache": str(self.base / given["cache"])} if "cache" in given else {})

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
        )

    def _announce(self, trainer: Any, resume: Path | None) -> None:
        loader, applied, steps = trainer.loader, trainer.applied, trainer.steps_total
        parts = (
            plural(trainer.accelerator.num_processes, "rank"),
            plural(loader.accumulate, "batch", "batches"),
            plural(trainer.args.per_device_train_batch_size, "row"),
        )
        used, there = steps * loader.rows_per_step, loader.total_rows
        rows = f"{there:,} rows in all"
        if used < there:
            why = (
                "trainer.max_steps"
                if steps < trainer.feed.steps
                else "they fill no whole step, and loader.tail is drop"
            )
            rows = f"{used:,} of {there:,} rows, the rest is left out ({why})"
        self.say(
            f"{plural(steps, 'step')} of {plural(loader.rows_per_step, 'packed row')} = {' · '.join(parts)}; {rows}"
        )
        self.say(f"attention: {applied.name}, {applied.kernel} ({applied.reason})")
        if resume is not None:
            self.say(f"resuming from {resume}")

    def _export(self, trainer: Any) -> None:
        from .checkpoint import writing
        from .export import export_model, find_tokenizer

        if self.export is None or self.config.export is None:
            return
        given = self.base / self.config.tokenizer if self.config.tokenizer else None
        found = find_tokenizer(given, trainer.loader.corpus.parts[0])
        with writing(f"the finished model in {self.export}"):
            export_model(trainer, self.export, found, merge=self.config.export.merge)
        self.say(f"the finished model is in {self.export}")


def _require(*packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigError(f"training needs {' and '.join(missing)}; pip install 'packtrain[train]'")


def _fingerprint(config: TrainConfig) -> str:
    return hashlib.blake2b(
        json.dumps(config.model_dump(mode="json"), sort_keys=True).encode(), digest_size=8
    ).hexdigest()


def _silent(text: str) -> None:
    """Print nothing; used on all ranks but the first."""
