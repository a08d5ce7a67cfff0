"""Finds, from a model's configuration, the lengths above which it does not treat the documents of one row separately.

Up to these lengths a packed document is computed as it would be alone. Above them it depends on its neighbours although
attention keeps them apart: rotary frequencies are chosen once for a whole batch, by its longest document, or queries
are scaled by their place in the row. Sparse attention that picks its best k tokens (DeepSeek V3.2, Doge) is safe,
because it picks within a document.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..attention.apply import configs_of, unwrap


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest safe number of tokens, and what happens beyond it."""

    tokens: int
    reason: str


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
    no limit.

    Rotary embeddings of the kinds `dynamic` and `longrope` choose one set of frequencies for a whole batch, by its
    longest document. YaRN, linear and Llama 3 scaling do not depend on lengths.
    """
    found = [limit for config in configs_of(unwrap(model).config) for limit in _stretching(config)]
    return min(found, key=lambda limit: limit.tokens, default=None)


def _stretching(config: Any) -> Iterator[Limit]:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for one in (rope, *(inner for inner in rope.values() if isinstance(inner, dict))):
        kind = str(one.get("rope_type", one.get("type")))
        original = one.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        key, limit = "original_max_position_embeddings", original
        if "dynamic" in kind:
            key, limit = "max_position_embeddings", config.max_position_embeddings
        elif kind not in ("longrope", "su") and not (kind != "default" and "long_mscale" in one):  # long_mscale: PhiMoE
            continue
        limit = int(limit or config.max_position_embeddings)
        yield Limit(
            limit,
            f"{kind} rotary embeddings change for all documents of a batch when one is longer than {limit:,} tokens "
            f"({key})",
        )
