"""Turns packed rows into batches for a model. Legend: `T` tokens, `D` documents (pieces) of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ..schemas.dataset.row_batch import Row
from ..schemas.errors import ConfigError
from ..schemas.layout import ParallelLayout
from ..schemas.ragged import offsets_of, ranges
from ..schemas.rows import IGNORE_INDEX
from ..schemas.tables.columns import COLUMNS, PARENTS, WEIGHTS
from .branches import expanded, path_arguments, require_attention
from .packed_rows import PackedRows

if TYPE_CHECKING:
    from .attention.packed_attention import Applied

_COLUMNS = ("input_ids", "labels", "position_ids")


class FixedShape(NamedTuple):
    """The size to which every row is padded, so that all batches have the same shape.

    A row's padding is in separate, untrained documents, none of them longer than one of the data may be; unused entries
    of `cu_seq_lens` are empty documents. So R rows have R·C tokens, R·(docs + ceil(C / longest)) + 1 entries of
    `cu_seq_lens_q` and `_k`, and `longest` as `max_length_q` and `_k`: with C = 8, longest = 4 and docs = 3, the row of
    documents 2, 1 is followed by padding of 4, 1 and 0 tokens.
    """

    length: int
    """Tokens of a row with padding (C)."""
    docs: int
    """Maximum number of documents in a row."""
    longest: int
    """Most tokens of a document, with padding. Also the `max_length` passed to attention."""
    pad_id: int

    @classmethod
    def of(cls, rows: PackedRows) -> "FixedShape":
        """The shape of a dataset's rows."""
        return cls(rows.row_length, rows.max_docs, rows.longest_allowed, rows.manifest.pad_id)

    def padding(self, row: Row) -> Row:
        """What comes behind a row: untrained tokens in documents of their own, and empty documents."""
        left = self.length - len(row.input_ids)
        documents = self.docs + -(-self.length // self.longest) - len(row.seq_lengths)
        begins = np.minimum(np.arange(documents + 1) * self.longest, left)
        lengths = np.diff(begins).astype(np.int32)
        ids, labels = (np.full(left, value, np.int32) for value in (self.pad_id, IGNORE_INDEX))
        positions = ranges(0, lengths).astype(np.int32)
        return Row(ids, labels, positions, lengths, seq_lengths_unpadded=np.zeros_like(lengths))


def flatten(rows: Sequence[Row], *, seq_idx: bool = False, shape: FixedShape | None = None) -> dict[str, Any]:
    """Concatenate rows into one sequence, with document boundaries in `cu_seq_lens`.

    Args:
        seq_idx: also return the number of each token's document, for convolution and state-space layers.
        shape: pad every row to this.

    Returns:
        `input_ids`, `labels`, `position_ids`: int64 (1, T); `cu_seq_lens_q`, `cu_seq_lens_k`: int32 (D + 1,);
        `max_length_q`, `max_length_k`: ints, because a tensor would cost a device synchronisation in every layer;
        `use_cache`: False, because the cache's mask lets documents see each other; if asked for, `seq_idx`: int32
        (1, T); of rows with weights, `loss_weights`: float32 (1, T), each at its label; of rows that say their lengths
        without padding, `cu_seq_lens_unpadded`: int32 (D + 1,). Never an attention mask. Of rows with branches, in the
        place of `cu_seq_lens_*` and `max_length_*`, what `path_arguments` gives.
    """
    unpadded = rows[0].seq_lengths_unpadded is not None
    if shape is not None:
        rows = [one for row in rows for one in (row, shape.padding(row))]
    lengths = np.concatenate([row.seq_lengths for row in rows])
    bounds = torch.from_numpy(offsets_of(lengths, np.int32))
    longest = int(lengths.max(initial=0)) if shape is None else shape.longest
    batch: dict[str, Any] = {
        name: torch.from_numpy(np.concatenate([getattr(row, name) for row in rows], dtype=np.int64)[None])
        for name in _COLUMNS
    }
    if rows[0].parents is None:
        batch |= {
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": longest,
            "max_length_k": longest,
        }
    else:
        # Under other names, so that a layer which knows only the usual ones cannot take pieces for documents.
        batch |= path_arguments(rows)
    batch["use_cache"] = False
    if seq_idx:
        batch["seq_idx"] = torch.from_numpy(np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[None])
    if (weights := _weights_of(rows)) is not None:
        batch["loss_weights"] = torch.from_numpy(np.concatenate(weights)[None])
    if unpadded:
        own = np.concatenate([row.own_lengths for row in rows])
        batch["cu_seq_lens_unpadded"] = torch.from_numpy(offsets_of(own, np.int32))
    return batch


def collate(examples: Sequence[Mapping[str, Any]], attention: "Applied | None" = None) -> dict[str, Any]:
    """A `collate_fn` for rows as `datasets.load_from_disk` reads them from a packed folder: one flattened batch; see
    `flatten`.

    Args:
        attention: what `use_packed(model)` returned, as in `partial(collate, attention=use_packed(model))`: only rows
            whose documents share tokens need it.

    Raises:
        ConfigError: documents share tokens, and the model is not known to follow their paths.
    """
    rows = []
    for example in examples:
        usual = {COLUMNS[name].usual if name in COLUMNS else name: values for name, values in example.items()}
        parts = (np.asarray(usual[name], np.int32) for name in (*_COLUMNS, "seq_lengths"))
        weights = np.asarray(usual[WEIGHTS], np.float32) if WEIGHTS in usual else None
        parents = np.asarray(usual[PARENTS], np.int32) if PARENTS in usual else None
        rows.append(Row(*parts, loss_weights=weights, parents=parents))
    if rows and rows[0].parents is not None:
        require_attention(attention, "the dataset")
    return flatten(rows)


def unpack(rows: Sequence[Row], pad_id: int) -> dict[str, Any]:
    """Make a batch with one document per row, padded to the longest, for models that cannot separate packed documents.

    Returns:
        `input_ids`, `labels`, `position_ids`, `attention_mask`: int64 (D, L), L the longest document; `use_cache`
        False; and `loss_weights`, float32 (D, L), as `flatten`. This undoes packing: the padding is what it would have
        saved. Documents that share tokens are whole again.
    """
    rows = [expanded(row) for row in rows]
    lengths = np.concatenate([row.seq_lengths for row in rows])
    shape = (len(lengths), int(lengths.max(initial=0)))
    mask = np.arange(shape[1]) < lengths[:, None]

    def spread(parts: list[NDArray[Any]], nothing: int, kind: type[np.int64] | type[np.float32]) -> torch.Tensor:
        out = np.full(shape, nothing, kind)
        out[mask] = np.concatenate(parts)
        return torch.from_numpy(out)

    batch = {
        "input_ids": spread([row.input_ids for row in rows], pad_id, np.int64),
        "labels": spread([row.labels for row in rows], IGNORE_INDEX, np.int64),
        "position_ids": torch.arange(shape[1]).repeat(shape[0], 1),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
        "use_cache": False,
    }
    if (weights := _weights_of(rows)) is not None:
        batch["loss_weights"] = spread(weights, 0, np.float32)
    return batch


def cp_part(batch: Mapping[str, Any], rank: int, size: int, layout: str) -> dict[str, Any]:
    """The tokens of a batch that one device of a context-parallel group holds.

    `thd`: every document has 2·size equal chunks, and rank r holds chunks r and 2·size - 1 - r of each, so that all
    have the same causal work (as TransformerEngine's `thd_get_partitioned_indices`). Other layouts: the r-th contiguous
    part of the sequence. Bounds of documents stay those of the whole sequence. `shift_labels` is added: the label of
    each token's successor, which another device may hold; and `shift_loss_weights`, its weight, if there are weights.

    Args:
        batch: as `flatten` makes it.
        rank: of the device in its group, whose devices take the same batch.
        layout: as the data's `pack.parallel` says.

    Raises:
        ConfigError: the documents, or the sequence, cannot be divided equally, or the layout is not known.
    """
    thd = layout == "thd"
    if layout not in get_args(ParallelLayout):
        raise ConfigError(f"layout={layout!r}: choose one of {', '.join(get_args(ParallelLayout))}")
    if not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size} devices: ranks count from 0")
    bounds = batch["cu_seq_lens_q"].numpy().astype(np.int64)
    edges, parts = (bounds, 2 * size) if thd else (bounds[[0, -1]], size)
    chunks, rest = np.divmod(np.diff(edges), parts)
    if rest.any():
        what, tokens = "document" if thd else "sequence", int(np.diff(edges)[rest > 0][0])
        raise ConfigError(
            f"a {what} of {tokens:,} tokens cannot be divided into {parts} chunks; pack again with pack.parallel: "
            f"{{cp: {size}, layout: {layout}}}"
        )
    mine = np.array([rank, parts - 1 - rank] if thd else [rank])
    begins = edges[:-1, None] + chunks[:, None] * mine
    index = torch.from_numpy(ranges(begins.ravel(), np.repeat(chunks, len(mine))))
    whole = dict(batch)
    # A document's first label is IGNORE_INDEX, so no token predicts one of another document.
    for name, nothing in (("labels", IGNORE_INDEX), ("loss_weights", 0)):
        if name in batch:
            whole[f"shift_{name}"] = torch.nn.functional.pad(batch[name][:, 1:], (0, 1), value=nothing)
    divided = {name: one[:, index] for name, one in whole.items() if isinstance(one, torch.Tensor) and one.ndim == 2}
    return {**whole, **divided}


def untrained(row: Row) -> Row:
    """The row without labels, to fill up a step."""
    weights = None if row.loss_weights is None else np.zeros_like(row.loss_weights)
    return replace(row, labels=np.full_like(row.labels, IGNORE_INDEX), loss_weights=weights)


def _weights_of(rows: Sequence[Row]) -> list[NDArray[np.float32]] | None:
    """The weights of each row's labels, (T,); None if the dataset has none. Padding has none, and weighs nothing."""
    if rows[0].loss_weights is None:
        return None
    return [np.zeros(len(row.labels), np.float32) if row.loss_weights is None else row.loss_weights for row in rows]
