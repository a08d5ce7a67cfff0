"""Which `max_length`: compares lengths; the advised one is chosen by the rules in `advised`.

Where rows are longer than documents (`pack.row_length`), shorter lengths are compared in these rows, and longer ones in
rows of their own length; and it is said what still longer rows would save.

Of plain texts that are not cut into pieces, it is said that they could be. Later pieces of conversations would be
answers without the question.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....schemas.config.config import RunConfig
from ....schemas.models.model_facts import Limit
from ....schemas.report.length_choice import Advice, Choice, Histogram, PairKeys, Point, Sharing
from ....schemas.report.report import SplitFigures
from ....stages.forecast.estimate import CANDIDATES, Stats, estimate, rows_and_bound
from ....stages.forecast.pair_stats import PairStats
from .advised import CHEAPER, FEW_ROWS, WHOLE, WHOLE_TEXTS, advise, space_of
from .sharing import Lengths, SharedLengths

LEAST, MOST = 2, 1 << 24
"""Limits of `truncate.max_length`."""
_FULL = 0.995
"""Share of the rows that is full, from which no longer length is compared."""
_BINS = 60
SAVES = 0.003
"""Another strategy is shown if it needs fewer rows by more than this share."""


def candidates(config: RunConfig, lengths: Sequence[int], limit: Limit | None = None) -> list[int]:
    """The lengths to compare, in ascending order: rounded down to multiples of what rows are padded to, with the
    configured length and the model's limit, unless that is above all lengths.
    """
    compared = set(lengths)
    if limit is not None and limit.tokens < max(lengths, default=0):
        compared.add(limit.tokens)
    fixed_rows = _fixed_row_length(config)
    multiple = config.pack.alignment.row
    # Where rows keep their length, they are padded and not their documents: 500 stays 500. Where rows are as long as
    # documents may be, with a multiple of 96, 500 becomes 480.
    rounded = {length if length <= fixed_rows else length - length % multiple for length in compared}
    return sorted({config.longest_piece, *(length for length in rounded if length >= LEAST)})


def _fixed_row_length(config: RunConfig) -> int:
    """The capacity that rows keep at other lengths of documents; 0 if each length has rows of its own."""
    return 0 if config.pack.cuts_documents else config.pack.row_length or 0


def choose(
    stats: Stats,
    config: RunConfig,
    lengths: Sequence[int] = CANDIDATES,
    limit: Limit | None = None,
    packed: Sequence[SplitFigures] = (),
    sharing: SharedLengths | None = None,
) -> Choice:
    """Compare lengths, and advise one.

    Args:
        stats: see `documents.read_documents` and `read_pairs`.
        lengths: those to compare.
        limit: the longest document that the model is made for; no longer length is advised.
        packed: the splits that the run packs; the configured length then has the figures of its split train. Lengths
            are compared by their own, which know nothing of windows, of copies that are kept apart, and of where texts
            are split.
        sharing: what the documents can share at each of `lengths_to_compare`, and in `rows_for_groups`.
    """
    limit = _limit_of_lengths(stats, limit)
    documents = len(stats.lengths)
    documents_in_all = max(documents, stats.in_all)
    configured = config.longest_piece
    cuts = config.pack.cuts_documents or config.truncate.overlong == "split"
    least_uncut = (WHOLE_TEXTS if stats.texts else WHOLE) if cuts else 0.0
    points = _compare_lengths(stats, config, lengths, limit, sharing)
    advice = None
    if stats.tokens:
        advice = advise(points, stats, least_uncut, limit, documents_in_all / max(documents, 1))
    if lengths == CANDIDATES:
        points = _worth_showing(points, stats, configured, advice)
    configured_point = next(point for point in points if point.max_length == configured)
    fuller = None
    longer_rows = None
    # Of documents that share tokens, lengths alone do not say how full rows of other strategies are.
    if stats.are_packed and (not config.pack.shares or isinstance(stats, PairStats)):
        fuller = _fuller_strategy(stats, config, configured_point)
        longer_rows = _longer_rows(stats, config, configured_point) if _fixed_row_length(config) else None
    train = next((figures for figures in packed if figures.split == "train"), None)
    if train is not None and documents == documents_in_all:
        points = [_as_packed(point, train) if point is configured_point else point for point in points]
    over_limit = None
    if limit is not None and configured > limit.tokens:
        over_limit = int(np.count_nonzero(stats.lengths > limit.tokens))
    return Choice(
        documents=documents,
        documents_in_all=documents_in_all,
        lengths=length_histogram(stats.lengths),
        longest=list(stats.longest),
        points=points,
        strategy=config.pack.strategy,
        max_length=configured,
        key="max_length" if configured == config.truncate.max_length else "row_length",
        row_length=configured_point.row_length,
        longer_rows=longer_rows,
        overlong=config.truncate.overlong,
        cuts=cuts,
        texts=stats.texts,
        advice=advice,
        limit=limit,
        over_limit=over_limit,
        other=fuller.point if fuller is not None else None,
        other_saves=fuller.saves if fuller is not None else 0.0,
        sharing=_describe_sharing(stats, config, configured_point, sharing),
        pairs=_compare_keys(stats, config, configured_point) if isinstance(stats, PairStats) else None,
    )


def lengths_to_compare(config: RunConfig, lengths: Sequence[int], limit: Limit | None) -> list[Lengths]:
    """The lengths of `candidates`, each with the capacity of its rows."""
    fixed_rows = _fixed_row_length(config)
    return [Lengths(length, max(length, fixed_rows)) for length in candidates(config, lengths, limit)]


def rows_for_groups(stats: Stats, config: RunConfig) -> Lengths:
    """The configured length in rows of at least twice the longest document that it keeps: two of a group then find room
    beside each other.
    """
    limit = config.longest_piece
    longest = min(limit, int(stats.lengths.max(initial=0)))
    multiple = config.pack.alignment.row
    return Lengths(limit, max(config.row_length, -(-2 * longest // multiple) * multiple))


def _limit_of_lengths(stats: Stats, limit: Limit | None) -> Limit | None:
    """The model's limit where it limits the lengths that are compared: not where these are of both sides of pairs, of
    which each may be as long as the model's limit.
    """
    if limit is None or not isinstance(stats, PairStats) or not stats.are_packed:
        return limit
    return limit if int(stats.parts.longest.max(initial=0)) > limit.tokens else None


def _compare_keys(stats: PairStats, config: RunConfig, configured: Point) -> PairKeys:
    """How many pairs the configured length leaves out, and with other keys would."""

    def left_out(changed: RunConfig) -> int:
        """Pairs left out with a changed configuration."""
        return estimate(
            stats, changed, configured.max_length, configured.strategy, configured.row_length
        ).documents_lost

    with_end = None
    with_share = None
    if config.truncate.overlong == "truncate" and config.truncate.keep == "start":
        with_end = left_out(config.model_copy(update={"truncate": config.truncate.model_copy(update={"keep": "end"})}))
    if config.pack.can_share and not config.pack.shares:
        with_share = left_out(config.model_copy(update={"pack": config.pack.model_copy(update={"share": "row"})}))
    return PairKeys(stats.are_packed, with_end, with_share)


def _describe_sharing(
    stats: Stats, config: RunConfig, configured: Point, sharing: SharedLengths | None
) -> Sharing | None:
    """What the comparison of `pack.share: row` is from, and what longer rows of the configured length would save; None
    if nothing can be shared.
    """
    is_used = config.pack.shares
    if isinstance(stats, PairStats) and configured.sharing_factor is not None:
        # Prompts are known, and no pair is divided between rows.
        return Sharing("row", is_used, stats.tokens, stats.tokens, configured.row_length, configured.sharing_factor)
    if sharing is None:
        return None
    longer = rows_for_groups(stats, config)
    point = estimate(stats, config, longer.limit, config.pack.strategy, longer.row_length, sharing.at[longer])
    return Sharing(
        share=sharing.share,
        is_used=is_used,
        compared=sharing.compared,
        tokens=sharing.tokens,
        longer_row_length=longer.row_length,
        longer_rows_factor=point.sharing_factor or 1.0,
    )


def _compare_lengths(
    stats: Stats,
    config: RunConfig,
    lengths: Sequence[int],
    limit: Limit | None,
    sharing: SharedLengths | None,
) -> list[Point]:
    """What the configured strategy makes of the documents at each length, by ascending length. Lengths that the user
    named are all compared. Of others, none beyond which a longer one would neither keep nor save more.
    """
    longest = int(stats.lengths.max(initial=0))
    fixed_rows = _fixed_row_length(config)
    points = list[Point]()
    enough = False
    for compared in lengths_to_compare(config, lengths, limit):
        length = compared.limit
        if enough and length != config.longest_piece:
            continue
        shared = sharing.at[compared] if sharing is not None else None
        point = estimate(stats, config, length, config.pack.strategy, compared.row_length, shared)
        points.append(point)
        has_full_rows = point.fill >= _FULL or length < fixed_rows
        enough = enough or (lengths == CANDIDATES and length >= longest and has_full_rows)
    return points


def _worth_showing(points: Sequence[Point], stats: Stats, configured: int, advice: Advice | None) -> list[Point]:
    """The points up to the first length that no document exceeds, with the configured and the advised one."""
    longest = int(stats.lengths.max(initial=0))
    fits_all = min((point.max_length for point in points if point.max_length >= longest), default=MOST)
    last = max(fits_all, advice.max_length if advice is not None else 0)
    return [point for point in points if point.max_length <= last or point.max_length == configured]


class _Fuller(NamedTuple):
    """A strategy that needs fewer rows than the configured one."""

    point: Point
    """What it makes of the documents at the configured length."""
    saves: float
    """The share of the rows that it saves."""


def _fuller_strategy(stats: Stats, config: RunConfig, configured: Point) -> _Fuller | None:
    """A strategy that saves more than `SAVES` of the rows; None if there is none. Where `stats` are of a sample, it is
    compared by the lengths of all documents.

    Args:
        configured: what the configured strategy makes of the documents.
    """
    strategy = config.pack.does.fuller
    if strategy is None:
        return None
    length = configured.max_length
    row_length = configured.row_length
    rows = configured.rows
    bound = configured.bound
    if stats.packed is not None:
        rows, bound = rows_and_bound(stats.packed, config, length, config.pack.strategy, row_length)
    if rows - bound <= SAVES * rows:  # no plan saves so many
        return None
    if stats.packed is None:
        point = estimate(stats, config, length, strategy, row_length)
        saves = 1 - point.rows / rows
    else:
        fuller_rows, _ = rows_and_bound(stats.packed, config, length, strategy, row_length)
        saves = 1 - fuller_rows / rows
        # Beside the configured strategy's rows, which are those of the sample.
        sample_rows = max(round(configured.rows * (1 - saves)), 1)
        fill = configured.fill * configured.rows / sample_rows
        point = replace(configured, strategy=strategy, rows=sample_rows, fill=fill)
    return _Fuller(point, saves) if saves > SAVES else None


def _longer_rows(stats: Stats, config: RunConfig, configured: Point) -> Point | None:
    """The same documents in rows of twice the length, or four or eight times: the first that saves `CHEAPER` of the
    space and comes as near to the best of them; None if none does, or too few rows would be left.
    """
    if not config.pack.does.is_packing or 1 - configured.fill <= CHEAPER:
        return None
    lengths = (configured.row_length * times for times in (2, 4, 8))
    points = [
        estimate(stats, config, configured.max_length, configured.strategy, length)
        for length in lengths
        if length <= MOST and configured.rows * configured.row_length >= FEW_ROWS * length
    ]
    least_space = min((space_of(point) for point in points), default=space_of(configured))
    if least_space * (1 + CHEAPER) >= space_of(configured):  # equal where nothing is trained, and both are 0
        return None
    return next(point for point in points if space_of(point) <= least_space * (1 + CHEAPER))


def _as_packed(point: Point, train: SplitFigures) -> Point:
    """A point with the figures of the rows that are packed."""
    return replace(
        point,
        **{key: getattr(train, key) for key in ("rows", "bound", "labels", "fill")},
        labels_lost=point.labels + point.labels_lost - train.labels,
        tokens=train.tokens - train.padding,
    )


# Histograms


def length_histogram(lengths: NDArray[Any]) -> Histogram:
    """A histogram of whole numbers whose bins grow by a factor, with whole-number edges and a separate bin for 0."""
    longest = int(lengths.max(initial=0))
    grown = np.unique(np.rint(np.geomspace(1, max(longest + 1, 2), _BINS)))
    return _histogram(lengths, np.r_[0, grown])


def fill_histogram(tokens: NDArray[Any], capacity: int) -> Histogram:
    """A histogram of rows by the share of `capacity` that they hold, with up to 50 bins of equal width."""
    bins = min(50, capacity)
    return _histogram(tokens / capacity, np.arange(bins + 1) / bins)  # an edge is the same number as a row's share


def _histogram(values: NDArray[Any], edges: NDArray[np.floating[Any]]) -> Histogram:
    counts, _ = np.histogram(values, bins=edges)
    return Histogram(edges.tolist(), counts.tolist())
