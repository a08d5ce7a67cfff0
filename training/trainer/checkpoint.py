"""Whole checkpoints, and the loader's state in them.

transformers writes a checkpoint file by file, and takes the one with the highest number for the last one, whole or
not. Here `packtrain.json` is written after everything else of every rank: it holds the loader's state and the size of
each file. A checkpoint without it, or with a file of another size, was cut short and is skipped.
"""

import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ...schemas.errors import ConfigError, StoreError
from ...schemas.jsontext import parse_json

_LOG = logging.getLogger(__name__)
MARKER = "packtrain.json"
FORMAT = 1
_NAME = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What packtrain adds to a checkpoint of transformers."""

    step: int
    """Number of optimizer steps made."""
    rows_per_step: int
    loss: str
    """What the loss is a mean of."""
    settings: dict[str, Any]
    """Settings that resuming takes from the checkpoint, not from the configuration; see `settings_of`."""
    world_size: int
    """Number of ranks that wrote the checkpoint; another number may resume from it."""
    loader: dict[str, Any]
    """See `training.state.LoaderState`."""
    files: dict[str, int]
    """Size in bytes of every other file, by path within the folder."""

    def refuse_other(self, rows_per_step: int, loss: str, settings: dict[str, Any], where: Path) -> None:
        """Raise ConfigError if steps after resuming would differ from those of the interrupted training."""
        mine_of = {"rows_per_step": rows_per_step, "loss": loss, **settings}
        theirs_of = {"rows_per_step": self.rows_per_step, "loss": self.loss, **self.settings}
        for name, mine in mine_of.items():
            theirs = theirs_of.get(name)
            if mine != theirs:
                raise ConfigError(
                    f"{where} was written with {name}: {theirs}, and would be resumed with {name}: {mine}; set it "
                    "back, or train into another folder (out), with the checkpoint's folder as model"
                )


def settings_of(args: Any, weights: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Settings stored in an optimizer's state; changing one before resuming would be ignored, or fail.

    Args:
        args: transformers.TrainingArguments.
        weights: the shape of each weight that is trained.
    """
    names = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim", "optim_args")
    given = {name: getattr(args, name) for name in names}
    found = {f"trainer.{name}": getattr(value, "value", value) for name, value in given.items()}  # of enums
    text = json.dumps(sorted((name, list(shape)) for name, shape in weights.items()))
    numbers = sum(math.prod(shape) for shape in weights.values())
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return {**found, "model": f"{numbers:,} trained weights in {len(weights):,} tensors, {digest}"}


def write_marker(
    folder: Path,
    *,
    step: int,
    rows_per_step: int,
    loss: str,
    settings: dict[str, Any],
    world_size: int,
    loader: Any,
) -> None:
    """Mark a checkpoint as complete. Nothing in it may be written afterwards."""
    state = CheckpointState(step, rows_per_step, loss, settings, world_size, loader, _files(folder))
    draft = folder / f".{MARKER}.part"
    with draft.open("w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, **asdict(state)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / MARKER)


def remove_marker(folder: Path) -> None:
    """Remove the marker of completeness, before a checkpoint is overwritten or deleted."""
    (folder / MARKER).unlink(missing_ok=True)


def read_checkpoint(folder: Path) -> CheckpointState:
    """The state of a whole checkpoint.

    Raises:
        ConfigError: it is not a whole checkpoint; says which file is at fault.
    """
    try:
        data = parse_json((folder / MARKER).read_bytes())
    except FileNotFoundError:
        what = "was cut short while it was written, or is not packtrain's" if folder.is_dir() else "does not exist"
        raise ConfigError(f"the checkpoint {folder} {what}: it has no {MARKER}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / MARKER} cannot be read: {error}; resume from another checkpoint") from None
    version = data.pop("format", None) if isinstance(data, dict) else None
    if version != FORMAT:
        raise ConfigError(
            f"{folder / MARKER} is of format {version!r}; this version of packtrain reads {FORMAT}; "
            "resume with the version that wrote it"
        )
    try:
        state = CheckpointState(**data)
    except TypeError as error:
        raise ConfigError(
            f"{folder / MARKER} is not what packtrain writes: {error}; resume from another checkpoint"
        ) from None
    found = _files(folder)
    for name, size in state.files.items():
        if found.get(name) != size:
            has = "is missing" if name not in found else f"has {found[name]:,} bytes"
            raise ConfigError(
                f"the checkpoint {folder} is damaged: {name} {has}, and was written with {size:,}; "
                "resume from another checkpoint"
            )
    return state


@contextmanager
def writing(what: str) -> Iterator[None]:
    """A context for writing files.

    Raises:
        StoreError: writing failed, for example on a full disk; earlier checkpoints are intact.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:  # the last of torch.save
        raise StoreError(
            f"{what} could not be written: {' '.join(str(error).split())}. Free some space or check the disk; the same "
            "command then continues from the last whole checkpoint"
        ) from error


def checkpoints(out: Path) -> list[Path]:
    """All checkpoint folders, complete or not, newest first."""
    if not out.is_dir():
        return []
    found = [(int(match[1]), path) for path in out.iterdir() if (match := _NAME.fullmatch(path.name)) and path.is_dir()]
    return [path for _, path in sorted(found, reverse=True)]


def last_whole(out: Path) -> Path | None:
    """The newest complete checkpoint. Incomplete ones are skipped, with a warning."""
    for path in checkpoints(out):
        try:
            read_checkpoint(path)
        except ConfigError as error:
            _LOG.warning("skipped: %s", error)
        else:
            return path
    return None


def rotate(newest: Path, keep: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints beyond `keep`, and what was cut short; never the best one, nor the newest.

    Args:
        newest: the one just written. Its number need not be the highest: a training may have resumed from an earlier
            one, or a later one was cut short.
    """
    if not keep or keep < 1:
        return
    best_path = None if best is None else Path(best).resolve()
    kept = int(newest.resolve() != best_path)
    for path in checkpoints(newest.parent):
        if path == newest or path.resolve() == best_path:
            continue
        kept += (path / MARKER).is_file()
        if kept > max(1, keep - (best is not None)) or not (path / MARKER).is_file():
            remove_marker(path)  # first: what a kill leaves of it is then no checkpoint
            shutil.rmtree(path, ignore_errors=True)


def _files(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith((MARKER, f".{MARKER}"))
    }
