"""Whole checkpoints, what is needed to go on from them, and the lock of the folder that holds them.

transformers writes a checkpoint file by file, and takes the one with the highest number for the last one, whole or
not. Here `packtrain.json` is written after everything else of every rank: it holds the loader's order and the size of
each file. A checkpoint without it, or with a file of another size, was cut short and is skipped, and so is one whose
weights are not finite. Where the loader stood is arithmetic: steps times rows of a step.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open

from ...schemas.errors import BusyError, ConfigError, StoreError
from ...schemas.files import lock
from ...schemas.files.foreign import LISTING_BYTES, read_regular
from ...schemas.jsontext import parse_json
from .train_config import PreferenceConfig

_LOG = logging.getLogger(__name__)
MARKER = "packtrain.json"
"""The file whose presence says that a checkpoint is whole."""
FORMAT = 2
"""Of the marker; others are not read."""
LOCK = ".training.lock"
"""The file in `out` that a training locks."""
_NAME = re.compile(r"checkpoint-(\d+)")
"""How transformers names the folder of a checkpoint, by its step."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What packtrain adds to a checkpoint of transformers."""

    step: int
    """Number of optimizer steps made."""
    settings: dict[str, Any]
    """Settings that resuming takes from the checkpoint, not from the configuration; see `settings_of`."""
    loader: dict[str, Any]
    """The loader's state at the beginning, which says what its order depends on."""
    files: dict[str, int] = field(default_factory=dict)
    """Path within the folder → size in bytes, of every file but the marker; `write_marker` fills it in."""

    def refuse_other_settings(self, configured: dict[str, Any], where: Path) -> None:
        """Refuse to resume with other settings, as steps would differ from those of the interrupted training.

        Args:
            configured: what `settings_of` gives now.
            where: the checkpoint's folder, for the message.

        Raises:
            ConfigError: names a setting, and both of its values.
        """
        for name, stored in self.settings.items():
            if configured.get(name, stored) != stored:
                raise ConfigError(
                    f"{where} was written with {name}: {stored}, and would be resumed with {name}: "
                    f"{configured[name]}; set it back, or train into another folder (out), with the checkpoint's "
                    "folder as model"
                )


def settings_of(args: Any, model: Any, rows_per_step: int, preference: PreferenceConfig | None) -> dict[str, Any]:
    """The settings that a training must be resumed with, by name.

    An optimizer's state holds its own settings, so that a change before resuming would be ignored; another number of
    weights would fail; and with other rows or another loss, later steps would be those of another training.

    Args:
        args: transformers.TrainingArguments.
        model: not wrapped or sharded yet.
        preference: the loss of pairs; None if tokens are trained.
    """
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    # Under ZeRO-3 a weight is empty here, and `ds_numel` says its size.
    numbers = sum(int(getattr(weight, "ds_numel", weight.numel())) for weight in trained)
    settings: dict[str, Any] = {
        "rows_per_step": rows_per_step,
        "trained weights": f"{numbers:,} in {len(trained):,} tensors",
        "preference": None if preference is None else preference.identity,
    }
    names = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim", "optim_args")
    for name in names:
        value = getattr(args, name)
        settings[f"trainer.{name}"] = getattr(value, "value", value)  # of an enum, what JSON can hold
    return settings


def write_marker(folder: Path, state: CheckpointState) -> None:
    """Mark a checkpoint as complete. Nothing in it may be written afterwards."""
    draft = folder / f".{MARKER}.part"
    with draft.open("w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, **asdict(state), "files": _files(folder)}, file, indent=1)
        # On the disk before it has its name: a marker that a crash cut short would not be read.
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / MARKER)


