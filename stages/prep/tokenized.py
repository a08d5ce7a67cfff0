"""Rows that are already tokenized: token ids, and which of them are trained. One example per row, or per document of a
packed row."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Protocol, cast

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import IGNORE_INDEX, Example
from .base import Format, Options, PublicForm

MASKS = ("loss_mask", "completion_mask", "assistant_masks", "assistant_mask")
"""The names that other tools use for columns of 0 and 1 that say which tokens are trained."""
_STARTS = "seq_start_id"
"""A column of Megatron-Bridge's packed rows."""
_LARGEST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class TokenizedOptions(Options):
    """Column names."""

    ids_key: str = "input_ids"
    labels_key: str = "labels"
    """Column of the labels; rows may lack it."""
    mask_key: str | None = None
    """A column of 0 and 1. None uses the columns of `MASKS` that a row has; a token is trained if all of them say
    so."""
    lengths_key: str | None = None
    """The column of the lengths of documents that share a row, which are taken apart: one example each. None rejects
    rows that hold several documents."""

    def payload(self) -> dict[str, Any]:
        """See `Options.payload`. Without `lengths_key` it is that of earlier versions, whose parts stay valid."""
        return {key: value for key, value in super().payload().items() if key != "lengths_key" or value is not None}


class TokenizedRow(Protocol):
    """A row of (T,) token ids."""

    ids: list[int]
    labels: list[int] | None
    attention_mask: list[int] | None
    seq_lengths: list[int] | None
    lengths: list[int]


