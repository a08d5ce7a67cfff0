"""What matters of a model for its data: what documents cost, and how long they may be. Needs no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The size of a decoder-only transformer, for what documents cost in training it, relative to each other.

    1. **Matrices.** A token costs two operations for each weight that it is multiplied with, and the backward pass
       twice that: 6 for each parameter.
    2. **Attention.** A document of ℓ tokens has ℓ²/2 pairs of a token and one that it sees. Each pair costs two
       operations for each dimension of its score, and two for each of its value. The backward pass costs twice that:
       6 · ℓ² · hidden for each layer.
    """

    parameters: float = 6.7e9
    layers: int = 32
    hidden: int = 4096

    @property
    def attention_weight(self) -> float:
        """Cost of one unit of squared document length, in units of one token's matrix multiplications."""
        return self.hidden * self.layers / self.parameters

    def weigh(self, tokens: NDArray[np.integer], squares: NDArray[np.integer]) -> NDArray[np.float64]:
        """(R,) the cost of each row, in units of one token's matrix multiplications.

        Args:
            tokens: (R,) tokens of each row.
            squares: (R,) sum of the squared lengths of each row's documents.
        """
        return tokens.astype(np.float64) + self.attention_weight * squares.astype(np.float64)


SEVEN_BILLION = ModelShape()


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
