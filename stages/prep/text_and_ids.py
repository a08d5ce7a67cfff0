"""Rows that are whole documents already: a plain text, or token ids with which of them are trained. One example per
row, kept unchanged.
"""

from collections import Counter
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import RowRejectedError
from ...schemas.rows import IGNORE_INDEX, Example
from ...schemas.tables.columns import UNPADDED, WEIGHTS
from .base import Format
from .columns import MEDIA, Column, Columns

# `completion_mask` and `assistant_masks` are TRL's.
MASKS = ("loss_mask", "completion_mask", "assistant_masks", "assistant_mask")
"""The names that other tools use for columns of 0 and 1 that say which tokens are trained."""
_ID = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_NUMBER = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_NUMBERS = list[_NUMBER] | None
_FLAGS = list[_NUMBER | bool] | None
# Reason and detail of a rejection.
_PACKED = (
    "packed_already",
    "documents are packed in this row; give a row for each of them, or take rows apart in a reader of your own "
    "(format: python:module:function)",
)


class TextFormat(Format):
    """Texts for language modelling, including white space at their ends."""

    name = "text"
    columns: ClassVar[Columns] = {"text": Column(str, required=True), **MEDIA}
    values = "a text"

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """One example, the text. Rejects `empty`."""
        if not row.text:
            raise RowRejectedError("empty", f"`{self.keys['text']}` is empty")
        return [Example(line, sub=-1, group="", prompt=None, completion=None, text=row.text)]


class TokenizedFormat(Format):
    """Token ids. Labels are unshifted (at their own token), as Hugging Face models expect.

    A token is trained if its label says so, and all the columns of `MASKS` that a row has. Rows that hold several
    documents are rejected.
    """

    name = "tokenized"
    columns: ClassVar[Columns] = {
        "input_ids": Column(list[_ID], required=True),
        "labels": Column(_NUMBERS),
        **{name: Column(_FLAGS) for name in MASKS},
        **{name: Column(_NUMBERS) for name in ("attention_mask", "seq_lengths")},
        WEIGHTS: Column(list[float] | None),
        # Columns that only packed rows have: packtrain's own, and Megatron-Bridge's.
        **{name: Column(Any, refused=_PACKED) for name in (UNPADDED, "seq_start_id")},
    }
    values = "a list of integers"

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """One example, the token ids with which of them are trained.

        Rejects `empty`, `bad_labels`, `bad_mask`, `padded` (zeros in `attention_mask`), `packed_already`,
        `weight` (weights of single tokens).
        """
        ids = np.array(row.input_ids, np.int64)
        if not len(ids):
            raise RowRejectedError("empty", f"`{self.keys['input_ids']}` is empty")
        # Padding would be packed as text. Its id may be a real token's, so only the mask can show it.
        if row.attention_mask is not None and not all(row.attention_mask):
            raise RowRejectedError("padded", "`attention_mask` has zeros: give rows without padding")
        # With one length, the row is a document: TRL's packing gives it even where nothing else fitted in.
        if len(row.seq_lengths or ()) > 1:
            raise RowRejectedError(*_PACKED)
        if row.loss_weights is not None and any(weight not in (0, 1) for weight in row.loss_weights):
            raise RowRejectedError("weight", f"`{WEIGHTS}` has weights of single tokens, and only a row can have one")
        trained: NDArray[np.bool_] = np.ones(len(ids), np.bool_)
        for name in ("labels", *MASKS):
            numbers = getattr(row, name)
            if numbers is not None:
                trained &= self._trained_by(name, numbers, ids)
        # None says that all tokens are trained.
        trained_or_all = None if trained.all() else trained
        return [
            Example(line, sub=-1, group="", prompt=None, completion=None, text=None, ids=ids, trained=trained_or_all)
        ]

    def _trained_by(self, name: str, numbers: list[int], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(T,) which tokens the labels or a mask train.

        Args:
            name: `labels`, or one of `MASKS`.
            numbers: the column's values: ids and IGNORE_INDEX in labels, 1 and 0 in a mask.
            ids: (T,) of the row.
        """
        are_labels = name == "labels"
        key = self.keys[name]
        key_of_ids = self.keys["input_ids"]
        values = np.array(numbers, np.int64)
        if are_labels:
            reason = "bad_labels"
            value_if_trained = ids  # ids 5 7 9 with labels -100 7 9: not trained, trained, trained
            value_if_masked = IGNORE_INDEX
        else:
            reason = "bad_mask"
            value_if_trained = np.ones_like(ids)
            value_if_masked = 0
        if len(values) != len(ids):
            detail = f"`{key}` has {len(values):,} values for {len(ids):,} of `{key_of_ids}`"
            raise RowRejectedError(reason, detail)
        is_trained: NDArray[np.bool_] = values == value_if_trained
        is_wrong = ~is_trained & (values != value_if_masked)
        if is_wrong.any():
            # Labels that are shifted by one are the usual mistake: nearly all of them are wrong then.
            place = int(np.argmax(is_wrong))
            detail = f"`{key}[{place}]` is {numbers[place]}"
            if are_labels:
                detail += f", and `{key_of_ids}[{place}]` is {ids[place]}: a label is the id of its own token, not "
                detail += f"shifted, or {IGNORE_INDEX}"
            else:
                detail += ": a mask holds 0 and 1"
            raise RowRejectedError(reason, detail)
        return is_trained
