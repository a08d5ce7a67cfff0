"""Sharded checkpoints of torch (FSDP), gathered into one model, file by file.

A checkpoint's index is a pickle. It is read with a list of the classes that an index needs: any other is refused, so
that nothing in the folder can run code. Tensors are read by torch with `weights_only`. At most one file of weights is
in memory at a time, whatever the model's size. The folder appears when it is complete.
"""

import json
import math
import os
import pickle
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ..schemas.errors import ConfigError, IntegrityError, OutputError, StoreError
from ..schemas.names import check_name
from .model import read_config

FILE_BYTES = 1 << 30
"""Weights in one file, unless one tensor has more."""
_BESIDE = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "tokenizer.model", "vocab.json", "merges.txt",
)  # fmt: skip

_INDEX = ".metadata"
_CHECKPOINT = "torch.distributed.checkpoint."
_CLASSES = {
    f"{_CHECKPOINT}metadata": {
        "Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
        "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING",
    },
    f"{_CHECKPOINT}filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "builtins": {"set"},
}  # fmt: skip
_PREFIXES = ("_orig_mod.", "module.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What wrappers of a model put before the names of its weights, anywhere."""


def find_shards(checkpoint: Path) -> Path | None:
    """The folder with a checkpoint's sharded weights: itself, or one in it; None if it has none."""
    for folder in (checkpoint, checkpoint / "pytorch_model_fsdp_0", checkpoint / "model"):
        if (folder / _INDEX).is_file():
            return folder
    return None


def is_zero(checkpoint: Path) -> bool:
    """Whether a checkpoint holds DeepSpeed's pieces."""
    return any(checkpoint.glob("global_step*/*zero_pp_rank_*")) or any(checkpoint.glob("zero_pp_rank_*"))


class ShardedWeights:
    """The weights of a sharded checkpoint, by the names that the model gives them.

    Raises:
        IntegrityError: its index is damaged, or names a class that an index does not need.
    """

    def __init__(self, folder: Path) -> None:
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

        self._folder = folder
        metadata = read_index(folder / _INDEX)
        try:
            for info in metadata.storage_data.values():
                check_name(PurePath(info.relative_path).as_posix())
        except (AttributeError, TypeError, ValueError) as error:
            raise IntegrityError(
                f"{folder / _INDEX} names files outside of its folder ({error}); do not use it"
            ) from None

        class Reader(FileSystemReader):  # type: ignore[misc]  # torch does not type it
            """Reads the index as `read_index` does."""

            def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
                """See torch."""
                return metadata

        self._reader = Reader(folder)
        if not isinstance(metadata.state_dict_metadata, dict):
            raise IntegrityError(f"{folder / _INDEX} lists no tensors; it is damaged")
        found = {k: one for k, one in metadata.state_dict_metadata.items() if isinstance(one, TensorStorageMetadata)}
        for key, one in found.items():
            if math.prod(one.size) != sum(math.prod(piece.sizes) for piece in one.chunks):
                raise IntegrityError(f"{folder / _INDEX} does not list all pieces of {key}; copy the checkpoint again")
        names = {_plain(key): key for key in found}
        if all(name.startswith("model.") for name in names) and _is_wrapped(metadata):
            names = {name.removeprefix("model."): key for name, key in names.items()}
        self._keys, self._found = dict(sorted(names.items())), found
        self.sizes = {
            name: math.prod(found[key].size) * int(found[key].properties.dtype.itemsize)
            for name, key in self._keys.items()
        }
        """Bytes of each tensor once it is read, by name, in order."""

    def read(self, names: list[str]) -> dict[str, Any]:
        """Tensors by their names, whole, on the CPU.

        Raises:
            ConfigError: a file is missing or damaged.
        """
        import torch
        from torch.distributed.checkpoint import load
        from torch.distributed.checkpoint.api import CheckpointException

        wanted = {self._keys[name]: self._found[self._keys[name]] for name in names}
        read = {key: torch.empty(tuple(one.size), dtype=one.properties.dtype) for key, one in wanted.items()}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that there is one process
                load(read, storage_reader=self._reader, no_dist=True)
        except CheckpointException as error:  # no Exception, and its text is a traceback
            causes = [cause for cause, _ in error.failures.values()]
            said = " ".join(str(causes[0]).split()) if causes else "unknown"
            raise ConfigError(
                f"the checkpoint {self._folder} is damaged or incomplete: {said[:300]}; copy it again, or take another"
            ) from error
        return {name: read[self._keys[name]] for name in names}


def read_index(path: Path) -> Any:
    """The index of a sharded checkpoint (torch.distributed.checkpoint.metadata.Metadata).

    Raises:
        IntegrityError: it is damaged, or holds anything but an index.
    """
    from torch.distributed.checkpoint.metadata import Metadata

    try:
        with path.open("rb") as file:
            found = _IndexReader(file).load()
    except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError, IndexError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}; it is damaged, or not a checkpoint's index") from None
    if not isinstance(found, Metadata):
        raise IntegrityError(f"{path} holds no index of a checkpoint; give the folder of a checkpoint")
    return found


