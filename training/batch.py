"""Turns packed rows into batches for a model. Legend: `T` tokens, `D` documents (pieces) of a batch.

A batch of two rows, of which the first holds a document of 3 tokens and one of 2, and the second one of 2:

    input_ids        a0   a1   a2   b0   b1   c0   c1      (1, T = 7)
    labels         -100   a1   a2 -100   b1 -100   c1      (1, T)      not shifted: models do that
    position_ids      0    1    2    0    1    0    1      (1, T)
    cu_seq_lens_q     0    3    5    7                     (D + 1 = 4,)
    max_length_q      3
    seq_idx           0    0    0    1    1    2    2      (1, T)      only if asked for

Of preference pairs, each document is one side of a pair, and the rejected side stands behind the chosen one:

    sides             0    1   -1                          (D,)        -1: padding, or a row that fills up a step
    reference      -9.5 -7.2    0                          (D,)        only if there is one; 0 where the side is -1
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..schemas.dataset.row_batch import Row
from ..schemas.ragged import offsets_of, ranges
from ..schemas.rows import IGNORE_INDEX
from ..schemas.tables.columns import COLUMNS, PARENTS, SIDES, WEIGHTS
from .branches import expanded, path_arguments, require_attention
from .packed_rows import PackedRows

if TYPE_CHECKING:
    from .attention.packed_attention import Applied
    from .preference.reference import Reference

_COLUMNS = ("input_ids", "labels", "position_ids")
"""Columns that every row has, with a value for each token."""
REFERENCE = "reference"
"""Key of a batch for the log-probabilities of documents under the reference model."""
NO_SIDE = -1
"""The side of a document that is in no pair: padding, or a document of a row that only fills up a step."""


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
        return cls(
            length=rows.row_length, docs=rows.max_docs, longest=rows.longest_allowed, pad_id=rows.manifest.pad_id
        )

    def padding(self, row: Row) -> Row:
        """What comes behind a row: untrained tokens in documents of their own, and empty documents.

        The comments have the numbers of the example above.
        """
        missing = self.length - len(row.input_ids)  # 8 - 3 = 5
        most_padding = -(-self.length // self.longest)  # 2 documents, if a row were all padding
        documents = self.docs + most_padding - len(row.seq_lengths)  # 3 + 2 - 2 = 3
        # As many as can be have the longest length, and the rest is empty: they begin at 0, 4 and 5, and end at 5.
        bounds = np.minimum(np.arange(documents + 1) * self.longest, missing)
        lengths = np.diff(bounds).astype(np.int32)  # 4 1 0
        return Row(
            input_ids=np.full(missing, self.pad_id, np.int32),
            labels=np.full(missing, IGNORE_INDEX, np.int32),
            position_ids=ranges(0, lengths).astype(np.int32),  # 0 1 2 3 and 0: each document counts from 0
            seq_lengths=lengths,
            seq_lengths_unpadded=np.zeros_like(lengths),  # 0 0 0: without padding nothing is left
        )


def flatten(
    rows: Sequence[Row],
    *,
    seq_idx: bool = False,
    shape: FixedShape | None = None,
    reference: Sequence[NDArray[np.float64]] | None = None,
) -> dict[str, Any]:
    """Concatenate rows into one sequence, with document boundaries in `cu_seq_lens`.

    Args:
        rows: at least one, all of one dataset.
        seq_idx: also return the number of each token's document, for convolution and state-space layers.
        shape: pad every row to this.
        reference: of each row of pairs, the log-probabilities of its documents under the reference model.

    Returns:
        Always, and never an attention mask:

        - `input_ids`, `labels`, `position_ids`: int64 (1, T).
        - `cu_seq_lens_q`, `cu_seq_lens_k`: int32 (D + 1,), and `max_length_q`, `max_length_k`: ints, because a tensor
          would cost a device synchronisation in every layer. Rows with branches have what `path_arguments` gives
          instead of these four.
        - `use_cache`: False, because the cache's mask lets documents see each other.

        Where the rows or the arguments have them:

        - `seq_idx`: int32 (1, T).
        - `loss_weights`: float32 (1, T), each at its label.
        - `cu_seq_lens_unpadded`: int32 (D + 1,), bounds of the lengths without padding.
        - `sides`: int8 (D,), of preference pairs, and `reference`: float64 (D,).
    """
    first = rows[0]  # all rows of a dataset have the same columns
    if shape is not None:
        padded_rows: list[Row] = []
        padded_reference: list[NDArray[np.float64]] = []
        for number, row in enumerate(rows):
            padding = shape.padding(row)
            padded_rows += (row, padding)
            if reference is not None:
                # Documents of padding have a value, too, so that there is one for each of the D documents.
                padded_reference += (reference[number], np.zeros(len(padding.seq_lengths)))
        rows = padded_rows
        reference = None if reference is None else padded_reference
    lengths = np.concatenate([row.seq_lengths for row in rows])
    # Lengths 3 2 2 give bounds 0 3 5 7; int32, as FlashAttention's kernels take them.
    bounds = torch.from_numpy(offsets_of(lengths, np.int32))
    longest = int(lengths.max(initial=0)) if shape is None else shape.longest
    batch: dict[str, Any] = {}
    for name in _COLUMNS:
        # Joined and made int64, as embeddings and losses take it, in one pass over the tokens.
        values = np.concatenate([getattr(row, name) for row in rows], dtype=np.int64)
        batch[name] = torch.from_numpy(values[None])  # (T,) → (1, T)
    if first.parents is None:  # no documents share tokens
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
    weights = _weights_of(rows)
    if weights is not None:
        batch["loss_weights"] = torch.from_numpy(np.concatenate(weights)[None])
    if first.seq_lengths_unpadded is not None:
        unpadded = np.concatenate([row.own_lengths for row in rows])
        batch["cu_seq_lens_unpadded"] = torch.from_numpy(offsets_of(unpadded, np.int32))
    if first.sides is not None:
        batch |= _pair_values(rows, reference)
    return batch


def collate(
    examples: Sequence[Mapping[str, Any]], attention: "Applied | None" = None, reference: "Reference | None" = None
) -> dict[str, Any]:
    """A `collate_fn` for rows as `datasets.load_from_disk` reads them from a packed folder: one flattened batch; see
    `flatten`.

    Args:
        attention: what `use_packed(model)` returned, as in `partial(collate, attention=use_packed(model))`: only rows
            whose documents share tokens need it.
        reference: for preference pairs, what `reference_logps` returned. A row is found in it by its tokens, so the
            dataset may be shuffled, filtered or divided.

    Raises:
        ConfigError: documents share tokens, and the model is not known to follow their paths; or the reference is of
            other rows than these.
    """
    rows = []
    for example in examples:
        # By the names that readers use: rows of pairs, and of documents that share tokens, have others in their files.
        values = {COLUMNS[name].usual if name in COLUMNS else name: column for name, column in example.items()}
        row = Row(
            input_ids=np.asarray(values["input_ids"], np.int32),
            labels=np.asarray(values["labels"], np.int32),
            position_ids=np.asarray(values["position_ids"], np.int32),
            seq_lengths=np.asarray(values["seq_lengths"], np.int32),
        )
        if WEIGHTS in values:
            row.loss_weights = np.asarray(values[WEIGHTS], np.float32)
        if PARENTS in values:
            row.parents = np.asarray(values[PARENTS], np.int32)
        if SIDES in values:
            row.sides = np.asarray(values[SIDES], np.int8)
        rows.append(row)
    if rows[0].parents is not None:
        require_attention(attention, "the dataset")
    # By content, because nothing says which rows of the split these are.
    logps = None if reference is None else [reference.of_content(row) for row in rows]
    return flatten(rows, reference=logps)


def unpack(
    rows: Sequence[Row], pad_id: int, *, reference: Sequence[NDArray[np.float64]] | None = None
) -> dict[str, Any]:
    """Make a batch with one document per row, padded to the longest, for models that cannot separate packed documents.

    Args:
        pad_id: the token id of padding.
        reference: as `flatten` takes it.

    Returns:
        `input_ids`, `labels`, `position_ids`, `attention_mask`: int64 (D, L), L the tokens of the longest document;
        `use_cache`: False. Where `flatten` has them, also `loss_weights`: float32 (D, L), `sides` and `reference`. The
        padding is what packing would have saved. Documents that share tokens are whole again.
    """
    rows = [expanded(row) for row in rows]
    lengths = np.concatenate([row.seq_lengths for row in rows])
    # Where there are tokens. Documents of 3 and 1 give [[True, True, True], [True, False, False]].
    has_token = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
    documents, longest = has_token.shape
    # Tokens fill these places row after row, so that each document gets its own.
    input_ids = np.full((documents, longest), pad_id, np.int64)
    input_ids[has_token] = np.concatenate([row.input_ids for row in rows])
    labels = np.full((documents, longest), IGNORE_INDEX, np.int64)
    labels[has_token] = np.concatenate([row.labels for row in rows])
    batch = {
        "input_ids": torch.from_numpy(input_ids),
        "labels": torch.from_numpy(labels),
        "position_ids": torch.arange(longest).repeat(documents, 1),
        "attention_mask": torch.from_numpy(has_token.astype(np.int64)),
        "use_cache": False,
    }
    weights = _weights_of(rows)
    if weights is not None:
        loss_weights = np.zeros((documents, longest), np.float32)
        loss_weights[has_token] = np.concatenate(weights)
        batch["loss_weights"] = torch.from_numpy(loss_weights)
    if rows[0].sides is not None:
        batch |= _pair_values(rows, reference)
    return batch


def untrained(row: Row) -> Row:
    """The row without labels and without pairs, to fill up a step."""
    weights = None if row.loss_weights is None else np.zeros_like(row.loss_weights)
    # Two sides without labels would be a pair with a loss of ln 2.
    sides = None if row.sides is None else np.full_like(row.sides, NO_SIDE)
    return replace(row, labels=np.full_like(row.labels, IGNORE_INDEX), loss_weights=weights, sides=sides)


def _pair_values(rows: Sequence[Row], reference: Sequence[NDArray[np.float64]] | None) -> dict[str, torch.Tensor]:
    """`sides`, and `reference` if there is one, of the documents of a batch of pairs.

    Args:
        rows: of the batch. Padding among them has no sides.
        reference: for each of these rows, the log-probabilities of its documents under the reference model.
    """
    sides_of_rows = []
    for row in rows:
        padding = np.full(len(row.seq_lengths), NO_SIDE, np.int8)
        sides_of_rows.append(padding if row.sides is None else row.sides)
    sides = np.concatenate(sides_of_rows)
    values = {SIDES: torch.from_numpy(sides)}
    if reference is not None:
        logps = np.concatenate(reference, dtype=np.float64)
        # 0 for documents that are in no pair: rows that only fill up a step have a reference, too.
        values[REFERENCE] = torch.from_numpy(np.where(sides == NO_SIDE, 0.0, logps))
    return values


def _weights_of(rows: Sequence[Row]) -> list[NDArray[np.float32]] | None:
    """The weights of each row's labels, (T,); None if the dataset has none."""
    if rows[0].loss_weights is None:
        return None
    # All rows of a dataset have weights, or none has. What has none beside rows with weights is padding.
    return [np.zeros(len(row.labels), np.float32) if row.loss_weights is None else row.loss_weights for row in rows]