def read_checkpoint(folder: Path) -> CheckpointState:
    """The state of a whole checkpoint.

    Raises:
        ConfigError: it is not a whole checkpoint; says which file is at fault.
    """
    try:
        data = parse_json(read_regular(folder / MARKER, limit=LISTING_BYTES))
        if (version := data.pop("format", None)) != FORMAT:
            raise ValueError(f"it is of format {version!r}, and not {FORMAT}")
        state = msgspec.convert(data, CheckpointState)
    except FileNotFoundError:
        reason = "was cut short while it was written, or is not packtrain's" if folder.is_dir() else "does not exist"
        raise ConfigError(f"the checkpoint {folder} {reason}: it has no {MARKER}") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{folder / MARKER} cannot be read: {error}; resume from another checkpoint") from None
    # Sizes and no hashes: weights have many gigabytes, and a crash leaves files that are shorter.
    sizes = _files(folder)
    for name, size in state.files.items():
        if sizes.get(name) != size:
            fault = "is missing" if name not in sizes else f"has {sizes[name]:,} bytes"
            raise ConfigError(
                f"the checkpoint {folder} is damaged: {name} {fault}, and was written with {size:,}; "
                "resume from another checkpoint"
            )
    return state


@contextmanager
def writing(description: str) -> Iterator[None]:
    """A context for writing files, whose errors become one that says what to do.

    Args:
        description: what is written, to name it in the error.

    Raises:
        StoreError: writing failed, for example on a full disk; earlier checkpoints are intact.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:  # torch.save raises RuntimeError
        raise StoreError(
            f"{description} could not be written: {' '.join(str(error).split())}. Free some space; the same command "
            "then continues from the last whole checkpoint, or begins again if there is none"
        ) from error


def last_whole(out: Path, max_step: int | None = None) -> Path | None:
    """The folder of the newest whole checkpoint; None if there is none. Checkpoints that were cut short, or whose
    weights hold NaN or infinity, are skipped with a warning.

    Args:
        max_step: no checkpoint after this step; None for any.
    """
    checkpoints = [(int(match[1]), path) for path in out.glob("*/") if (match := _NAME.fullmatch(path.name))]
    for step, path in sorted(checkpoints, reverse=True):
        if max_step is not None and step > max_step:
            continue
        try:
            _refuse_not_finite(path, read_checkpoint(path))
        except ConfigError as error:
            _LOG.warning("skipped: %s", error)
        else:
            return path
    return None


def _refuse_not_finite(folder: Path, state: CheckpointState) -> None:
    """Read the weights of a checkpoint, one tensor at a time, and refuse NaN and infinity. Weights are looked at before
    they are saved, but files of the right size may have been damaged since.

    Sharded weights are not in *.safetensors; the trainer looks at them when they are loaded.

    Raises:
        ConfigError: a weight is NaN or infinite, or a file is damaged.
    """
    for name in state.files:
        if not name.endswith(".safetensors"):
            continue
        try:
            with safe_open(str(folder / name), framework="pt") as file:
                spoilt = find_not_finite((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise ConfigError(f"{folder}: {error}") from error
        if spoilt is not None:
            raise ConfigError(
                f"the checkpoint {folder} cannot be used: {spoilt} in {name} holds NaN or infinity; resume from "
                "another checkpoint"
            )


def find_not_finite(weights: Iterable[tuple[str, Any]]) -> str | None:
    """The name of the first weight with NaN or infinity; None if all are finite.

    A finite loss can have a gradient of NaN: its step spoils the weights, and no later step repairs them, so what is
    saved is looked at first.

    Args:
        weights: names and tensors. Of sharded ones only this rank's part is looked at.
    """
    for name, weight in weights:
        if not weight.is_floating_point():
            continue  # quantised to integers
        part = getattr(weight, "ds_tensor", weight)  # of ZeRO-3
        if hasattr(part, "to_local"):  # of FSDP 2
            part = part.to_local()
        part = part.detach()
        if part.element_size() < 2:  # float8 has no isfinite
            part = part.float()
        if not bool(part.isfinite().all()):
            return name
    return None


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold an output folder, which is made if needed: two trainings would write into each other's checkpoints.

    The kernel drops the lock when the process ends, however it ends.

    Raises:
        BusyError: another training works on it.
        ConfigError: the folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"out: {out} cannot be written as a folder ({error.strerror}); name another") from error
    try:
        # None, for a file system without locks, lets the training go on without one.
        if lock.lock(descriptor, wait=False) is False:
            raise BusyError(f"out: another training works on {out}. Let it finish, stop it, or name another folder")
        yield
    finally:
        lock.release(descriptor)


def _files(folder: Path) -> dict[str, int]:
    """Path within the folder → size in bytes, of every file in a checkpoint but its marker and the draft of that."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith((MARKER, f".{MARKER}"))
    }
