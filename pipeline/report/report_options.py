"""What the user can choose about a report, and the longest document that a model is made for. Needs no torch."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...schemas.errors import ConfigError, TokenizerError
from ...schemas.jsontext import parse_json
from ...schemas.model_facts import Limit, stretching
from ...stages.forecast.sweep import CANDIDATES
from ..encode.tokenizer import find_tokenizer

SWEPT = 2_000_000
"""Number of documents that the comparison of lengths reads at most, evenly chosen. It takes about 100 MB and four
seconds, and with `overlong: split` two more seconds per 100 million tokens, to find lines and turns.
"""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of a report. None of them changes the dataset."""

    lengths: tuple[int, ...] = CANDIDATES
    """Lengths to compare; the configured one is added."""
    max_length_limit: int | None = None
    """The longest length that the report may advise; longer ones are still compared."""
    limit: Limit | None = None
    """The longest document that the model is made for; None to ask the model in the tokenizer's folder, if there is
    one. Without `max_length_limit`, no longer length is advised."""
    documents: int = SWEPT
    """Maximum number of documents that the comparison of lengths reads, evenly chosen."""
    rows: int = 6
    """Number of packed rows to show as text."""


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
