"""Finds, from a model's configuration, the lengths above which it does not treat the documents of one row separately.

Up to these lengths a packed document is computed as it would be alone. Above them it depends on its neighbours although
attention keeps them apart: rotary frequencies are chosen once for a whole batch, by its longest document, or queries
are scaled by their place in the row. Sparse attention that picks its best k tokens (DeepSeek V3.2, Doge) is safe,
because it picks within a document.
"""

from typing import Any

from ...schemas.positions import Limit, stretching
from ..attention.apply import configs_of, unwrap


def row_limit(model: Any) -> Limit | None:
    """Return the longest packed row in which every document is computed as it would be alone; None if there is no
    limit.

    Llama 4 scales queries by their place in the whole row, which has an effect after `floor_scale` tokens.
    """
    for config in configs_of(unwrap(model).config):
        if getattr(config, "attn_temperature_tuning", False) and not all(
            getattr(config, "no_rope_layers", None) or [1]
        ):
            scale = int(getattr(config, "floor_scale", 8192))
            return Limit(
                scale - 1, f"queries are scaled by their place in the row from token {scale:,} on (floor_scale)"
            )
    return None


def document_limit(model: Any) -> Limit | None:
    """Return the length of the longest document that does not change the other documents of its batch; None if there is
    no limit. See `stretching`.
    """
    found = [limit for config in configs_of(unwrap(model).config) for limit in stretching(config)]
    return min(found, key=lambda limit: limit.tokens, default=None)
