"""The longest document that a model is made for, from its `config.json`. Needs no torch."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...schemas.errors import ConfigError, TokenizerError
from ...schemas.jsontext import parse_json
from ...schemas.positions import Limit, stretching
from ..encode.tokenizer_folder import find_tokenizer
from .options import ReportOptions

_MOST = 10_000_000
"""Largest number of positions that is believed."""


def limit_of_model(path: Path) -> Limit | None:
    """The limit of a model, given by its folder or its `config.json`; None if the configuration does not say.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = path / "config.json" if path.is_dir() else path
    try:
        config = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"--model: there is no {path}; give a model's folder or its config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--model: {path} cannot be read ({error}); give another model's config.json") from None
    if not isinstance(config, dict):
        raise ConfigError(f"--model: {path} is not a model's config.json; give a model's folder")
    text = config.get("text_config")
    return _limit(text if isinstance(text, dict) else config)


def with_tokenizers_model(options: ReportOptions, tokenizer: str, base: Path) -> ReportOptions:
    """The options, with the limit of the model in the tokenizer's folder if the user gave no model.

    Args:
        tokenizer, base: as for `find_tokenizer`.
    """
    if options.limit is not None:
        return options
    try:
        return replace(options, limit=limit_of_model(find_tokenizer(tokenizer, base)))
    except (ConfigError, TokenizerError, OSError):
        return options


def _limit(config: dict[str, Any]) -> Limit | None:
    found = (config.get(name) for name in ("max_position_embeddings", "n_positions"))
    positions = next((one for one in found if type(one) is int and 1 < one <= _MOST), None)
    limits = [Limit(positions, f"the model's positions end at {positions:,}")] if positions is not None else []
    try:
        stretch = [Limit(one.tokens, f"the model's {one.reason}") for one in stretching(SimpleNamespace(**config))]
    except (AttributeError, TypeError, ValueError, OverflowError):
        stretch = []
    limits += [one for one in stretch if 1 < one.tokens <= _MOST]
    return min(limits, key=lambda one: one.tokens, default=None)
