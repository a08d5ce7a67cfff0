"""How long a document may be for the model whose configuration lies beside the tokenizer."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from ...schemas.errors import PacktrainError
from ...schemas.files.foreign import SETTINGS_BYTES, read_regular
from ...schemas.jsontext import parse_json
from ...schemas.models.model_facts import Limit, rotary_limits
from ..encode.tokenizer import find_tokenizer

_MOST_POSITIONS = 10_000_000
"""Largest number of positions that is believed."""


def model_limit(tokenizer: str, base: Path) -> Limit | None:
    """The limit of the model in the tokenizer's folder; None if there is none, or its configuration does not say.

    Args:
        tokenizer, base: as for `find_tokenizer`.
    """
    try:
        config = parse_json(read_regular(find_tokenizer(tokenizer, base) / "config.json", SETTINGS_BYTES))
    except (PacktrainError, OSError, ValueError, RecursionError):
        return None
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    if not isinstance(config, dict):
        return None
    limits = list[Limit]()
    for key in ("max_position_embeddings", "n_positions"):
        positions = config.get(key)
        if type(positions) is int:  # a boolean is an int, too
            limits.append(Limit(positions, f"the model's positions end at {positions:,}"))
            break
    with suppress(AttributeError, TypeError, ValueError, OverflowError):  # of a configuration that no model has
        for stretched in rotary_limits(SimpleNamespace(**config)):
            limits.append(Limit(stretched.tokens, f"the model's {stretched.reason}"))
    believed = [limit for limit in limits if 1 < limit.tokens <= _MOST_POSITIONS]
    return min(believed, key=lambda limit: limit.tokens, default=None)
