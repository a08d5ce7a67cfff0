"""Sharded checkpoints of torch (FSDP), gathered into one model.

A checkpoint's index is a pickle. It is read with a list of the classes that an index needs: any other is refused, so
that nothing in the folder can run code. Tensors are read by torch with `weights_only`. The folder appears when it is
complete.
"""

import math
import os
import pickle
import re
import shutil
import warnings
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any

from ...schemas.errors import ConfigError, IntegrityError, OutputError, StoreError
from ...schemas.files.foreign import LISTING_BYTES, open_regular, read_regular
from ...schemas.files.safe_names import check_name
from .model import read_config

_BESIDE = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "tokenizer.model", "vocab.json", "merges.txt",
)  # fmt: skip
"""Files beside a checkpoint's shards that belong to the model, and are copied."""
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
"""Module → names in it that an index may use."""
_SLACK = 4
"""The tensors may take this many times as many bytes as the files: more is never allocated. It is not 1, because a file
that was cut short is better named when it is read."""
_WRAPPERS = re.compile(r"(_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What wrappers of a model put before the names of its weights, anywhere."""


def find_shards(checkpoint: Path) -> Path | None:
    """The folder with a checkpoint's sharded weights, as accelerate names it; None if it has none."""
    folder = checkpoint / "pytorch_model_fsdp_0"
    return folder if (folder / _INDEX).is_file() else None


def export_checkpoint(checkpoint: Path, out: Path) -> None:
    """Gather a checkpoint's weights into a folder that transformers loads. The whole model must fit into memory.

    Args:
        checkpoint: a folder `checkpoint-N` of a training with FSDP.
        out: a folder that does not exist yet.

    Raises:
        ConfigError: the folder is no sharded checkpoint, is damaged, or the configuration is missing.
        IntegrityError: its index is damaged, or holds anything but an index.
        OutputError: `out` exists.
        StoreError: writing failed.
    """
    from huggingface_hub import save_torch_state_dict
    from safetensors import SafetensorError

    shards = find_shards(checkpoint)
    if shards is None:
        raise ConfigError(
            f"CHECKPOINT: {checkpoint} holds no sharded weights (pytorch_model_fsdp_0/.metadata); give a folder such "
            "as trained/checkpoint-100. Whole weights (*.safetensors) need no export; pieces of DeepSpeed's ZeRO are "
            "gathered by the zero_to_fp32.py that lies beside them"
        )
    if out.exists():
        raise OutputError(f"--out {out} exists; remove it, or choose another folder")
    if not (checkpoint / "config.json").is_file():
        raise ConfigError(f"{checkpoint} has no config.json; copy that of the model that was trained into it")
    read_config(checkpoint)  # refused before gigabytes are read
    weights = read_weights(shards)
    draft = out.absolute().parent / f".{out.name}.part-{os.getpid()}"
    try:
        draft.mkdir(parents=True)
        save_torch_state_dict(weights, draft, filename_pattern="model{suffix}.safetensors")
        for name in _BESIDE:
            if (checkpoint / name).exists():
                (draft / name).write_bytes(read_regular(checkpoint / name, limit=LISTING_BYTES, inside=[checkpoint]))
        draft.rename(out)
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{out} cannot be written: {error}; free some space, or choose another --out") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_weights(folder: Path) -> dict[str, Any]:
    """The tensors of a sharded checkpoint, whole, on the CPU, by the names that the model gives them.

    Raises:
        ConfigError: they are those of a model with adapters, or a file is missing or damaged.
        IntegrityError: its index is damaged, or names a class that an index does not need.
    """
    import torch
    from torch.distributed.checkpoint import FileSystemReader, load
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    metadata = read_index(folder / _INDEX)

    class Reader(FileSystemReader):  # type: ignore[misc]  # torch does not type it
        """Has the index that was read."""

        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            """The index, which torch would unpickle without a look at its classes."""
            return metadata

    listed = metadata.state_dict_metadata
    tensors = {key: entry for key, entry in listed.items() if isinstance(entry, TensorStorageMetadata)}
    for key, tensor in tensors.items():
        # The pieces must fill the tensor: elsewhere, what the memory held before would become weights.
        if math.prod(tensor.size) != sum(math.prod(piece.sizes) for piece in tensor.chunks):
            raise IntegrityError(f"{folder / _INDEX} does not list all pieces of {key}; copy the checkpoint again")
    # accelerate puts `model.` before all names.
    names = {key: _WRAPPERS.sub("", key.removeprefix("model.")) for key in tensors}
    if any(".lora_" in name or name.startswith("base_model.") for name in names.values()):
        raise ConfigError(
            f"{folder} holds a model with adapters; the export at the end of the training is the adapter alone: take "
            "that, or resume the training to its end"
        )
    # A damaged or hostile index could ask for more memory than there is.
    needed = sum(math.prod(tensor.size) * tensor.properties.dtype.itemsize for tensor in tensors.values())
    held = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    if not 0 <= needed <= _SLACK * held:
        raise IntegrityError(
            f"{folder / _INDEX} lists tensors of {needed:,} bytes, and the files beside it have {held:,}; copy the "
            "checkpoint again"
        )
    weights = {key: torch.empty(tuple(tensor.size), dtype=tensor.properties.dtype) for key, tensor in tensors.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that there is one process
            load(weights, storage_reader=Reader(folder), no_dist=True)
    except CheckpointException as error:  # no Exception, and its text is a traceback
        causes = [cause for cause, _ in error.failures.values()]  # of each rank that failed, beside its traceback
        reason = " ".join(str(causes[0]).split()) if causes else "unknown"
        raise ConfigError(
            f"the checkpoint {folder} is damaged or incomplete: {reason[:300]}; copy it again, or take another"
        ) from error
    return {names[key]: tensor for key, tensor in weights.items()}


def read_index(path: Path) -> Any:
    """The index of a sharded checkpoint (torch.distributed.checkpoint.metadata.Metadata).

    Raises:
        IntegrityError: it is damaged, holds anything but an index, or names files outside of its folder.
    """
    from torch.distributed.checkpoint.metadata import Metadata

    try:
        index = _IndexReader(BytesIO(read_regular(path, limit=LISTING_BYTES, inside=[path.parent]))).load()
        if not isinstance(index, Metadata) or not isinstance(index.state_dict_metadata, dict):
            raise ValueError("it lists no tensors")
        for name in sorted({PurePath(info.relative_path).as_posix() for info in index.storage_data.values()}):
            check_name(name)
            # Opened for its refusals alone: of a file that is missing, no regular one, or a link out of the folder.
            open_regular(path.parent / name, inside=[path.parent]).close()
    except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError, IndexError) as error:
        raise IntegrityError(
            f"{path} cannot be read as the index of a checkpoint: {error}; take another checkpoint"
        ) from None
    return index


class _IndexReader(pickle.Unpickler):
    """An unpickler that knows the classes of an index, and refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        """The class or function that a pickle names; pickle calls it for each. Raises UnpicklingError for others than
        those of an index.
        """
        import torch

        if module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)):
            return getattr(torch, name)
        if module.startswith("pathlib") and name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"):
            return PurePath  # where it was written; never opened
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which an index does not need")