class _IndexReader(pickle.Unpickler):
    """An unpickler that knows the classes of an index, and refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        """See `pickle.Unpickler`."""
        import torch

        if module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)):
            return getattr(torch, name)
        if module.startswith("pathlib") and name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"):
            return PurePath  # where it was written; never opened
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which an index does not need")


def _plain(key: str) -> str:
    for prefix in _PREFIXES:
        key = key.replace(prefix, "")
    return key


def _is_wrapped(metadata: Any) -> bool:
    """Whether the checkpoint is a mapping with the model under `model`, as accelerate writes it."""
    planned = metadata.planner_data
    return isinstance(planned, dict) and all(
        isinstance(path, tuple) and path[0] == "model" and len(path) == 2 for path in planned.values()
    )


# One model


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
) -> ExportedModel:
    """Gather a checkpoint's weights into a folder that transformers loads.

    Args:
        base: the model that was trained, for checkpoints without a config.json.
        tokenizer: a folder whose tokenizer is copied beside the weights.
        file_bytes: most bytes of weights in one file, and in memory.

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
    if any(".lora_" in name or name.startswith("base_model.") for name in weights.sizes):
        raise ConfigError(
            f"{shards} holds a model with adapters; the export at the end of the training is the adapter alone: take "
            "that, or resume the training to its end"
        )
    read_config(home)  # refused before gigabytes are written
    draft = out.absolute().parent / f".{out.name}.part-{os.getpid()}"
    try:
        draft.mkdir(parents=True)
        files = _write(weights, draft, file_bytes)
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
    return ExportedModel(out, files, len(weights.sizes), sum(weights.sizes.values()))


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
        raise ConfigError(f"CHECKPOINT: {checkpoint} holds whole weights already; use it as it is")
    if is_zero(checkpoint):
        raise ConfigError(
            f"CHECKPOINT: {checkpoint} holds pieces of DeepSpeed's ZeRO, which packtrain does not gather: run the "
            "zero_to_fp32.py that DeepSpeed wrote into it. With zero3_save_16bit_model: true, as in packtrain train "
            "--recipe zero3, checkpoints hold whole weights"
        )
    raise ConfigError(
        f"CHECKPOINT: {checkpoint} holds no sharded weights (pytorch_model_fsdp_0/.metadata); give a folder such as "
        "trained/checkpoint-100"
    )


def _write(weights: ShardedWeights, folder: Path, file_bytes: int) -> int:
    """Write files of weights and their index; returns the number of files."""
    from safetensors.torch import save_file

    groups: list[list[str]] = [[]]
    room = file_bytes
    for name, size in weights.sizes.items():
        if size > room and groups[-1]:  # a larger tensor is a file of its own
            groups.append([])
            room = file_bytes
        groups[-1].append(name)
        room -= size
    where: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        file = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        save_file(weights.read(group), str(folder / file), metadata={"format": "pt"})
        with (folder / file).open("rb") as written:
            os.fsync(written.fileno())
        where |= dict.fromkeys(group, file)
    if len(groups) > 1:
        index = {"metadata": {"total_size": sum(weights.sizes.values())}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return len(groups)
