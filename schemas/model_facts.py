"""How long the documents of a model may be. Needs no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest safe number of tokens of a document, and what happens beyond it."""

    tokens: int
    reason: str


def stretching(config: Any) -> Iterator[Limit]:
    """Yield the length of the longest document that does not change the other documents of its batch.

    Rotary embeddings of the kinds `dynamic` and `longrope` choose one set of frequencies for a whole batch, by its
    longest document. YaRN, linear and Llama 3 scaling do not depend on lengths.

    Args:
        config: a model's configuration, with its keys as attributes.
    """
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
