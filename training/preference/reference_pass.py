"""Computes the reference of a preference training once, by the policy's own forward pass, or reads what was computed.

A reference must come from the policy's own forward pass. From another kernel, precision or form of batches, it differs
from the policy by more than a first step changes, and the first steps of a training undo that difference.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ...schemas.errors import ConfigError, PacktrainError, StoreError
from ...schemas.fingerprint import new_hasher
from ...schemas.ragged import offsets_of
from ...schemas.tables.columns import SIDES
from ...schemas.units import plural
from ..branches import require_attention
from ..loader import PackedLoader
from .reference import Reference, digest_of, read_reference, write_reference

if TYPE_CHECKING:
    from ..attention.packed_attention import Applied

_LOG = logging.getLogger(__name__)

LogpsOf = Callable[[dict[str, Any]], torch.Tensor]
"""`logps_of(batch)`: the log-probabilities of a batch's D documents, (D,): sums over the trained tokens of each."""
Progress = Callable[[int, int], None]
"""`progress(done, rows)`: called after each pass, with the rows that are computed on all ranks, of how many."""
_Value = TypeVar("_Value")


def _no_progress(done: int, rows: int) -> None:
    """The `progress` of callers that want to hear nothing."""


_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
"""What torch puts into names of weights inside of a model; they are the same weights."""


# By what a reference is computed


def hash_weights(model: torch.nn.Module) -> str:
    """The hash of a model's weights: their names, types, shapes and values, 64 hexadecimal digits.

    With FSDP 2, every rank must call it: each weight is gathered, one at a time.

    Raises:
        ConfigError: the weights cannot be read as a whole (ZeRO-3), or the model has adapters.
    """
    from ..models.model_parts import unwrap, wrappers_of

    if any(hasattr(wrapper, "peft_config") for wrapper in wrappers_of(model)):
        raise ConfigError(
            "the model has adapters: their base model is the reference, so take its hash before they are added"
        )
    if any(hasattr(parameter, "ds_shape") for parameter in model.parameters()):
        raise ConfigError("under ZeRO-3 no rank has a model's weights; take their hash before DeepSpeed divides them")
    hasher = new_hasher()
    for name, tensor in sorted(unwrap(model).state_dict().items()):
        if not isinstance(tensor, torch.Tensor):  # a layer may keep other things there, such as scales of FP8
            continue
        weight = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # of all its shards
        for wrapper in _WRAPPERS:  # in the name of a weight of a compiled or checkpointed layer
            name = name.replace(wrapper, "")
        hasher.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        # As bytes: numpy has no bfloat16.
        content = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        hasher.update(memoryview(content.numpy()))
    return hasher.hexdigest()


def reference_key(loader: PackedLoader, model: torch.nn.Module, attention: "Applied", weights: str) -> dict[str, str]:
    """By what a reference is computed: a text for each of `KEYS`.

    Call it where the model's forward is called, under the same autocast, whose dtype is part of the key.

    Args:
        loader: gives the rows, and says whether they are unpacked.
        attention: what computes the model's attention, on its device.
        weights: what `hash_weights` gave for the model.

    Raises:
        ConfigError: documents share tokens, and this attention does not follow their paths.
    """
    if loader.corpus.shares_tokens and not loader.unpacked:
        # Any other attention would compute pieces as if they were documents, and the file would keep that.
        require_attention(attention, loader.corpus.files.address)
    parameters = list(model.parameters())
    types = {str(parameter.dtype).removeprefix("torch.") for parameter in parameters if parameter.is_floating_point()}
    dtype = ", ".join(sorted(types))
    device = parameters[0].device.type
    if torch.is_autocast_enabled(device):
        dtype += f" under autocast to {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}"
    return {
        "rows": loader.corpus.fingerprint,
        "weights": weights,
        "dtype": dtype,
        "attention": attention.name + (", one document a row" if loader.unpacked else ""),
        "kernel": attention.kernel,
    }


# Computed once, then read


