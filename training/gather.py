"""A whole model from a sharded checkpoint, written shard by shard.

At most one file of weights is in memory at a time, whatever the model's size. The folder appears when it is complete.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schemas.errors import ConfigError, OutputError, StoreError
from .model_folder import read_model
from .sharded import ShardedWeights, by_bytes, find_shards, is_zero

FILE_BYTES = 1 << 30
"""Weights in one file, unless one tensor has more."""
_BESIDE = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "tokenizer.model", "vocab.json", "merges.txt",
)  # fmt: skip
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A model that was gathered."""

    folder: Path
    files: int
    """Files of weights."""
    tensors: int
    bytes: int
    """Of all weights."""


def export_checkpoint(
    checkpoint: Path,
    out: Path,
    *,
    base: Path | None = None,
    tokenizer: Path | None = None,
    file_bytes: int = FILE_BYTES,
    advance: Callable[[int], None] = lambda done: None,
) -> ExportedModel:
    """Gather a checkpoint's weights into a folder that transformers loads.

    Args:
        base: the model that was trained, for checkpoints without a config.json.
        tokenizer: a folder whose tokenizer is copied beside the weights.
        file_bytes: most bytes of weights in one file, and in memory.
        advance: called with the bytes just written.

    Raises:
        ConfigError: the folder is no sharded checkpoint, is damaged, or the configuration is missing.
        OutputError: `out` exists.
        StoreError: writing failed.
    """
    shards = require_shards(checkpoint)
    if out.exists():
        raise OutputError(f"--out {out} exists; remove it, or choose another folder")
    homes = [one for one in (base, checkpoint) if one is not None]
    home = next((one for one in homes if (one / "config.json").is_file()), None)
    if home is None:
        where = base or checkpoint
        raise ConfigError(
            f"{where} has no config.json, which a model needs; give --base FOLDER, the model that the "
            "training started from"
        )
    if tokenizer is not None and not tokenizer.is_dir():
        raise ConfigError(f"--tokenizer: there is no folder {tokenizer}; check the spelling")
    from safetensors import SafetensorError

    weights = ShardedWeights(shards)
    if any(".lora_" in one.name or one.name.startswith("base_model.") for one in weights.tensors):
        raise ConfigError(
            f"{shards} holds a model with adapters; the export at the end of the training is the adapter alone: take "
            "that, or resume the training to its end"
        )
    read_model(home)  # refused before gigabytes are written
    draft = out.absolute().parent / f".{out.name}.part-{os.getpid()}"
    try:
        draft.mkdir(parents=True)
        files = _write(weights, draft, file_bytes, advance)
        for source in (tokenizer, home):
            for name in _BESIDE if source is not None else ():
                path = source / name  # type: ignore[operator]
                if path.is_file() and not (draft / name).exists() and (name != "config.json" or source is home):
                    shutil.copyfile(path, draft / name)
        draft.rename(out)
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{out} cannot be written: {error}; free some space, or choose another --out") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return ExportedModel(out, files, len(weights.tensors), sum(one.bytes for one in weights.tensors))


def require_shards(checkpoint: Path) -> Path:
    """The folder with a checkpoint's shards.

    Raises:
        ConfigError: it has none; says what it is instead.
    """
    if not checkpoint.is_dir():
        raise ConfigError(f"CHECKPOINT: there is no folder {checkpoint}; give one such as trained/checkpoint-100")
    shards = find_shards(checkpoint)
    if shards is not None:
        return shards
    if any(checkpoint.glob("*.safetensors")):
        raise ConfigError(
            f"CHECKPOINT: {checkpoint} holds whole weights already; use it as it is; with packtrain sample, "
            "give --tokenizer, as checkpoints hold none"
        )
    if is_zero(checkpoint):
        raise ConfigError(
            f"CHECKPOINT: {checkpoint} holds pieces of DeepSpeed's ZeRO, which packtrain does not gather: run the "
            "zero_to_fp32.py that DeepSpeed wrote into it. With zero3_save_16bit_model: true, as in packtrain launch "
            "zero3, checkpoints hold whole weights"
        )
    raise ConfigError(
        f"CHECKPOINT: {checkpoint} holds no sharded weights (pytorch_model_fsdp_0/.metadata); give a folder such as "
        "trained/checkpoint-100"
    )


def _write(weights: ShardedWeights, folder: Path, file_bytes: int, advance: Callable[[int], None]) -> int:
    """Write files of weights and their index; returns the number of files."""
    from safetensors.torch import save_file

    groups = list(by_bytes(weights.tensors, file_bytes))
    where: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        name = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        read: dict[str, Any] = weights.read(group)
        save_file(read, str(folder / name), metadata={"format": "pt"})
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
        where |= dict.fromkeys(read, name)
        advance(sum(one.bytes for one in group))
        del read
    if len(groups) > 1:
        total = sum(one.bytes for one in weights.tensors)
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return len(groups)
