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


def rotary_limits(config: Any) -> Iterator[Limit]:
    """Yield the length of the longest document that does not change the other documents of its batch.

    Rotary embeddings of the kinds `dynamic` and `longrope` choose one set of frequencies for a whole batch, by its
    longest document. YaRN, linear and Llama 3 scaling do not depend on lengths.

    Args:
        config: a model's configuration, with its keys as attributes.
    """
    # transformers 5 has `rope_parameters`, earlier versions `rope_scaling`: {"rope_type": "longrope", …}.
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # Models with several kinds of attention have parameters for each, one level below: {"full_attention": {…}, …}.
    inner_parameters = [inner for inner in parameters.values() if isinstance(inner, dict)]
    for rope in (parameters, *inner_parameters):
        kind = str(rope.get("rope_type", rope.get("type")))
        # `su` was longrope's name in the first Phi-3. PhiMoE has factors for long documents whatever it calls its kind,
        # but for `default`, for which transformers uses none.
        is_long = kind in ("longrope", "su") or (kind != "default" and "long_mscale" in rope)
        if "dynamic" in kind:
            key = "max_position_embeddings"
            tokens = config.max_position_embeddings
        elif is_long:
            # Up to this length frequencies are those of the first training; beyond it, others.
            key = "original_max_position_embeddings"
            tokens = rope.get(key) or getattr(config, key, None)
        else:
            continue
        limit = int(tokens or config.max_position_embeddings)
        yield Limit(
            limit,
            f"{kind} rotary embeddings change for all documents of a batch when one is longer than {limit:,} tokens "
            f"({key})",
        )


# What building a model would cost

_MAX_LAYERS = 1024
"""The most layers that are believed."""
_MAX_COUNTS: tuple[tuple[str, int], ...] = (
    (r"(num|n)_.*layers?|.*_layers|num_hidden_layers|n_layer|depth|depths|num_blocks|n_blocks", _MAX_LAYERS),
    (r"(num|n)_.*experts?|moe_num_experts", 8192),
    (r"num_labels", 1 << 16),
    (r"(num|n)_.*heads?", 1 << 14),
)
"""(keys that count a kind of parts, the most parts that are believed). Each part costs time and memory before any
weight is read. The deepest published models have some 130 layers, and 512 experts.
"""


def refuse_too_many_parts(config: Any, where: str = "") -> None:
    """Refuse a model's configuration that asks for more layers, experts, heads or labels than any model has: a file of
    a few bytes could fill the memory.

    Args:
        config: the data of a config.json.
        where: the keys above `config` with a dot after each, for messages: `text_config.`; "" at the top.

    Raises:
        ValueError: names the key.
    """
    if not isinstance(config, dict):
        return
    for key, value in config.items():
        if isinstance(value, dict):  # of a part of the model, such as `text_config`
            refuse_too_many_parts(value, f"{where}{key}.")
        _refuse_too_many_of(str(key), value, f"{where}{key}")


def _refuse_too_many_of(key: str, value: Any, where: str) -> None:
    """Refuse a key that counts more parts of a kind than any model has, or a list that has an entry for each of more
    layers.

    Raises:
        ValueError: names the key, by `where`.
    """
    max_count = next((limit for pattern, limit in _MAX_COUNTS if re.fullmatch(pattern, key)), None)
    # `max_window_layers` and the like are limits themselves, and may be far above what is there.
    if max_count is not None and not key.startswith("max_"):
        numbers = value if isinstance(value, list) else [value]  # `depths` has a number for each stage of a model
        for number in numbers:
            if isinstance(number, int | float) and number > max_count:
                raise ValueError(f"{where} is {number:,}, and no model has more than {max_count:,}")
    # `layer_types`, `hybrid_override_pattern` and the like have an entry for each layer.
    is_list_of_layers = isinstance(value, str | list) and re.search("layer|block|pattern", key) is not None
    if is_list_of_layers and len(value) > _MAX_LAYERS:
        raise ValueError(f"{where} has {len(value):,} entries, and no model has more than {_MAX_LAYERS:,} layers")
