"""Documents of made-up lengths, and what a report says of them."""

from dataclasses import replace
from typing import Any

import numpy as np
from packtrain.pipeline.report.lengths import candidates, choose
from packtrain.pipeline.report.report_options import ReportOptions
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.report import Choice, Point
from packtrain.stages.forecast.length_stats import LengthStats, SplitPieceLengths
from packtrain.stages.select.split import Places, split


def configured(**changes: Any) -> RunConfig:
    data = {
        "out": "out",
        "tokenizer": {"path": "unused"},
        "sources": [{"name": "s", "format": "text", "path": "unused"}],
        "truncate": {"max_length": 2048},
    }
    return RunConfig.model_validate({**data, **changes})


def stats_of(lengths: Any, prompt: float = 0.5) -> LengthStats:
    """Documents whose first part is no training."""
    array = np.array(lengths, dtype=np.int32)
    begins = (array * prompt).astype(np.int32)
    return LengthStats(array, np.arange(len(array), dtype=np.int32), begins, array.copy())


def cut_anywhere(stats: LengthStats, config: RunConfig, options: ReportOptions) -> LengthStats:
    """The same with what `overlong: split` at tokens makes of it; one run a document, up to its end."""
    pieces = {}
    highs = np.cumsum(stats.lengths, dtype=np.int64)
    lows = highs - stats.lengths
    for length in candidates(config, options):
        long = np.flatnonzero(stats.lengths > length)
        if not len(long):
            continue
        cut = split(lows[long], highs[long], length, 0, Places())
        asked = (lows + stats.begins)[long][cut.document]
        labels = np.maximum(cut.end - np.maximum(cut.start + 1, asked), 0)
        stays = (labels > 0) | config.keep_untrained
        columns = (long[cut.document], cut.end - cut.start, labels)
        pieces[length] = SplitPieceLengths(*(column[stays].astype(np.int32) for column in columns))
    return replace(stats, pieces=pieces)


def choice_of(stats: LengthStats, config: RunConfig | None = None, **options: Any) -> Choice:
    config, how = config or configured(), ReportOptions(**options)
    if config.truncate.overlong == "split":
        stats = cut_anywhere(stats, config, how)
    return choose(stats, config, how, len(stats.lengths))


def at(choice: Choice, strategy: str, length: int) -> Point:
    return next(one for one in choice.points if (one.strategy, one.max_length) == (strategy, length))


def lognormal(mean: float, spread: float, count: int = 3000) -> Any:
    return np.clip(np.random.default_rng(1).lognormal(mean, spread, count), 2, 300_000).astype(np.int32)