def reference_logps(
    model: torch.nn.Module,
    loader: PackedLoader,
    file: str | Path,
    logps_of: LogpsOf,
    *,
    progress: Progress = _no_progress,
) -> Reference:
    """The reference of a training loop: read from its file, or computed by the model as it is now, and stored there.

    Call it before the first step, with the weights of the reference: also when training is resumed, before the weights
    of the checkpoint are loaded. Trained weights are refused, because their hash differs. Every rank must call it.

    Args:
        model: the reference. It is in eval mode during the pass.
        loader: of the training, whose rows, ranks and form of batches are taken.
        file: the Arrow file, beside the dataset or the training.
        logps_of: the policy's own forward pass, so that both differ by nothing else than the weights.
        progress: called as rows are computed. The file is written at the end: a pass that is interrupted begins again.

    Raises:
        ConfigError: the file is of other rows, weights, precision or attention; the data has no preference pairs.
        PacktrainError: a log-probability is not a number.
        StoreError: the file cannot be written.
    """
    from ..attention.packed_attention import applied_on

    device = next(model.parameters()).device
    key = reference_key(loader, model, applied_on(model, device), hash_weights(model))
    was_training = model.training
    model.eval()
    try:
        return stored_reference(file, key, loader, logps_of, device, progress=progress)
    finally:
        model.train(was_training)


def stored_reference(
    file: str | Path,
    key: Mapping[str, str],
    loader: PackedLoader,
    logps_of: LogpsOf | None,
    device: torch.device,
    *,
    rows: int | None = None,
    progress: Progress = _no_progress,
) -> Reference:
    """The reference in a file; if there is none, it is computed, and the first rank writes it. Every rank must call it.

    Only the first rank reads the file, because a folder may be on its machine alone.

    Args:
        key: what `reference_key` gave.
        loader: its rows are computed in batches of the size and form that the policy gets.
        logps_of: the reference's forward pass, in eval mode; None where the model's weights are trained already, so
            that a missing file is an error.
        device: of tensors that ranks exchange.
        rows: only the first so many rows of the split; None for all.
        progress: called as rows are computed.

    Raises:
        ConfigError: the file is of other rows, weights, precision or attention, or is missing and cannot be computed;
            the data has no preference pairs.
        PacktrainError: a log-probability is not a number.
        StoreError: the file cannot be written.
    """
    if not loader.corpus.has_pairs:
        raise ConfigError(
            f"{loader.corpus.files.address} has no preference pairs, and needs no reference; pack sources of format "
            "preference"
        )
    count = len(loader.corpus) if rows is None else min(rows, len(loader.corpus))
    world_size = loader.place.world_size
    _require_ranks(world_size)
    is_first = world_size == 1 or dist.get_rank() == 0
    path = Path(file)
    stored: Reference | PacktrainError | None = None
    if is_first:
        try:
            stored = read_reference(path, key, count, loader.corpus.max_docs)
        except PacktrainError as error:
            stored = error
    # Errors too: a rank that went on alone would wait for the others.
    stored = _from_first_rank(stored, device, world_size)
    if isinstance(stored, PacktrainError):
        raise stored
    if stored is not None:
        return stored
    if logps_of is None:
        raise ConfigError(
            f"there is no reference {path}, and it cannot be computed from weights that are trained already; put the "
            "file of this training back, or start again from the beginning"
        )
    reference = _computed(key, loader, count, logps_of, device, progress)
    failure: StoreError | None = None
    if is_first:
        try:
            write_reference(path, reference)
        except StoreError as error:
            failure = error
    failure = _from_first_rank(failure, device, world_size)
    if failure is not None:
        raise failure
    return reference


