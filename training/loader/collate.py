"""Turns packed rows into batches for a model."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ...schemas.ragged import offsets_of, starts_of
from ...schemas.rows import IGNORE_INDEX
from ..order.concat import ConcatRows
from ..shards.arrow_shard import RowSpan
from .loss_weights import any_weighted, weights_of

_LOG = logging.getLogger(__name__)
Take = Callable[[int], NDArray[np.int64]]
"""A function that returns an uninitialised (1, size) array."""


def fresh(size: int) -> NDArray[np.int64]:
    """Return a new array."""
    return np.empty((1, size), dtype=np.int64)


def flatten(
    rows: Sequence[RowSpan], *, seq_idx: bool = False, take: Take = fresh, weights: bool | None = None
) -> dict[str, Any]:
    """Concatenate rows into one sequence, with document boundaries in `cu_seq_lens`.

    Args:
        seq_idx: also return the document number of each token.
        take: makes the arrays, for example `Buffers.take`.
        weights: also return `loss_weights`; None does so if a row has some.

    Returns:
        `input_ids`, `labels`, `position_ids`: int64 (1, T); `cu_seq_lens_q`, `cu_seq_lens_k`: int32 (D + 1,);
        `max_length_q`, `max_length_k`: ints, because a tensor would cost a device synchronisation in every layer;
        `use_cache`: False, because the cache's mask lets documents see each other; with `seq_idx`, int32 (1, T),
        the number of each token's document, for convolution and state-space layers; if the rows say how long their
        pieces are without padding, `cu_seq_lens_unpadded`, int32 (D + 1,), the running sum of these lengths; with
        `weights`, `loss_weights`, float32 (1, T), the weight of each label, at the label's own token, 0 where there is
        none. Never an attention mask.
    """
    lengths = rows[0].seq_lengths if len(rows) == 1 else np.concatenate([row.seq_lengths for row in rows])
    batch = _batch(
        _joined([row.input_ids for row in rows], take),
        _joined([row.labels for row in rows], take),
        _joined([row.position_ids for row in rows], take),
        lengths,
        max(lengths.tolist(), default=0),  # faster than the array's own method, for few numbers
        seq_idx,
    )
    given = [row.seq_lengths_unpadded for row in rows if row.seq_lengths_unpadded is not None]
    if given and len(given) == len(rows):
        batch["cu_seq_lens_unpadded"] = torch.from_numpy(offsets_of(np.concatenate(given), np.int32))
    if any_weighted(rows) if weights is None else weights:
        batch["loss_weights"] = torch.from_numpy(np.concatenate([weights_of(row) for row in rows])[None])
    return batch


def flatten_several(spans: Sequence[RowSpan], share: int, take: Take) -> list[dict[str, Any]]:
    """Make several batches of `share` rows each, at once; as `flatten` makes them one by one.

    The batches are parts of the same arrays, so each keeps the memory of all.

    Args:
        spans: from `row_spans`, without loss weights or lengths without padding; rows may be joined across batches.
    """
    columns = [
        _copied([getattr(span, name) for span in spans], take) for name in ("input_ids", "labels", "position_ids")
    ]
    token_ends, doc_ends = [0], [0]
    for span in spans:
        for ends, bounds in zip((token_ends, doc_ends), span.bounds or ([], []), strict=True):
            shift = ends[-1] - bounds[0]
            ends += [bound + shift for bound in bounds[1:]]
    tokens, docs = token_ends[::share], doc_ends[::share]
    lengths = np.concatenate([span.seq_lengths for span in spans])
    # A batch without documents has length 0; `reduceat` would take the next one's.
    longest = np.maximum.reduceat(np.append(lengths, np.int32(0)), docs[:-1]) * (np.diff(docs) > 0)
    # A running sum that begins again at 0 with every batch: before each stands the negative sum of the last one.
    sums = np.diff(offsets_of(lengths)[docs[:-1]], prepend=0)
    bounds_of_all = np.cumsum(np.insert(lengths, docs[:-1], -sums), dtype=np.int32)
    batches = []
    for number, (begin, end, most) in enumerate(zip(tokens[:-1], tokens[1:], longest.tolist(), strict=True)):
        first, last = docs[number], docs[number + 1]
        ids, labels, positions = [torch.from_numpy(column[:, begin:end]) for column in columns]
        cu_seq_lens = torch.from_numpy(bounds_of_all[first + number : last + number + 1])
        batches.append(_named(ids, labels, positions, cu_seq_lens, most))
    return batches


@dataclass(frozen=True, slots=True)
class FixedShape:
    """The size to which every row is padded, so that all batches have the same shape."""

    length: int
    """Tokens of a row with padding (C). Also the `max_length` passed to attention."""
    docs: int
    """Maximum number of documents in a row."""
    pad_id: int = 0

    @staticmethod
    def of(corpus: ConcatRows, static_shapes: bool | int, unpacked: bool, pad_id: int) -> "FixedShape | None":
        """The shape that a loader's `static_shapes` asks for.

        Raises:
            ConfigError: a row has more documents than that, or batches are unpacked.
        """
        if static_shapes is False:
            return None
        if unpacked:
            raise ConfigError(
                "static_shapes and unpacked exclude each other: padded rows differ in length; leave out one of the two"
            )
        most = corpus.max_docs
        if static_shapes is not True and static_shapes < most:
            raise ConfigError(
                f"static_shapes={static_shapes}: a row of this dataset has {most:,} documents; "
                f"take {most:,} or more, or pack again with pack.max_docs: {static_shapes}"
            )
        return FixedShape(corpus.max_length, most if static_shapes is True else static_shapes, pad_id)


def fix_shape(
    rows: Sequence[RowSpan], shape: FixedShape, *, seq_idx: bool = False, weights: bool | None = None
) -> dict[str, Any]:
    """Concatenate rows, each padded to C tokens, with `cu_seq_lens` of constant size.

    A row's padding is a separate, untrained document; unused entries of `cu_seq_lens` are empty documents.

    Returns:
        As `flatten`: int64 (1, R·C); `cu_seq_lens_q` and `_k` int32 (R·(docs + 1) + 1,); `max_length_q` and `_k` = C.
    """
    size, room = shape.length, shape.docs + 1
    ids = np.full((len(rows), size), shape.pad_id, dtype=np.int64)
    labels = np.full((len(rows), size), IGNORE_INDEX, dtype=np.int64)
    positions = np.zeros((len(rows), size), dtype=np.int64)
    lengths = np.zeros((len(rows), room), dtype=np.int32)
    unpadded = np.zeros_like(lengths)
    weighed = np.zeros((len(rows), size), dtype=np.float32)
    weights = any_weighted(rows) if weights is None else weights
    for number, row in enumerate(rows):
        end, docs = len(row.input_ids), len(row.seq_lengths)
        ids[number, :end] = row.input_ids
        labels[number, :end] = row.labels
        positions[number, :end] = row.position_ids
        positions[number, end:] = np.arange(size - end)
        lengths[number, :docs] = row.seq_lengths
        lengths[number, docs] = size - end
        if row.seq_lengths_unpadded is not None:
            unpadded[number, :docs] = row.seq_lengths_unpadded
        if weights:
            weighed[number, :end] = weights_of(row)
    flat_ids, flat_labels, flat_positions = (
        torch.from_numpy(column.reshape(1, -1)) for column in (ids, labels, positions)
    )
    batch = _batch(flat_ids, flat_labels, flat_positions, lengths.ravel(), size, seq_idx)
    if rows and all(row.seq_lengths_unpadded is not None for row in rows):
        batch["cu_seq_lens_unpadded"] = torch.from_numpy(offsets_of(unpadded.ravel(), np.int32))
    if weights:
        batch["loss_weights"] = torch.from_numpy(weighed.reshape(1, -1))
    return batch


def pinned(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch with its tensors in page-locked memory."""
    return {name: value.pin_memory() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def padding_share(rows: Sequence[RowSpan]) -> float:
    """Return the share of a batch of `unpack` that is padding."""
    lengths = np.concatenate([row.seq_lengths for row in rows])
    return 1 - float(lengths.sum()) / max(1, int(lengths.max(initial=0)) * len(lengths))


def warn_of_padding(corpus: ConcatRows, share: int) -> None:
    """Say how much of the batches of `unpack`, of `share` rows each, will be padding."""
    rows = [corpus.row(index) for index in range(min(len(corpus), 16 * share))]
    parts = [padding_share(rows[begin : begin + share]) for begin in range(0, len(rows), share)]
    _LOG.warning(
        "unpacked=True: documents are padded to the longest of their batch; %.0f %% of the tokens that the model "
        "computes will be padding. Packed batches have none",
        100 * sum(parts) / len(parts),
    )


def unpack(rows: Sequence[RowSpan], pad_id: int = 0, *, weights: bool | None = None) -> dict[str, Any]:
    """Make a batch with one document per row, padded to the longest, for models that cannot separate packed documents.

    Returns:
        `input_ids`, `labels`, `position_ids`, `attention_mask`: int64 (D, L), L the longest document; `use_cache`
        False; and `loss_weights`, float32 (D, L), as `flatten`. This undoes packing: the share of padding is what
        packing would have saved.
    """
    pieces = [
        (row, begin, begin + length)
        for row in rows
        for begin, length in zip(starts_of(row.seq_lengths).tolist(), row.seq_lengths.tolist(), strict=True)
    ]
    width = max((end - begin for _, begin, end in pieces), default=0)
    shape = (len(pieces), width)
    ids = np.full(shape, pad_id, dtype=np.int64)
    labels = np.full(shape, IGNORE_INDEX, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.int64)
    weighed = np.zeros(shape, dtype=np.float32)
    weights = any_weighted(rows) if weights is None else weights
    for index, (row, begin, end) in enumerate(pieces):
        ids[index, : end - begin] = row.input_ids[begin:end]
        labels[index, : end - begin] = row.labels[begin:end]
        mask[index, : end - begin] = 1
        if weights:
            weighed[index, : end - begin] = weights_of(row)[begin:end]
    positions = np.broadcast_to(np.arange(width, dtype=np.int64), shape).copy()
    return {
        "input_ids": torch.from_numpy(ids),
        "labels": torch.from_numpy(labels),
        "position_ids": torch.from_numpy(positions),
        "attention_mask": torch.from_numpy(mask),
        "use_cache": False,
        **({"loss_weights": torch.from_numpy(weighed)} if weights else {}),
    }


def _batch(
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    position_ids: torch.Tensor,
    lengths: NDArray[np.int32],
    longest: int,
    seq_idx: bool,
) -> dict[str, Any]:
    cu_seq_lens = torch.from_numpy(offsets_of(lengths, np.int32))
    batch = _named(input_ids, labels, position_ids, cu_seq_lens, longest)
    if seq_idx:
        numbers = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        batch["seq_idx"] = torch.from_numpy(numbers).unsqueeze(0)
    return batch


def _named(
    input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor, cu_seq_lens: torch.Tensor, longest: int
) -> dict[str, Any]:
    return {
        "input_ids": input_ids,
        "labels": labels,
        "position_ids": position_ids,
        "cu_seq_lens_q": cu_seq_lens,
        "cu_seq_lens_k": cu_seq_lens,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }


def _joined(arrays: Sequence[NDArray[np.int32]], take: Take) -> torch.Tensor:
    """Return (1, T) int64, copied and converted in one pass over memory."""
    return torch.from_numpy(_copied(arrays, take))


def _copied(arrays: Sequence[NDArray[np.int32]], take: Take) -> NDArray[np.int64]:
    out = take(sum(map(len, arrays)))
    flat, begin = out[0], 0
    for array in arrays:
        end = begin + len(array)
        flat[begin:end] = array
        begin = end
    return out
