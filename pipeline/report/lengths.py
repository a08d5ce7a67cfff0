"""Which `max_length`: compares lengths, and recommends one by simple rules.

1. If long documents are truncated or dropped: the shortest length that keeps `KEEPS` of the trained tokens. If they are
   split: the shortest that also leaves `WHOLE` of the documents whole, or `WHOLE_TEXTS` for plain texts.
2. A longer length is chosen only if its rows use less space per trained token by more than `CHEAPER`, since longer rows
   waste less when documents barely fit, and only if at least `FEW_ROWS` rows are left.
3. A few documents that alone would make the length more than `FAR` times longer do not count, unless the run would stop
   at them or cut them into pieces: the other documents decide, and the advice says how many they are.
4. Texts are split if truncation would need longer rows than splitting. Conversations are not: their later pieces would
   be answers without the question.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError
from ...schemas.model_facts import Limit
from ...schemas.report import Advice, Choice, Histogram, Point, SplitFigures
from ...stages.forecast.length_stats import LengthStats
from ...stages.forecast.sweep import CANDIDATES, SweepOptions, lost_by_source, sweep
from ...stages.select.truncate import Keep
from .report_options import ReportOptions

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
FEW, FEW_SHARE, FEW_AT_MOST = 2, 0.001, 0.05
"""So many long documents do not count if they are far longer than the others: two, or this share of all documents if
that is more; but never more than the last share.
"""
FAR = 4
"""Documents are far longer if they have more than the length that all need, divided by this."""
SAVES = 0.003
"""Another strategy is shown if it needs fewer rows by more than this share."""
_FULLER, _FURTHER = 0.02, 16
"""Beyond the longest document, lengths up to this many times that are shown if their rows are fuller by this."""
_QUANTILES = {"min": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "max": 1.0}
_BINS = 60
_CUTTING = ("bfd_split", "wrapped")
"""Strategies that cut documents themselves."""


def candidates(config: RunConfig, options: ReportOptions) -> list[int]:
    """The lengths to compare, in ascending order: rounded down to multiples of what rows are padded to, with the
    configured length and the model's limit, unless that is above all lengths.

    Raises:
        ConfigError: a length is out of range.
    """
    multiple, limit = config.pack.alignment.row, options.limit
    for length in options.lengths:
        check_length(length)
    model = (limit.tokens,) if limit is not None and limit.tokens < max(options.lengths, default=0) else ()
    rounded = {length - length % multiple for length in (*options.lengths, *model)}
    return sorted({config.truncate.max_length, *(one for one in rounded if one >= LEAST)})


def check_length(length: int) -> None:
    """Refuse a length that rows cannot have.

    Raises:
        ConfigError: the length is out of range.
    """
    if not LEAST <= length <= MOST:
        raise ConfigError(f"--lengths: {length:,} is out of range; give lengths from {LEAST} to {MOST:,}")


def choose(
    stats: LengthStats, config: RunConfig, options: ReportOptions, in_all: int, train: SplitFigures | None = None
) -> Choice:
    """Compare lengths, and advise one.

    Args:
        stats: see `document_lengths.read_documents`.
        in_all: number of all documents, which is larger than the stats's if that is a sample.
        train: what the run packs of all documents; the configured length then has its figures. Lengths are compared
            by their own, which know nothing of windows and of copies that are kept apart.

    Raises:
        ConfigError: a length is out of range.
    """
    read, strategy, configured = len(stats.lengths), config.pack.strategy, config.truncate.max_length
    sweeper = _Sweeper(stats, config)
    points = sweeper.points(candidates(config, options))
    if options.lengths == CANDIDATES:  # lengths that the user named are all shown
        shown = _worth_showing(points, int(stats.lengths.max(initial=0)), configured)
        points = [one for one in points if one.max_length in shown]
    given = options.max_length_limit
    limit = Limit(given, "") if given is not None else options.limit
    advice = _Advisor(sweeper, points, limit, in_all / max(read, 1)).advise() if read else None
    over = None
    if options.limit is not None and configured > options.limit.tokens:
        long = stats.lengths > options.limit.tokens
        if config.truncate.overlong == "drop":
            long &= stats.lengths <= configured
        over = int(np.count_nonzero(long))
    own = next(one for one in points if (one.strategy, one.max_length) == (strategy, configured))
    other = sweeper.other(own)
    if train is not None and train.rows and in_all <= read:
        points = [_as_packed(one, train) if one is own else one for one in points]
    names = [source.name for source in config.sources]
    several = len(names) > 1 and stats.sources is not None
    sources = lost_by_source(stats, configured, _planned(strategy), sweeper.how, names) if several else []
    return Choice(
        documents=read,
        documents_in_all=max(read, in_all),
        held_out=stats.held_out,
        lengths=length_histogram(stats.lengths),
        longest=list(stats.longest),
        points=points,
        strategy=strategy,
        max_length=configured,
        overlong=config.truncate.overlong,
        advice=advice,
        limit=limit,
        over_limit=over,
        other=other,
        sources=sources if len(sources) > 1 else [],
    )


def _as_packed(point: Point, train: SplitFigures) -> Point:
    """A point with the figures of the rows that are packed."""
    return replace(
        point,
        **{key: getattr(train, key) for key in ("pieces", "rows", "bound", "labels", "fill", "padding")},
        labels_lost=point.labels + point.labels_lost - train.labels,
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


def _planned(strategy: str) -> str:
    """The strategy whose losses stand in for a strategy's own: `none` and `tight` cut what `bfd` cuts, and the pieces
    of `wrapped` depend on where rows end."""
    return {"none": "bfd", "tight": "bfd", "wrapped": "bfd_split"}.get(strategy, strategy)


class _Sweeper:
    """What a configuration makes of the documents at other lengths."""

    def __init__(self, stats: LengthStats, config: RunConfig) -> None:
        self.stats, self.config = stats, config
        self.how = SweepOptions(
            keep=Keep(config.truncate.keep),
            drop=config.truncate.overlong == "drop",
            split=config.truncate.overlong == "split",
            keep_untrained=config.keep_untrained,
            max_docs=config.pack.max_docs,
            align=config.pack.alignment.document,
        )
        self.is_text = stats.labels >= TEXT * stats.tokens > 0
        self.may_cut = self.how.split or self.is_text or config.pack.strategy in _CUTTING

    def points(self, lengths: Sequence[int]) -> list[Point]:
        """Of the configured strategy; and of `bfd_split` for plain texts, which may be split, and beside `wrapped`."""
        strategy = self.config.pack.strategy
        split = strategy == "wrapped" or (self.is_text and strategy != "bfd_split" and not self.how.split)
        return sweep(self.stats, lengths, [strategy, *(["bfd_split"] if split else [])], self.how)

    def other(self, own: Point) -> Point | None:
        """Another strategy at the same length, if it saves rows; None if none does."""
        name = {"bfd": "tight", "none": "bfd"}.get(own.strategy)
        if name is None or own.rows - own.bound <= SAVES * own.rows:
            return None
        point = sweep(self.stats, [own.max_length], [name], self.how)[0]
        return point if own.rows - point.rows > SAVES * own.rows else None

    def without(self, documents: NDArray[np.bool_]) -> "_Sweeper":
        """The same for the documents that are not among the (N,) flagged ones."""
        kept, stats = ~documents, self.stats
        mine = kept[stats.owners]
        owners = (np.cumsum(kept) - 1)[stats.owners[mine]].astype(np.int32)
        rest = LengthStats(stats.lengths[kept], owners, stats.begins[mine], stats.ends[mine])
        return _Sweeper(rest, self.config)


def _worth_showing(points: Sequence[Point], longest: int, configured: int) -> set[int]:
    """The lengths up to the first that no document exceeds, then on while rows get fuller, and the configured one."""
    fills = {one.max_length: one.fill for one in points if one.strategy == points[0].strategy}
    beyond = [one for one in fills if one >= longest]
    fuller = [one for one in beyond if one <= _FURTHER * longest and fills[one] >= fills[beyond[0]] + _FULLER]
    most = fuller[-1] if fuller else beyond[0] if beyond else max(fills)
    return {configured, *(one for one in fills if one <= most)}


@dataclass(slots=True)
class _Advisor:
    """Chooses a length."""

    sweeper: _Sweeper
    points: Sequence[Point]
    limit: Limit | None
    more: float
    """All documents over those that the points are of."""
    at: dict[tuple[str, int], Point] = field(init=False)
    lengths: list[int] = field(init=False)
    """Those that may be advised."""

    def __post_init__(self) -> None:
        self.at = {(one.strategy, one.max_length): one for one in self.points}
        compared = sorted({one.max_length for one in self.points})
        affordable = [one for one in compared if self.limit is None or one <= self.limit.tokens]
        self.lengths = affordable or compared[:1]

    def advise(self) -> Advice | None:
        """The advice by the rules above; None if there are no tokens."""
        if not self.sweeper.stats.tokens:
            return None
        strategy = self.sweeper.config.pack.strategy
        if strategy == "wrapped":  # what it cuts depends on where rows end, not on the length
            strategy = "bfd_split"
        strict = self.sweeper.config.truncate.overlong == "error"
        needs = self.shortest(strategy)
        if ("bfd_split", self.lengths[0]) in self.at and strategy != "bfd_split" and not strict:
            fit = self.shortest("bfd_split")
            if fit is not None and (needs is None or needs > fit):
                return Advice(fit, "bfd_split", True, 0, None)
        if not self.sweeper.may_cut and not strict and (others := self._without_few(strategy)) is not None:
            return others
        if needs is not None:
            return Advice(needs, strategy, True, 0, None)
        if self.sweeper.how.split or strategy in _CUTTING:
            best = max(self.lengths, key=lambda one: (_whole(self.at[strategy, one]), -one))
        else:
            least = min(lost_at(self.at[strategy, one]) for one in self.lengths)
            best = next(one for one in self.lengths if lost_at(self.at[strategy, one]) <= least + 0.0005)
        return Advice(best, strategy, False, 0, None)

    def shortest(self, strategy: str, lengths: Sequence[int] | None = None) -> int | None:
        """The shortest length that keeps enough, or a longer one with fuller rows; None if none keeps enough."""
        enough = [one for one in lengths or self.lengths if self._keeps_enough(self.at[strategy, one])]
        if not enough:
            return None
        # Longer rows are fewer. With very few rows, an epoch has too few steps, however full they are.
        worth = [enough[0], *(one for one in enough[1:] if self.at[strategy, one].rows * self.more >= FEW_ROWS)]
        least = min(_space(self.at[strategy, length]) for length in worth)
        return next(one for one in worth if _space(self.at[strategy, one]) <= least * (1 + CHEAPER))

    def _keeps_enough(self, point: Point) -> bool:
        if 1 - lost_at(point) < KEEPS:
            return False
        if point.strategy not in _CUTTING and not self.sweeper.how.split:
            strict = self.sweeper.config.truncate.overlong == "error"
            return not strict or not point.documents_cut + point.documents_lost
        return _whole(point) >= (WHOLE_TEXTS if self.sweeper.is_text else WHOLE)

    def _without_few(self, strategy: str) -> Advice | None:
        """The advice for all but a few far longer documents; None if there are none, or if they make no difference."""
        compared = sorted({one.max_length for one in self.points})
        needs, documents = self.shortest(strategy, compared), self.sweeper.stats.lengths
        far = documents > (needs or compared[-1]) // FAR
        few, every = int(np.count_nonzero(far)), len(documents)
        if not 0 < few <= min(max(FEW, FEW_SHARE * every), FEW_AT_MOST * every):
            return None
        sweeper = self.sweeper.without(far)
        advice = _Advisor(sweeper, sweeper.points(self.lengths), self.limit, self.more).shortest(strategy)
        if advice is None or advice == needs:
            return None
        return Advice(advice, strategy, True, few, needs)


def _whole(point: Point) -> float:
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
    """Count values between edges; divide edges, sums and quantiles by `scale`."""
    found, often = np.unique(values, return_counts=True)
    counts, _ = np.histogram(found, bins=edges, weights=often)
    quantiles = dict[str, float]()
    if len(values):
        # The smallest value with at least that share of all at or below it.
        ranks = [max(1, -(-int(share * 10_000) * len(values) // 10_000)) for share in _QUANTILES.values()]
        at = found[np.searchsorted(np.cumsum(often), ranks)]
        quantiles = dict(zip(_QUANTILES, (at / scale).tolist(), strict=True))
    total = float(values.sum(dtype=np.float64)) / scale
    return Histogram((edges / scale).tolist(), counts.astype(np.int64).tolist(), len(values), total, quantiles)