def _computed(
    key: Mapping[str, str],
    loader: PackedLoader,
    count: int,
    logps_of: LogpsOf,
    device: torch.device,
    progress: Progress,
) -> Reference:
    """The reference of the first `count` rows: rank r of w computes rows r, r + w, r + 2w, … in batches of the policy's
    size.

    Args:
        key: what `reference_key` gave.
        device: of tensors that ranks exchange.

    Raises:
        ConfigError: `logps_of` does not give one number for each document.
        PacktrainError: a log-probability is not a number.
    """
    rank = loader.place.rank
    world_size = loader.place.world_size
    size = loader.rows_per_batch
    # Filled for this rank's rows, and 0 for the rows of other ranks, so that the sum over all ranks has every row.
    lengths = np.zeros(count, np.int64)
    row_digests = np.zeros((count, 2), np.int64)
    logps_of_rows: dict[int, NDArray[np.float64]] = {}
    # Sharded models need all ranks in every pass, so all ranks make the same number of passes, and all batches have the
    # same size. Of 5 rows, in batches of 3, rank 1 of 2 gets places 1, 3 and 5: rows 1 and 3, and row 0 to fill up.
    passes = -(-count // (world_size * size))
    _LOG.info("computing the reference of %s in %s", plural(count, "row"), plural(passes, "pass", "passes"))
    for number in range(passes):
        places = [(number * size + place) * world_size + rank for place in range(size)]
        batch = loader.batch_of([place % count for place in places])
        # With static shapes, behind each row are documents of padding, which have no log-probability.
        is_side = batch[SIDES] >= 0
        with torch.no_grad():
            logps = logps_of(dict(batch))
        if logps.shape != is_side.shape:
            raise ConfigError(
                f"logps_of gives a tensor of shape {tuple(logps.shape)} for a batch of {len(is_side):,} documents; it "
                "must give one number for each document"
            )
        batch_logps = logps.cpu().double()[is_side].numpy()  # on the CPU: some devices have no float64
        begin = 0  # of a row's documents in the batch
        for row_number in places:
            if row_number >= count:  # from here on rows only fill the batch
                break
            row = loader.corpus.row(row_number)
            end = begin + len(row.seq_lengths)
            lengths[row_number] = len(row.seq_lengths)
            row_digests[row_number] = digest_of(row)
            logps_of_rows[row_number] = batch_logps[begin:end]
            begin = end
        progress(min((number + 1) * world_size * size, count), count)
    bounds = offsets_of(_summed(lengths, device, world_size))
    all_logps = np.zeros(bounds[-1])
    for row_number, row_logps in logps_of_rows.items():
        all_logps[bounds[row_number] : bounds[row_number + 1]] = row_logps
    all_logps = _summed(all_logps, device, world_size)
    unusable = np.flatnonzero(~np.isfinite(all_logps))
    if len(unusable):
        # With bounds 0 2 4 6, document 3 is in row 1: two bounds are at or before it.
        row_number = int(np.searchsorted(bounds, unusable[0], side="right")) - 1
        raise PacktrainError(
            f"the reference's log-probability of a document in row {row_number:,} is {all_logps[unusable[0]]}: its "
            "weights are unusable, or its precision too low; nothing was stored"
        )
    return Reference(dict(key), all_logps, bounds, _summed(row_digests, device, world_size))


# Ranks


def _require_ranks(world_size: int) -> None:
    """Raise ConfigError if torch.distributed joins another number of ranks than the loader divides rows among."""
    joined = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if joined != world_size:
        raise ConfigError(
            f"the loader divides rows among {plural(world_size, 'rank')}, and torch.distributed joins {joined:,}: call "
            "torch.distributed.init_process_group first; ranks that share rows (tensor parallelism) cannot compute a "
            "reference, so compute it with as many ranks as divide rows"
        )


def _summed(values: NDArray[Any], device: torch.device, world_size: int) -> NDArray[Any]:
    """The sum of an array over all ranks. Where all but one have 0, it is that one's number, to the bit."""
    if world_size == 1:
        return values
    tensor = torch.tensor(values, device=device)  # a copy, because what was read is not writable
    dist.all_reduce(tensor)
    summed: NDArray[Any] = tensor.cpu().numpy()
    return summed


def _from_first_rank(value: _Value, device: torch.device, world_size: int) -> _Value:
    """What the first rank has, on every rank; what others have is not looked at."""
    if world_size == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, device=device)
    return values[0]
