"""Rows that are already tokenized: token ids, and which of them are trained. One example per row."""

from collections import Counter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import RowRejectedError
from ...schemas.rows import IGNORE_INDEX, UNPADDED, WEIGHTS, Example
from .base import Column, Columns, Format

MASKS = ("loss_mask", "completion_mask", "assistant_masks", "assistant_mask")
"""The names that other tools use for columns of 0 and 1 that say which tokens are trained."""
_NUMBERS = list[int] | None
_FLAGS = list[int | bool] | None
_LARGEST = 2**31 - 1
_OF_PACKED = (UNPADDED, "seq_start_id")
"""Columns that only packed rows have: packtrain's own, and Megatron-Bridge's."""


class TokenizedFormat(Format):
    """Token ids, kept unchanged. Labels are unshifted (at their own token), as Hugging Face models expect.

    `mask` names a column of 0 and 1; without it, the columns of `MASKS` that a row has are used, and a token is trained
    if all of them say so. Rows that hold several documents are rejected.
    """

    name = "tokenized"
    columns: ClassVar[Columns] = {
        "ids": Column(list[int], required=True, name="input_ids"),
        "labels": Column(_NUMBERS),
        "mask": Column(_FLAGS, if_named=True),
        **{name: Column(_FLAGS) for name in MASKS},
        **{name: Column(_NUMBERS) for name in ("attention_mask", "seq_lengths")},
        WEIGHTS: Column(list[float] | None),
        **{name: Column(Any) for name in _OF_PACKED},
    }
    values = "a list of integers"

    def read_columns(self) -> dict[str, str]:
        """See `Format.read_columns`."""
        names = super().read_columns()
        return {key: name for key, name in names.items() if key not in MASKS} if "mask" in names else names

    def examples(self, row: Any, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty`, `bad_ids`, `bad_labels`, `bad_mask`, `padded` (zeros in `attention_mask`), `packed_already`,
        `weight` (weights of single tokens).
        """
        keys, ids = self.keys, _array(row.ids)
        if not len(ids):
            raise RowRejectedError("empty", f"`{keys['ids']}` is empty")
        if ids.min() < 0 or ids.max() > _LARGEST:
            at = int(np.argmax((ids < 0) | (ids > _LARGEST)))
            raise RowRejectedError("bad_ids", f"`{keys['ids']}[{at}]` is {ids[at]}: an id is 0 to {_LARGEST}")
        if row.attention_mask is not None and not np.all(_array(row.attention_mask)):
            raise RowRejectedError("padded", "`attention_mask` has zeros: give rows without padding")
        if len(row.seq_lengths or ()) > 1 or any(getattr(row, name) is not None for name in _OF_PACKED):
            raise RowRejectedError(
                "packed_already",
                "documents are packed in this row; give a row for each of them, or take rows apart in a reader of your "
                "own (format: python:module:function)",
            )
        trained = self._labelled(row.labels, ids)
        for key in ("mask", *MASKS):
            name, mask = keys.get(key, ""), getattr(row, key)
            if mask is not None:
                values = _array(mask)
                self._check_length(values, name, ids, "bad_mask")
                wrong = (values != 0) & (values != 1)
                if np.any(wrong):
                    at = int(np.argmax(wrong))
                    raise RowRejectedError("bad_mask", f"`{name}[{at}]` is {mask[at]}: a mask holds 0 and 1")
                trained = values == 1 if trained is None else trained & (values == 1)
        if row.loss_weights is not None and any(one not in (0, 1) for one in row.loss_weights):
            raise RowRejectedError("weight", f"`{WEIGHTS}` has weights of single tokens, and only a row can have one")
        flags = None if trained is None or trained.all() else trained
        return [Example(line, -1, "", None, None, None, ids=ids, trained=flags)]

    def _labelled(self, given: list[int] | None, ids: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Return (T,) flags of the tokens that the labels train; None without labels."""
        if given is None:
            return None
        labels, key = _array(given), self.keys["labels"]
        self._check_length(labels, key, ids, "bad_labels")
        trained: NDArray[np.bool_] = labels == ids
        wrong = ~trained & (labels != IGNORE_INDEX)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise RowRejectedError(
                "bad_labels",
                f"`{key}[{at}]` is {labels[at]}, and `{self.keys['ids']}[{at}]` is {ids[at]}: a label is the id of "
                f"its own token, not shifted, or {IGNORE_INDEX}",
            )
        return trained

    def _check_length(self, values: NDArray[Any], name: str, ids: NDArray[Any], reason: str) -> None:
        if len(values) != len(ids):
            raise RowRejectedError(
                reason, f"`{name}` has {len(values):,} values for {len(ids):,} of `{self.keys['ids']}`"
            )


def _array(values: list[int]) -> NDArray[Any]:
    """(T,) numbers as an array; of objects if one of them does not fit into 64 bits."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array(values, object)
