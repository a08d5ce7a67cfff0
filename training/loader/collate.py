"""Turns packed rows into batches for a model."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ...schemas.ragged import lengths_of, offsets_of, starts_of
from ...schemas.rows import IGNORE_INDEX
from ..order.concat import ConcatRows
from ..shards.arrow_shard import RowSpan
from .context_parallel import ContextPart
from .loss_weights import any_weighted, weights_of

_LOG = logging.getLogger(__name__)
Take = Callable[[int], torch.Tensor]
"""A function that returns an uninitialised (1, size) tensor of int64."""
_TOKENS = ("input_ids", "labels", "position_ids")
_AS_THEY_ARE = ("seq_idx", "loss_weights", "shift_loss_weights")
"""Columns that keep their type; the others become int64."""


def fresh(size: int) -> torch.Tensor:
    """Return a new tensor."""
    return torch.empty((1, size), dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class FixedShape:
    """The size to which every row is padded, so that all batches have the same shape.

    A row's padding is a separate, untrained document; unused entries of `cu_seq_lens` are empty documents. So R rows
    have R·C tokens, R·(docs + 1) + 1 entries of `cu_seq_lens_q` and `_k`, and C as `max_length_q` and `_k`.
    """

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

    def padded(self, rows: Sequence[RowSpan]) -> list[RowSpan]:
        """Return each row, and behind it its padding.

        Raises:
            ValueError: a row does not fit.
        """
        size, room = self.length, self.docs + 1
        ids, positions = np.full(size, self.pad_id, np.int32), np.arange(size, dtype=np.int32)
        labels, weights = np.full(size, IGNORE_INDEX, np.int32), np.zeros(size, np.float32)
        spans = []
        for row in rows:
            left, docs = size - len(row.input_ids), room - len(row.seq_lengths)
            if left < 0 or docs < 1:
                raise ValueError(f"a row of {size - left:,} tokens and {room - docs:,} documents does not fit {self}")
            lengths = np.zeros(docs, np.int32)
            lengths[0] = left
            padding = RowSpan(ids[:left], labels[:left], positions[:left], lengths)
            padding.seq_lengths_unpadded, padding.loss_weights = np.zeros_like(lengths), weights[:left]
            spans += [row, padding]
        return spans


@dataclass(frozen=True, slots=True)
class Collator:
    """Concatenates the rows of a batch into one sequence, with document boundaries in `cu_seq_lens`.

    A batch has `input_ids`, `labels`, `position_ids`: int64 (1, T); `cu_seq_lens_q`, `cu_seq_lens_k`: int32 (D + 1,);
    `max_length_q`, `max_length_k`: ints, because a tensor would cost a device synchronisation in every layer;
    `use_cache`: False, because the cache's mask lets documents see each other. Never an attention mask.
    """

    seq_idx: bool = False
    """Also return `seq_idx`, int32 (1, T): the number of each token's document, for convolution and state-space
    layers.
    """
    weights: bool | None = None
    """Also return `loss_weights`, float32 (1, T): the weight of each label, at the label's own token, 0 where there is
    none. None does so if a row has some.
    """
    unpadded: bool | None = None
    """Also return `cu_seq_lens_unpadded`, int32 (D + 1,): the running sum of lengths without padding, or of
    `seq_lengths` for rows that do not say them. None does so if a row says them.
    """
    shape: FixedShape | None = None
    """Pad every row to this."""
    context: ContextPart | None = None
    """Return only this part of the tokens, and `shift_labels` (see `ContextPart.held`)."""
    take: Take = fresh
    """Makes the int64 tensors, for example `Buffers.tensor`."""

    def batches(self, spans: Sequence[RowSpan], share: int = 0) -> list[dict[str, Any]]:
        """Make batches of `share` rows each; by default, one of all rows.

        The int64 tensors of all batches are parts of one array, so each keeps the memory of all.
        """
        weights = any_weighted(spans) if self.weights is None else self.weights
        unpadded = self.unpadded
        if unpadded is None:
            unpadded = any(span.seq_lengths_unpadded is not None for span in spans)
        if self.shape is not None:
            spans, share = self.shape.padded(spans), 2 * share
        tokens, docs = _ends(spans, share)
        lengths = np.concatenate([span.seq_lengths for span in spans])
        columns: dict[str, list[NDArray[Any]]] = {name: [getattr(span, name) for span in spans] for name in _TOKENS}
        if weights:
            columns["loss_weights"] = [weights_of(span) for span in spans]
        if self.seq_idx:
            own_docs = np.arange(len(lengths), dtype=np.int32) - np.repeat(docs[:-1], np.diff(docs)).astype(np.int32)
            edges = np.cumsum(lengths_of([span.input_ids for span in spans[:-1]]))
            columns["seq_idx"] = np.split(np.repeat(own_docs, lengths), edges)
        if self.context is not None:
            columns, tokens = self.context.held(columns, lengths, tokens)
        widths = [end - begin for begin, end in pairwise(tokens)]
        wide = [name for name in columns if name not in _AS_THEY_ARE]
        found = dict(zip(wide, _widened([columns[name] for name in wide], widths, self.take), strict=True))
        # The others follow in the order of the columns.
        more = {
            name: _cut(torch.from_numpy(np.concatenate(arrays)[None]), widths) if name in _AS_THEY_ARE else found[name]
            for name, arrays in islice(columns.items(), len(_TOKENS), None)
        }
        if unpadded:
            own = [
                span.seq_lengths if span.seq_lengths_unpadded is None else span.seq_lengths_unpadded for span in spans
            ]
            more["cu_seq_lens_unpadded"] = _running_sums(np.concatenate(own), docs)
        batches = []
        numbers = lengths.tolist()
        for number, (ids, labels, positions, bounds) in enumerate(
            zip(*(found[name] for name in _TOKENS), _running_sums(lengths, docs), strict=True)
        ):
            # faster than the array's own method, for few numbers
            longest = max(numbers[docs[number] : docs[number + 1]], default=0)
            longest = longest if self.shape is None else self.shape.length
            batch = {
                "input_ids": ids,
                "labels": labels,
                "position_ids": positions,
                "cu_seq_lens_q": bounds,
                "cu_seq_lens_k": bounds,
                "max_length_q": longest,
                "max_length_k": longest,
                "use_cache": False,
            }
            for name, tensors in more.items():
                batch[name] = tensors[number]
            batches.append(batch)
        return batches


def flatten(
    rows: Sequence[RowSpan],
    *,
    seq_idx: bool = False,
    weights: bool | None = None,
    shape: FixedShape | None = None,
    context: ContextPart | None = None,
) -> dict[str, Any]:
    """Concatenate all rows into one batch; see `Collator`."""
    return Collator(seq_idx, weights, shape=shape, context=context).batches(rows)[0]


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


def _ends(spans: Sequence[RowSpan], share: int) -> tuple[list[int], list[int]]:
    """Where each batch of `share` rows begins and the last one ends, in tokens and in documents; of all rows for 0."""
    tokens, docs = [0], [0]
    if not share:
        return [0, sum(len(span.input_ids) for span in spans)], [0, sum(len(span.seq_lengths) for span in spans)]
    for span in spans:
        if span.bounds is None:
            tokens.append(tokens[-1] + len(span.input_ids))
            docs.append(docs[-1] + len(span.seq_lengths))
        else:
            for ends, bounds in zip((tokens, docs), span.bounds, strict=True):
                shift = ends[-1] - bounds[0]
                ends += [bound + shift for bound in bounds[1:]]
    return tokens[::share], docs[::share]


def _running_sums(lengths: NDArray[np.int32], docs: list[int]) -> Sequence[torch.Tensor]:
    """For each batch, int32 (D + 1,) the running sum of its documents' lengths, from 0 on."""
    if len(docs) == 2:
        return [torch.from_numpy(offsets_of(lengths, np.int32))]
    numbers = lengths.tolist()
    sums = chain.from_iterable(accumulate(numbers[begin:end], initial=0) for begin, end in pairwise(docs))
    widths = [end - begin + 1 for begin, end in pairwise(docs)]
    return _cut(torch.from_numpy(np.fromiter(sums, np.int32, sum(widths))), widths)


def _widened(columns: list[list[NDArray[np.int32]]], widths: list[int], take: Take) -> list[Sequence[torch.Tensor]]:
    """For each column, the part of each batch, int64 (1, width): copied and converted in one pass over memory."""
    out = take(len(columns) * sum(widths))
    np.concatenate(list(chain.from_iterable(columns)), out=out.numpy()[0])
    count = len(widths)
    if count == 1:  # with the strides of tensors of its own, which compiled steps look at
        return [[part] for part in torch.unsafe_split(out.view(len(columns), widths[0]), 1)]
    parts = _cut(out, widths * len(columns))
    return [parts[begin : begin + count] for begin in range(0, len(parts), count)]


def _cut(values: torch.Tensor, widths: list[int]) -> Sequence[torch.Tensor]:
    """Parts of these widths, of the last axis."""
    # Several times as fast as making tensors of slices. "unsafe" means that a change in place of one part is not
    # recorded for the others, whose values it does not touch.
    parts: Sequence[torch.Tensor] = torch.unsafe_split_with_sizes(values, widths, -1)
    return parts
