"""The comparison of lengths of a run or a plan: reads what `compare.choose` compares from the run's table and parts."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from ....schemas.errors import PacktrainError
from ....schemas.files.foreign import SETTINGS_BYTES, read_regular
from ....schemas.jsontext import parse_json
from ....schemas.models.model_facts import Limit, rotary_limits
from ....schemas.report.length_choice import Choice
from ....schemas.report.report import SplitFigures
from ....stages.forecast.estimate import CANDIDATES
from ...encode.tokenizer import find_tokenizer
from ...pack.pack import Selected
from .compare import choose, lengths_to_compare, rows_for_groups
from .documents import read_documents, read_pairs
from .sharing import compare_sharing

_MOST_POSITIONS = 10_000_000
"""Largest number of positions that is believed: no model has more, and a configuration may hold any number."""


def compare_lengths(
    selected: Selected,
    base: Path,
    packed: Sequence[SplitFigures],
    lengths: Sequence[int] = CANDIDATES,
    scale: float = 1.0,
) -> Choice:
    """Compare lengths over the documents of a run.

    Args:
        base: where relative paths of its configuration start.
        packed: the splits that the run packs, whose figures replace the estimate at the configured length.
        lengths: those to compare.
        scale: how many times more rows there are than were encoded; 1 if all were.
    """
    config = selected.config
    limit = model_limit(config.tokenizer.path, base)
    if selected.pairs:
        pairs = read_pairs(selected)
        pairs = replace(pairs, in_all=round(pairs.in_all * scale))
        # What pairs share is their prompts, whose lengths are known without comparing tokens.
        return choose(pairs, config, lengths, limit, packed)
    stats = read_documents(selected)
    stats = replace(stats, in_all=round(stats.in_all * scale))
    longest = int(stats.lengths.max(initial=0))
    compared = [*lengths_to_compare(config, lengths, limit, longest), rows_for_groups(stats, config)]
    # Once each: the configured rows may be long enough for groups.
    sharing = compare_sharing(selected, list(dict.fromkeys(compared)))
    return choose(stats, config, lengths, limit, packed, sharing)


def model_limit(tokenizer: str, base: Path) -> Limit | None:
    """The limit of the model in the tokenizer's folder; None if there is none, or its configuration does not say.

    Args:
        tokenizer: a folder, or the name of a repository on the Hub that was downloaded.
        base: where relative paths start.
    """
    try:
        config = parse_json(read_regular(find_tokenizer(tokenizer, base) / "config.json", SETTINGS_BYTES))
    except (PacktrainError, OSError, ValueError, RecursionError):
        return None  # a tokenizer without a model is nothing to warn of
    # Of a model that also reads images, the part that reads text.
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    if not isinstance(config, dict):
        return None
    limits = list[Limit]()
    # Older models, such as GPT-2, have the second key in place of the first.
    for key in ("max_position_embeddings", "n_positions"):
        positions = config.get(key)
        if type(positions) is int:  # a boolean is an int, too
            limits.append(Limit(tokens=positions, reason=f"the model's positions end at {positions:,}"))
            break
    with suppress(AttributeError, TypeError, ValueError, OverflowError):  # of a configuration that no model has
        for stretched in rotary_limits(SimpleNamespace(**config)):
            limits.append(Limit(stretched.tokens, f"the model's {stretched.reason}"))
    # A number of positions that no model has would advise nothing useful: 1 the shortest length, 10**9 the longest.
    believed = [limit for limit in limits if 1 < limit.tokens <= _MOST_POSITIONS]
    return min(believed, key=lambda limit: limit.tokens, default=None)
