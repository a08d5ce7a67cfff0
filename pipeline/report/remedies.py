"""What else than another length would help: of trained tokens that are cut away, and of rows that are closed early."""

from collections.abc import Sequence
from dataclasses import replace

from ...schemas.config import RunConfig
from ...schemas.report import Point
from ...stages.stock import Compose, Stock
from ...stages.sweep import SweepOptions, sweep
from ...stages.truncate import Keep
from .spoken import count, many, share

LOSES = 0.01
"""Of the trained tokens, from which on it is told what would keep them."""


def own_point(points: Sequence[Point], config: RunConfig) -> Point:
    """What the configuration does: `none` packs what `bfd` packs."""
    strategy = "bfd" if config.pack.strategy == "none" else config.pack.strategy
    return next(one for one in points if (one.strategy, one.max_length) == (strategy, config.truncate.max_length))


def remedies(stock: Stock, points: Sequence[Point], config: RunConfig) -> list[str]:
    """What keeps the trained tokens that the configured length loses, at the same length."""
    point, length = own_point(points, config), config.truncate.max_length
    total = point.labels + point.labels_lost
    overlong = config.truncate.overlong
    if (
        point.labels_lost < LOSES * total
        or not total
        or point.strategy != "bfd"
        or overlong not in ("truncate", "drop")
    ):
        return []
    ways = []
    if overlong == "truncate" and config.truncate.keep == "start":
        kept = int(stock.cut(length, Keep.END)[1].sum())
        if kept > point.labels:
            ways.append(f"truncate.keep: end would keep {share(kept / total)} of the trained tokens")
    ways.append("truncate.overlong: split would keep all but first tokens of pieces")
    return [f"At the configured {length:,}, which keeps {share(point.labels / total)}, {'; '.join(ways)}."]


def closed_early(
    stock: Stock, points: Sequence[Point], config: RunConfig, how: SweepOptions, compose: Compose | None
) -> list[str]:
    """How many rows there would be without `pack.max_docs`, where it makes any."""
    point = own_point(points, config)
    if config.pack.max_docs is None or config.pack.strategy == "none" or not point.rows:
        return []
    free = sweep(stock, [point.max_length], [point.strategy], replace(how, max_docs=None), compose)[0]
    if free.rows >= point.rows:
        return []
    return [
        f"pack.max_docs: {config.pack.max_docs} closes rows before they are full: at {point.max_length:,} there are "
        f"{many(point.rows, 'row')}, and without it there would be {count(free.rows)}."
    ]
