"""The comparison of lengths of a run or a plan: reads what `lengths.choose` compares from the run's table and parts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...schemas.report.length_choice import Choice
from ...schemas.report.report import SplitFigures
from ...stages.forecast.estimate import CANDIDATES
from ..pack.pack import Selected
from .document_lengths import read_documents, read_pairs
from .lengths import choose, lengths_to_compare, rows_for_groups
from .model_limit import model_limit
from .shared_lengths import compare_sharing


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
        packed, lengths: as for `choose`.
        scale: all rows over those that were encoded.
    """
    config = selected.config
    limit = model_limit(config.tokenizer.path, base)
    if selected.pairs:
        pairs = read_pairs(selected)
        pairs = replace(pairs, in_all=round(pairs.in_all * scale))
        return choose(pairs, config, lengths, limit, packed)
    stats = read_documents(selected)
    stats = replace(stats, in_all=round(stats.in_all * scale))
    compared = [*lengths_to_compare(config, lengths, limit), rows_for_groups(stats, config)]
    sharing = compare_sharing(selected, list(dict.fromkeys(compared)))
    return choose(stats, config, lengths, limit, packed, sharing)
