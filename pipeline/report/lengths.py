"""Which `max_length`: compares lengths, and recommends one by simple rules.

1. If long documents are truncated or dropped: the shortest length that keeps `KEEPS` of the trained tokens. If they are
   split: the shortest that also leaves `WHOLE` of the documents whole, or `WHOLE_TEXTS` for plain texts.
2. A longer length is chosen only if its rows use less space per trained token by more than `CHEAPER`, since longer rows
   waste less when documents barely fit, and only if at least `FEW_ROWS` rows are left.

Of plain texts that are not cut into pieces, it is said that they could be. Later pieces of conversations would be
answers without the question.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError
from ...schemas.model_facts import Limit
from ...schemas.report import Advice, Choice, Histogram, Point, SplitFigures
from ...stages.forecast.length_stats import LengthStats
from ...stages.forecast.sweep import CANDIDATES, CUTTING, SweepOptions, sweep
from ...stages.select.truncate import Keep

LEAST, MOST = 2, 1 << 24
"""Limits of `truncate.max_length`."""
KEEPS = 0.995
"""Share of trained tokens that a length must keep."""
WHOLE = 0.99
"""Share of documents that splitting must leave whole."""
WHOLE_TEXTS = 0.9
"""Share of plain-text documents that a length must keep whole; lower, because a later piece of a text lacks only its
context.
"""
CHEAPER = 0.02
"""Share of space per trained token that a longer length must save."""
TEXT = 0.9
"""Data with at least this share of trained tokens counts as plain text, where every piece can be trained alone."""
FEW_ROWS = 64
"""Least number of rows from which fuller rows can justify a longer length."""
SAVES = 0.003
"""Another strategy is shown if it needs fewer rows by more than this share."""
_BINS = 60


def candidates(config: RunConfig, lengths: Sequence[int], limit: Limit | None = None) -> list[int]:
    """The lengths to compare, in ascending order: rounded down to multiples of what rows are padded to, with the
    configured length and the model's limit, unless that is above all lengths.
    """
    multiple = config.pack.alignment.row
    model = (limit.tokens,) if limit is not None and limit.tokens < max(lengths, default=0) else ()
    rounded = {length - length % multiple for length in (*lengths, *model)}
    return sorted({config.truncate.max_length, *(one for one in rounded if one >= LEAST)})


def check_length(length: int) -> None:
    """Refuse a length that rows cannot have.

    Raises:
        ConfigError: the length is out of range.
    """
    if not LEAST <= length <= MOST:
        raise ConfigError(f"--lengths: {length:,} is out of range; give lengths from {LEAST} to {MOST:,}")


def choose(
    stats: LengthStats,
    config: RunConfig,
    in_all: int,
    lengths: Sequence[int] = CANDIDATES,
    limit: Limit | None = None,
    train: SplitFigures | None = None,
) -> Choice:
    """Compare lengths, and advise one.

    Args:
        stats: see `document_lengths.read_documents`.
        in_all: number of all documents, which is larger than the stats's if that is a sample.
        lengths: those to compare.
        limit: the longest document that the model is made for; no longer length is advised.
        train: what the run packs of all documents; the configured length then has its figures. Lengths are compared
            by their own, which know nothing of windows, of copies that are kept apart, and of where texts are split.
    """
    read, configured, strategy = len(stats.lengths), config.truncate.max_length, config.pack.strategy
    options = _options(config)
    points = sweep(stats, candidates(config, lengths, limit), [strategy], options)
    texts = stats.labels >= TEXT * stats.tokens > 0
    whole = WHOLE_TEXTS if texts else WHOLE
    cuts = strategy in CUTTING or config.truncate.overlong == "split"
    advice = _advise(points, stats, whole if cuts else 0.0, limit, in_all / max(read, 1)) if stats.tokens else None
    if lengths == CANDIDATES:  # lengths that the user named are all shown
        points = _worth_showing(points, int(stats.lengths.max(initial=0)), configured, advice)
    over = None
    if limit is not None and configured > limit.tokens:
        over = int(np.count_nonzero(stats.lengths > limit.tokens))
    own = next(one for one in points if one.max_length == configured)
    other = _other(own, stats, options)
    if train is not None and train.rows and in_all <= read:
        points = [_as_packed(one, train) if one is own else one for one in points]
    return Choice(
        documents=read,
        documents_in_all=max(read, in_all),
        lengths=length_histogram(stats.lengths),
        longest=list(stats.longest),
        points=points,
        strategy=strategy,
        max_length=configured,
        overlong=config.truncate.overlong,
        cuts=cuts,
        texts=texts,
        advice=advice,
        limit=limit,
        over_limit=over,
        other=other,
    )


def _options(config: RunConfig) -> SweepOptions:
    return SweepOptions(
        keep=Keep(config.truncate.keep),
        drop=config.truncate.overlong == "drop",
        split=config.truncate.overlong == "split",
        keep_untrained=config.keep_untrained,
        max_docs=config.pack.max_docs,
        align=config.pack.alignment.document,
    )


def _as_packed(point: Point, train: SplitFigures) -> Point:
    """A point with the figures of the rows that are packed."""
    return replace(
        point,
        **{key: getattr(train, key) for key in ("pieces", "rows", "bound", "labels", "fill", "padding")},
        labels_lost=point.labels + point.labels_lost - train.labels,
        tokens=train.tokens - train.padding,
    )


def lost(labels: int, labels_lost: int, tokens: int, tokens_lost: int) -> float:
    """The share of trained tokens that is lost; of all tokens, if none is trained. The first of each pair counts what
    is kept.
    """
    kept, gone = (labels, labels_lost) if labels + labels_lost else (tokens, tokens_lost)
    return gone / max(kept + gone, 1)


def lost_at(point: Point) -> float:
    """The share of trained tokens that a point loses; of all tokens, if none is trained."""
    return lost(point.labels, point.labels_lost, point.tokens, point.tokens_lost)


def _worth_showing(points: Sequence[Point], longest: int, configured: int, advice: Advice | None) -> list[Point]:
    """Those up to the first length that no document exceeds, the configured and the advised one."""
    beyond = min((one.max_length for one in points if one.max_length >= longest), default=MOST)
    most = max(beyond, advice.max_length if advice is not None else 0)
    return [one for one in points if one.max_length <= most or one.max_length == configured]


def _other(own: Point, stats: LengthStats, options: SweepOptions) -> Point | None:
    """Another strategy at the same length, if it saves rows; None if none does."""
    name = {"bfd": "tight", "none": "bfd"}.get(own.strategy)
    if name is None or own.rows - own.bound <= SAVES * own.rows:
        return None
    point = sweep(stats, [own.max_length], [name], options)[0]
    return point if own.rows - point.rows > SAVES * own.rows else None


def _advise(points: Sequence[Point], stats: LengthStats, whole: float, limit: Limit | None, more: float) -> Advice:
    """The advice by the rules above.

    Args:
        points: by ascending length.
        whole: share of the documents that must not be cut into pieces.
        more: all documents over those that the points are of.
    """
    may = [one for one in points if limit is None or one.max_length <= limit.tokens] or points[:1]
    enough = [one for one in may if lost_at(one) <= 1 - KEEPS and whole_at(one) >= whole]
    if not enough:
        least = min(map(lost_at, may))
        best = max(may, key=lambda one: (whole_at(one), -one.max_length))
        best = best if whole else next(one for one in may if lost_at(one) <= least + 0.0005)
        return Advice(best.max_length, reached=False, longer=0)
    # Longer rows are fewer. With very few rows, an epoch has too few steps, however full they are.
    worth = [enough[0], *(one for one in enough[1:] if one.rows * more >= FEW_ROWS)]
    space = min(map(_space, worth))
    needs = next(one.max_length for one in worth if _space(one) <= space * (1 + CHEAPER))
    shorter = max((one.max_length for one in may if one.max_length < needs), default=0)
    return Advice(needs, reached=True, longer=int(np.count_nonzero(stats.lengths > shorter)))


def whole_at(point: Point) -> float:
    """Share of documents that are not cut."""
    return 1 - point.documents_cut / max(point.documents + point.documents_lost, 1)


def _space(point: Point) -> float:
    """Space in rows per trained token. It decides the tokens per step, and the work of batches with fixed shapes."""
    return point.rows * point.max_length / max(point.labels or point.tokens, 1)


def length_histogram(lengths: NDArray[Any]) -> Histogram:
    """A histogram of whole numbers whose bins grow by a factor, with whole-number edges and a separate bin for 0."""
    most = int(lengths.max(initial=0))
    grown = np.unique(np.rint(np.geomspace(1, max(most + 1, 2), _BINS)).astype(np.int64))
    return _histogram(lengths, np.array([0, *grown.tolist()], dtype=np.float64), 1)


def fill_histogram(tokens: NDArray[Any], capacity: int) -> Histogram:
    """A histogram of rows by the share of `capacity` that they hold, with up to 50 bins of equal width."""
    bins = min(50, max(capacity, 1))
    edges = np.arange(bins + 1) * (max(capacity, 1) / bins)
    return _histogram(tokens, edges, max(capacity, 1))


def _histogram(values: NDArray[Any], edges: NDArray[np.floating[Any]], scale: int) -> Histogram:
    """Count values between edges; divide edges and sums by `scale`."""
    counts, _ = np.histogram(values, bins=edges)
    total = float(values.sum(dtype=np.float64)) / scale
    return Histogram((edges / scale).tolist(), counts.tolist(), len(values), total)