class TokenizedFormat(Format[TokenizedOptions, TokenizedRow]):
    """Token ids, kept unchanged. Labels are unshifted (at their own token), as Hugging Face models expect."""

    name: ClassVar[str] = "tokenized"
    options_type: ClassVar[type[Options]] = TokenizedOptions

    def __init__(self, options: TokenizedOptions | None = None) -> None:
        options = options or TokenizedOptions()
        taken: tuple[str, ...] = (options.ids_key, options.labels_key)
        self._masks = (options.mask_key,) if options.mask_key else tuple(name for name in MASKS if name not in taken)
        fields: list[Any] = [("ids", list[int]), ("labels", list[int] | None, None)]
        rename = {"ids": options.ids_key, "labels": options.labels_key}
        for index, name in enumerate(self._masks):
            mask: list[Any] = [f"mask_{index}", list[int | bool] | None]
            fields.append(tuple(mask if options.mask_key else [*mask, None]))  # a mask that the user names is required
            rename[f"mask_{index}"] = name
        if options.lengths_key:
            fields.append(("lengths", list[int]))
            rename["lengths"] = options.lengths_key
        more = ("attention_mask", "seq_lengths")
        taken = (*taken, *self._masks, options.lengths_key or "")
        fields += [(name, list[int] | None, None) for name in more if name not in taken]
        if _STARTS not in taken:
            fields.append((_STARTS, Any, None))
        row_type = msgspec.defstruct("TokenizedRow", fields, rename=rename, kw_only=True)
        super().__init__(options, cast(type[TokenizedRow], row_type))

    @property
    def form(self) -> PublicForm:
        return "tokenized"

    def convert(self, row: Mapping[str, Any]) -> TokenizedRow:
        """See `Format.convert`. Ids in a column of bytes are int64, as LLM Foundry writes them to MDS.

        Raises:
            RowRejectedError: also `bad_ids`, for bytes that are no such numbers.
        """
        key = self.options.ids_key
        ids = row.get(key)
        if isinstance(ids, bytes):
            if len(ids) % 8:
                raise RowRejectedError("bad_ids", f"`{key}` has {len(ids):,} bytes, which are no numbers of int64")
            row = {**row, key: memoryview(ids).cast("q").tolist()}
        return super().convert(row)

    def examples(self, row: TokenizedRow, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty`, `bad_ids`, `bad_labels`, `bad_mask`, `padded` (zeros in `attention_mask`), `packed_already`,
        `bad_lengths`.
        """
        options, ids = self.options, row.ids
        if not ids:
            raise RowRejectedError("empty", f"`{options.ids_key}` is empty")
        if min(ids) < 0 or max(ids) > _LARGEST:
            at = next(i for i, token in enumerate(ids) if not 0 <= token <= _LARGEST)
            raise RowRejectedError("bad_ids", f"`{options.ids_key}[{at}]` is {ids[at]}: an id is 0 to {_LARGEST}")
        if not all(getattr(row, "attention_mask", None) or ()):
            raise RowRejectedError("padded", "`attention_mask` has zeros: give rows without padding")
        if options.lengths_key is None and len(getattr(row, "seq_lengths", None) or ()) > 1:
            raise RowRejectedError(
                "packed_already",
                "`seq_lengths` says that several documents share this row; take them apart by keys: {lengths: "
                "seq_lengths}",
            )
        if getattr(row, _STARTS, None) is not None and self._has_mask(row, "loss_mask"):
            raise RowRejectedError(
                "bad_mask",
                f"`{_STARTS}` says that the row was packed for Megatron-Bridge, whose `loss_mask` stands one place "
                "before its token; give the data that it was packed from",
            )
        trained = self._labelled(row)
        for index, name in enumerate(self._masks):
            mask = getattr(row, f"mask_{index}")
            if mask is not None:
                self._check_length(mask, name, ids, "bad_mask")
                if not set(mask) <= {0, 1}:
                    at = next(i for i, value in enumerate(mask) if value not in (0, 1))
                    raise RowRejectedError("bad_mask", f"`{name}[{at}]` is {mask[at]}: a mask holds 0 and 1")
                trained = [bool(value) for value in mask] if trained is None else [
                    both and bool(value) for both, value in zip(trained, mask, strict=True)
                ]  # fmt: skip
        if options.lengths_key is None:
            return [_example(line, -1, ids, trained)]
        self._check_lengths(row)
        bounds = [0, *accumulate(row.lengths)]
        return [
            _example(line, sub, ids[begin:end], trained[begin:end] if trained is not None else None)
            for sub, (begin, end) in enumerate(pairwise(bounds))
        ]

    def _has_mask(self, row: TokenizedRow, name: str) -> bool:
        return name in self._masks and getattr(row, f"mask_{self._masks.index(name)}") is not None

    def _labelled(self, row: TokenizedRow) -> list[bool] | None:
        """Return (T,) flags of the tokens that the labels train; None without labels."""
        ids, labels, key = row.ids, row.labels, self.options.labels_key
        if labels is None:
            return None
        self._check_length(labels, key, ids, "bad_labels")
        trained = [label == token for label, token in zip(labels, ids, strict=True)]
        for at, (label, is_own) in enumerate(zip(labels, trained, strict=True)):
            if not is_own and label != IGNORE_INDEX:
                shifted = all(a in (IGNORE_INDEX, b) for a, b in zip(labels[:-1], ids[1:], strict=True))
                why = "they look shifted by one; " if shifted else ""
                raise RowRejectedError(
                    "bad_labels",
                    f"`{key}[{at}]` is {label}, and `{self.options.ids_key}[{at}]` is {ids[at]}: {why}a label is the "
                    f"id of its own token, or {IGNORE_INDEX}",
                )
        return trained

    def _check_lengths(self, row: TokenizedRow) -> None:
        key, lengths = self.options.lengths_key, row.lengths
        if any(length < 1 for length in lengths):
            at = next(i for i, length in enumerate(lengths) if length < 1)
            raise RowRejectedError("bad_lengths", f"`{key}[{at}]` is {lengths[at]}: a document has at least one token")
        if sum(lengths) != len(row.ids):
            raise RowRejectedError(
                "bad_lengths", f"`{key}` adds up to {sum(lengths):,}, and `{self.options.ids_key}` has {len(row.ids):,}"
            )

    def _check_length(self, values: list[Any], name: str, ids: list[int], reason: str) -> None:
        if len(values) != len(ids):
            raise RowRejectedError(
                reason, f"`{name}` has {len(values):,} values for {len(ids):,} of `{self.options.ids_key}`"
            )


def _example(line: int, sub: int, ids: list[int], trained: list[bool] | None) -> Example:
    if trained is not None and all(trained):
        trained = None
    return Example(line, sub, "", None, None, None, ids=ids, trained=trained)
