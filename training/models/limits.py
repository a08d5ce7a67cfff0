"""What a model can take: how many token ids it has embeddings for, and how long a document may be."""

from typing import Any

from ...schemas.errors import InputError
from ...schemas.models.model_facts import Limit, rotary_limits
from ..packed_rows import PackedRows
from .model_parts import configs_of, unwrap


def vocabulary_of(model: Any) -> int:
    """Number of token ids with embeddings."""
    weight = unwrap(model).get_input_embeddings().weight
    return int(getattr(weight, "ds_shape", weight.shape)[0])  # under ZeRO-3 a rank holds a part of it, or nothing


def longest_document(model: Any) -> Limit | None:
    """The longest document that a model takes, and what happens to longer ones; None where there is no limit."""
    config = unwrap(model).config
    limits = [limit for inner in configs_of(config) for limit in rotary_limits(inner)]
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions:
        limits.append(Limit(positions, f"its config.json says max_position_embeddings: {positions:,}"))
    return min(limits, key=lambda limit: limit.tokens, default=None)


def check_fits(model: Any, name: str, rows: PackedRows, *, padded: bool = False) -> None:
    """Refuse data with token ids or positions that a model does not have: on a GPU they would fail unclearly, and late.

    Args:
        name: what the error calls the rows.
        padded: batches fill up every row with padding. It stands in documents of its own, which may be as long as the
            longest document that the data may have.

    Raises:
        InputError: says how far the data goes, and how far the model.
    """
    highest = max(rows.highest_id, rows.manifest.pad_id if padded else 0)
    ids = vocabulary_of(model)
    if highest >= ids:
        raise InputError(
            f"{name} has the token id {highest:,}, but the model has embeddings for {ids:,} ids: it was packed with "
            "another tokenizer than the model's. Pack it with the model's, or resize the model "
            f"(model.config.vocab_size: at least {highest + 1:,})"
        )
    limit = longest_document(model)
    # The usual case: the longest document that the data may have is known without reading any.
    if limit is None or rows.longest_allowed <= limit.tokens:
        return
    longest = rows.longest_allowed if padded else rows.longest  # the latter reads the document table
    if longest > limit.tokens:
        # Where packing cuts documents at the end of a row, the length of rows limits them.
        key = "pack.row_length" if rows.manifest.pack.cuts_documents else "truncate.max_length"
        raise InputError(
            f"{name} has {'padding' if padded else 'a document'} of {longest:,} tokens, more than the model takes: "
            f"{limit.reason}. Pack with {key}: {limit.tokens}, or take another model"
        )
