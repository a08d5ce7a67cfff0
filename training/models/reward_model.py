"""Reward models: a score for each document of packed rows.

transformers' models for sequence classification give one score a row, that of its last token: for a packed row of ten
documents, one in place of ten. Here the model scores every position, and the last token of each document is taken
outside of it. The head is one vector, so that this costs nothing that transformers does not compute, too.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ...schemas.errors import ConfigError
from ..targets import document_bounds
from .model_parts import unwrap


def score_every_position(model: Any, pad_id: int) -> None:
    """Make a model for sequence classification return the scores of all positions as `logits` (B, T, 1).

    Its forward method is replaced, so that whatever wraps the model (PEFT, DDP, FSDP, torch.compile) wraps all of it.
    Saving, loading and the names of weights stay as they are.

    Args:
        model: of transformers, not wrapped.
        pad_id: the padding token of the data. The model's configuration gets it, unless it has one: transformers finds
            the last token of padded rows by it when the finished model is used.

    Raises:
        ConfigError: its architecture has no head that scores single positions.
    """
    from transformers.modeling_outputs import SequenceClassifierOutputWithPast

    inner = unwrap(model)
    backbone = getattr(inner, inner.base_model_prefix, None)
    head = getattr(inner, "score", None)
    if backbone is None or head is None or backbone is inner:
        raise ConfigError(
            f"model: {type(inner).__name__} has no head named score over single positions, which a reward model of "
            "packed rows needs; take a decoder such as llama, qwen3 or gemma"
        )

    def forward(
        input_ids: torch.Tensor | None = None, labels: torch.Tensor | None = None, **inputs: Any
    ) -> SequenceClassifierOutputWithPast:
        # `labels` stop here: the backbone does not get them, as the loss is computed outside of the model.
        outputs = getattr(inner, inner.base_model_prefix)(input_ids=input_ids, **inputs)
        return SequenceClassifierOutputWithPast(logits=inner.score(outputs.last_hidden_state))

    inner.forward = forward
    text_config = inner.config.get_text_config()
    if getattr(text_config, "pad_token_id", None) is None:
        text_config.pad_token_id = pad_id


def last_tokens(batch: Mapping[str, Any]) -> torch.Tensor:
    """int64 (D,): the place of each document's last token before its padding, in a batch's tokens end to end.

    Batches of fixed shapes are filled up with documents without tokens. Their place exists, and means nothing.
    """
    bounds = document_bounds(batch).long()
    if "cu_seq_lens_unpadded" in batch:
        # Each document's padding comes behind its tokens: bounds 0 8 16 with lengths 5 and 7 end at 4 and 14.
        lengths = batch["cu_seq_lens_unpadded"].long().diff()
    elif "attention_mask" in batch:
        lengths = batch["attention_mask"].sum(1)  # each row is one document, padded at its end
    else:
        lengths = bounds.diff()
    return (bounds[:-1] + lengths - 1).clamp(min=0)
