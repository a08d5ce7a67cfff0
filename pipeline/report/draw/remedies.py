"""Finds settings other than the length that would help: against lost trained tokens, and against rows that close
early.
"""

from collections.abc import Sequence
from dataclasses import replace

from ....schemas.config.config import RunConfig
from ....schemas.report import Point
from ....schemas.units import exact, plural, share
from ....stages.forecast.length_stats import Compose, LengthStats
from ....stages.forecast.sweep import QUICK, SweepOptions, sweep
from ....stages.select.truncate import Keep

SAVES = 0.003
"""If `tight` needs fewer rows by more than this share, the report names it."""
LOSES = 0.01
"""If at least this share of trained tokens is lost, the report says what would keep them."""


def own_point(points: Sequence[Point], config: RunConfig) -> Point:
    """Return the configuration's point in the comparison. For `none` it is the point of `bfd`, which packs the same
    tokens.
    """
    strategy = "bfd" if config.pack.strategy == "none" else config.pack.strategy
    return next(one for one in points if (one.strategy, one.max_length) == (strategy, config.truncate.max_length))


def remedies(stats: LengthStats, points: Sequence[Point], config: RunConfig) -> list[str]:
    """Name settings that keep more trained tokens at the configured length."""
    point, length = own_point(points, config), config.truncate.max_length
    total = point.labels + point.labels_lost
    overlong = config.truncate.overlong
    if (
        point.labels_lost < LOSES * total
        or not total
        or point.strategy not in ("bfd", "tight")
        or overlong not in ("truncate", "drop")
    ):
        return []
    ways = []
    if overlong == "truncate" and config.truncate.keep == "start":
        kept = int(stats.cut(length, Keep.END)[1].sum())
        if kept > point.labels:
            ways.append(f"truncate.keep: end would keep {share(kept / total)} of the trained tokens")
    ways.append("truncate.overlong: split would keep all but first tokens of pieces")
    return [f"At the configured {length:,}, which keeps {share(point.labels / total)}, {'; '.join(ways)}."]


def rows_unpadded(
    stats: LengthStats, points: Sequence[Point], config: RunConfig, how: SweepOptions, compose: Compose | None
) -> int | None:
    """Count the rows that there would be if pieces were not padded; None if they are not."""
    if how.align == 1:
        return None
    point = own_point(points, config)
    if config.pack.strategy == "none":
        return point.pieces
    return sweep(stats, [point.max_length], [point.strategy], replace(how, align=1, work=QUICK), compose)[0].rows


def closed_early(
    stats: LengthStats, points: Sequence[Point], config: RunConfig, how: SweepOptions, compose: Compose | None
) -> list[str]:
    """Say how many rows there would be without `pack.max_docs`, if it costs rows."""
    point = own_point(points, config)
    if config.pack.max_docs is None or config.pack.strategy == "none" or not point.rows:
        return []
    free = sweep(stats, [point.max_length], [point.strategy], replace(how, max_docs=None, work=QUICK), compose)[0]
    if free.rows >= point.rows:
        return []
    return [
        f"pack.max_docs: {config.pack.max_docs} closes rows before they are full: at {point.max_length:,} there are "
        f"{plural(point.rows, 'row')}, and without it there would be {exact(free.rows)}."
    ]


def tighter(
    stats: LengthStats, points: Sequence[Point], config: RunConfig, how: SweepOptions, compose: Compose | None
) -> list[str]:
    """Say how many rows `tight` would need, if that is fewer by more than `SAVES`; a run may find still fewer."""
    if config.pack.strategy != "bfd":
        return []
    point = own_point(points, config)
    if point.rows - point.bound <= SAVES * point.rows:
        return []
    tight = sweep(stats, [point.max_length], ["tight"], replace(how, work=QUICK), compose)[0]
    saved = 1 - tight.rows / point.rows
    if saved <= SAVES:
        return []
    least = "; no plan needs fewer" if tight.rows == tight.bound else ""
    return [
        f"pack.strategy: tight would put the same documents at {point.max_length:,} into {plural(tight.rows, 'row')} "
        f"instead of {exact(point.rows)}, {share(saved, 2)} fewer{least}."
    ]
