"""Divides a batch of packed rows among the devices of a context-parallel group. Legend: `T` tokens, `D` documents."""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ..schemas.errors import ConfigError
from ..schemas.layout import ParallelLayout
from ..schemas.ragged import ranges
from ..schemas.rows import IGNORE_INDEX
from ..schemas.tables.columns import SIDES


def cp_part(batch: Mapping[str, Any], rank: int, size: int, layout: str) -> dict[str, Any]:
    """The tokens of a batch that one device of a context-parallel group holds.

    `thd`: every document has 2·size equal chunks, and rank r holds chunks r and 2·size - 1 - r of each, so that all
    have the same causal work (as TransformerEngine's `thd_get_partitioned_indices`). Other layouts: the r-th contiguous
    part of the sequence. `cu_seq_lens_*` and `max_length_*` stay as they are, for the whole sequence. `shift_labels` is
    added, the label of each token's successor, which another device may hold; and `shift_loss_weights`, if there are
    weights.

    Args:
        batch: as `flatten` makes it.
        rank: of the device in its group. All devices of a group take the same batch.
        size: devices of the group.
        layout: `thd`, `ring` or `ulysses`, as in the data's `pack.parallel`.

    Raises:
        ConfigError: the documents, or the sequence, cannot be divided equally, or the layout is not known; or the batch
            has preference pairs.
    """
    if SIDES in batch:
        # Each device would have the log-probability of a part of a side, and the loss is not a sum over parts.
        raise ConfigError(
            "preference pairs are not divided among the devices of a context-parallel group: a pair's loss needs the "
            "log-probabilities of its whole sides; leave context parallelism out"
        )
    if layout not in get_args(ParallelLayout):
        raise ConfigError(f"layout={layout!r}: choose one of {', '.join(get_args(ParallelLayout))}")
    if not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size} devices: ranks count from 0")
    bounds = batch["cu_seq_lens_q"].numpy().astype(np.int64)
    parallel = f"{{cp: {size}, layout: {layout}}}"
    if layout == "thd":
        # Tokens of a late chunk see more keys. With an early chunk and a late one each, all ranks see equally many.
        chunks_of_rank = np.array([rank, 2 * size - 1 - rank])
        places = _places_of_chunks(bounds, count=2 * size, chunks=chunks_of_rank, unit="document", parallel=parallel)
    else:
        whole = bounds[[0, -1]]  # the sequence, as if it were one document
        places = _places_of_chunks(whole, count=size, chunks=np.array([rank]), unit="sequence", parallel=parallel)
    sequence = dict(batch)
    # Each value moves to the token before its own, and `fill` comes last: labels -100 5 6 become 5 6 -100. A document's
    # first label is IGNORE_INDEX, so no token predicts one of another document.
    for name, fill in (("labels", IGNORE_INDEX), ("loss_weights", 0)):
        if name in batch:
            sequence[f"shift_{name}"] = torch.nn.functional.pad(batch[name][:, 1:], (0, 1), value=fill)
    index = torch.from_numpy(places)
    for name, value in sequence.items():
        if isinstance(value, torch.Tensor) and value.ndim == 2:  # a value for each token: (1, T)
            sequence[name] = value[:, index]
    return sequence


def _places_of_chunks(
    bounds: NDArray[np.int64], count: int, chunks: NDArray[np.int64], unit: str, parallel: str
) -> NDArray[np.int64]:
    """The places of some chunks of every unit, in the order of the sequence.

    Documents of 8 and 4 tokens have bounds 0, 8, 12. For rank 0 of 2, `count` is 4 and `chunks` are 0 and 3: of the
    first document these are places 0 1 and 6 7, of the second 8 and 11.

    Args:
        bounds: (U + 1,) where the units begin, and the last one ends.
        count: chunks of each unit.
        chunks: which, counted from 0.
        unit: what is divided, for messages.
        parallel: `pack.parallel` by which it could be divided, for messages.

    Raises:
        ConfigError: a unit cannot be divided equally.
    """
    lengths = np.diff(bounds)
    chunk_lengths: NDArray[np.int64] = lengths // count
    is_uneven = lengths % count > 0
    if is_uneven.any():
        tokens = int(lengths[is_uneven][0])
        raise ConfigError(
            f"a {unit} of {tokens:,} tokens cannot be divided into {count} chunks; pack again with pack.parallel: "
            f"{parallel}"
        )
    # (U, chunks): in the example, chunks have 2 and 1 tokens, and begin at [[0, 6], [8, 11]].
    begins: NDArray[np.int64] = bounds[:-1, None] + chunk_lengths[:, None] * chunks
    return ranges(begins.ravel(), np.repeat(chunk_lengths, len(chunks)))
