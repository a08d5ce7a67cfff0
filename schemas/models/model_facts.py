"""How long the documents of a model may be, and how large the model. Needs no torch."""

import re
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


# What building a model would cost

_LAYERS = 1024
_COUNTS: tuple[tuple[str, int], ...] = (
    (r"(num|n)_.*layers?|.*_layers|num_hidden_layers|n_layer|depth|depths|num_blocks|n_blocks", _LAYERS),
    (r"(num|n)_.*experts?|moe_num_experts", 8192),
    (r"num_labels", 1 << 16),
    (r"(num|n)_.*heads?", 1 << 14),
)
"""Keys that count parts of a model, each of which costs time and memory before any weight is read → the most that is
believed. The deepest published models have some 130 layers, and 512 experts.
"""


def check_counts(config: Any, where: str = "") -> None:
    """Refuse a model's configuration that asks for more parts than any model has.

    Args:
        config: the data of a config.json.
        where: the key that holds it, for messages.

    Raises:
        ValueError: names the key.
    """
    for key, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict):
            check_counts(value, f"{where}{key}.")
        most = next((most for pattern, most in _COUNTS if re.fullmatch(pattern, str(key))), None)
        if str(key).startswith("max_"):  # the longest of something, of which there may be less
            most = None
        for number in value if isinstance(value, list) else [value]:
            if most is not None and isinstance(number, int | float) and number > most:
                raise ValueError(f"{where}{key} is {number:,}, and no model has more than {most:,}")
        if isinstance(value, str | list) and len(value) > _LAYERS and re.search("layer|block|pattern", str(key)):
            raise ValueError(f"{where}{key} has {len(value):,} entries, and no model has more than {_LAYERS:,} layers")
