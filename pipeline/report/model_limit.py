"""The longest document that a model is made for, by its config.json. Needs no torch."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from ...schemas.errors import PacktrainError
from ...schemas.jsontext import parse_json
from ...schemas.model_facts import Limit, stretching
from ..encode.tokenizer import find_tokenizer

_MOST = 10_000_000
"""Largest number of positions that is believed."""


def model_limit(tokenizer: str, base: Path) -> Limit | None:
    """The limit of the model in the tokenizer's folder; None if there is none, or its configuration does not say.

    Args:
        tokenizer, base: as for `find_tokenizer`.
    """
    try:
        config = parse_json((find_tokenizer(tokenizer, base) / "config.json").read_bytes())
    except (PacktrainError, OSError, ValueError, RecursionError):
        return None
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    if not isinstance(config, dict):
        return None
    found = (config.get(name) for name in ("max_position_embeddings", "n_positions"))
    limits = [Limit(one, f"the model's positions end at {one:,}") for one in found if type(one) is int][:1]
    with suppress(AttributeError, TypeError, ValueError, OverflowError):
        limits += [Limit(one.tokens, f"the model's {one.reason}") for one in stretching(SimpleNamespace(**config))]
    return min((one for one in limits if 1 < one.tokens <= _MOST), key=lambda one: one.tokens, default=None)
