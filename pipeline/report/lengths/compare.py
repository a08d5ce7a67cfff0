"""Which `max_length`: compares lengths, by what each keeps of the documents and how many rows they take.

Where rows are longer than documents (`pack.row_length`), shorter lengths are compared in these rows, and longer ones in
rows of their own length.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....schemas.config.config import RunConfig
from ....schemas.models.model_facts import Limit
from ....schemas.report.length_choice import Choice, Histogram, PairKeys, Point, Sharing
from ....schemas.report.report import SplitFigures
from ....stages.forecast.estimate import CANDIDATES, Stats, estimate, rows_and_bound
from ....stages.forecast.length_stats import LengthStats
from ....stages.forecast.pair_stats import PairStats
from .advised import WHOLE, WHOLE_TEXTS, advise
from .sharing import ComparedLength, SharedLengths

LEAST = 2
"""Smallest `truncate.max_length`."""
MOST = 1 << 24
"""Largest one."""
SAVES = 0.003
"""Another strategy is shown if it needs fewer rows by more than this share."""
FULLER = 1.02
"""Longer rows are shown if they are fuller by more than this factor."""
FEW_ROWS = 64
"""Longer rows are shown only if at least so many are left: of fewer, an epoch has too few steps, however full they
are."""
_BINS = 60
"""About how many bins a histogram has."""


def lengths_to_compare(
    config: RunConfig, lengths: Sequence[int], limit: Limit | None, longest: int
) -> list[ComparedLength]:
    """The lengths to compare, ascending, each with the capacity of its rows. The configured length is always among
    them. So is the model's limit, if a longer length is.

    Args:
        lengths: `CANDIDATES`, or those that a user has named.
        limit: the longest document that the model is made for; None if unknown.
        longest: tokens of the longest document. Of `CANDIDATES`, no length is compared beyond the first that keeps it
            whole; lengths that a user has named are all compared.
    """
    compared = set(lengths)
    # The longest length that the model allows may be the best one, and no power of two.
    if limit is not None and limit.tokens < max(lengths, default=0):
        compared.add(limit.tokens)
    fixed_rows = _fixed_row_length(config)
    multiple = config.pack.alignment.row
    # Where rows keep their length, they are padded and not their documents: 500 stays 500. Where rows are as long as
    # documents may be, with a multiple of 96, 500 becomes 480.
    rounded = {length if length <= fixed_rows else length - length % multiple for length in compared}
    # Beyond the first length that keeps all documents whole, all lengths give the same documents.
    if lengths == CANDIDATES:
        keeps_all = min((length for length in rounded if length >= longest), default=MOST)
        rounded = {length for length in rounded if length <= keeps_all}
    # The configured length is not rounded: it has to be found among the points.
    ascending = sorted({config.longest_piece, *(length for length in rounded if length >= LEAST)})
    return [ComparedLength(length, max(length, fixed_rows)) for length in ascending]


def rows_for_groups(stats: Stats, config: RunConfig) -> ComparedLength:
    """The configured length in rows of at least twice the longest document that it keeps: two of a group then find room
    beside each other.
    """
    limit = config.longest_piece
    longest = min(limit, int(stats.lengths.max(initial=0)))
    # Of documents of up to 500 tokens, where rows are padded to multiples of 96: 2 * 500 becomes 1,056.
    multiple = config.pack.alignment.row
    twice_longest = -(-2 * longest // multiple) * multiple
    return ComparedLength(limit, max(config.row_length, twice_longest))


def _fixed_row_length(config: RunConfig) -> int:
    """The capacity that rows keep at other lengths of documents; 0 if each length has rows of its own."""
    if config.pack.cuts_documents or config.pack.row_length is None:
        return 0
    return config.pack.row_length


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
        stats: the lengths of the documents or preference pairs, and what is trained of them.
        lengths: those to compare; the configured one is added.
        limit: the longest document that the model is made for; no longer length is advised.
        packed: the splits that the run packs; the configured length is then shown with the figures of its split train.
            The advice compares estimates, which know nothing of windows, of copies that are kept apart, and of where
            texts are split.
        sharing: what the documents can share at each of `lengths_to_compare`, and in `rows_for_groups`.
    """
    limit = _limit_of_lengths(stats, limit)
    documents = len(stats.lengths)
    documents_in_all = max(documents, stats.in_all)
    longest = int(stats.lengths.max(initial=0))

    # The lengths, with the configured strategy.
    points = []
    for length in lengths_to_compare(config, lengths, limit, longest):
        shared = sharing.by_length[length] if sharing is not None else None
        point = estimate(stats, config, length.limit, config.pack.strategy, row_length=length.row_length, shared=shared)
        points.append(point)
    configured = next(point for point in points if point.max_length == config.longest_piece)
    cuts = config.pack.cuts_documents or config.truncate.overlong == "split"
    # Where longer documents are cut into pieces, no length loses tokens: whole documents are what tells lengths apart.
    least_uncut = 0.0
    if cuts:
        least_uncut = WHOLE_TEXTS if stats.texts else WHOLE

    # Other rows and another strategy, at the configured length.
    longer_rows = None
    other = None
    other_saves = 0.0
    # Of documents that share tokens, lengths alone do not say how full such rows are.
    if stats.are_packed and (not config.pack.shares or isinstance(stats, PairStats)):
        longer_rows = _longer_rows(stats, config, configured)
        # The strategy to advise where the configured one leaves much of its rows empty; None if there is none.
        strategy = config.pack.does.fuller
        if strategy is not None:
            other_saves = _saved_rows(stats, config, configured, strategy)
            if other_saves > SAVES:
                other = _with_fewer_rows(configured, strategy, other_saves)

    over_limit = None
    if limit is not None and configured.max_length > limit.tokens:
        over_limit = int(np.count_nonzero(stats.lengths > limit.tokens))

    # What the run has packed is shown as it is; but not beside points of a sample, which have fewer rows than the run.
    shown_points = points
    train = next((figures for figures in packed if figures.split == "train"), None)
    if train is not None and documents == documents_in_all:
        shown_points = [_as_packed(point, train) if point is configured else point for point in points]
    return Choice(
        documents=documents,
        documents_in_all=documents_in_all,
        lengths=length_histogram(stats.lengths),
        longest=list(stats.longest),
        points=shown_points,
        strategy=config.pack.strategy,
        max_length=configured.max_length,
        # Of strategies that cut documents where rows end, the row decides.
        key="max_length" if configured.max_length == config.truncate.max_length else "row_length",
        row_length=configured.row_length,
        longer_rows=longer_rows,
        overlong=config.truncate.overlong,
        cuts=cuts,
        texts=stats.texts,
        # By `points`, which are all estimated alike, and not by what the run has packed.
        advice=advise(points, least_uncut, limit) if stats.tokens else None,
        limit=limit,
        over_limit=over_limit,
        other=other,
        other_saves=other_saves,
        sharing=_describe_sharing(stats, config, configured, sharing),
        pairs=_compare_keys(stats, config, configured) if isinstance(stats, PairStats) else None,
    )


def _limit_of_lengths(stats: Stats, limit: Limit | None) -> Limit | None:
    """The model's limit, if it limits the lengths that are compared; else None.

    The length of a packed pair is that of both sides together, but a model sees one side at a time. So the limit counts
    only if a side is longer than it.
    """
    if limit is None or not isinstance(stats, PairStats) or not stats.are_packed:
        return limit
    return limit if int(stats.parts.longest.max(initial=0)) > limit.tokens else None


def _saved_rows(stats: Stats, config: RunConfig, configured: Point, strategy: str) -> float:
    """The share of the rows that another strategy, which cuts no document either, saves at the configured length.

    It is counted of all packed documents, also where `stats` are of a sample: more documents fill rows better.
    """
    limit = configured.max_length
    row_length = configured.row_length
    # Tokens of each document in its row; in place of a sample's, those of all documents that the run packs.
    kept: NDArray[np.integer] = stats.kept_at(config, limit, row_length, configured.strategy).in_row
    if isinstance(stats, LengthStats) and stats.packed is not None:
        kept = stats.packed
    per_piece = stats.documents_of_piece
    # The configured strategy is counted again, because its point may be of a sample.
    rows, bound = rows_and_bound(kept, config, limit, configured.strategy, row_length, documents_of_piece=per_piece)
    # No plan has fewer rows than the bound. If even that saves too little, the rows of the other strategy need not be
    # counted, which takes up to 0.7 seconds.
    if bound >= (1 - SAVES) * rows:
        return 0.0
    other_rows, _ = rows_and_bound(kept, config, limit, strategy, row_length, documents_of_piece=per_piece)
    return 1 - other_rows / rows


def _with_fewer_rows(configured: Point, strategy: str, saves: float) -> Point:
    """The configured point with another strategy, which packs the same tokens into a smaller share of the rows.

    100 rows that are 90 % full, of which 10 % are saved, become 90 full ones.
    """
    rows = max(round(configured.rows * (1 - saves)), 1)
    fill = configured.fill * configured.rows / rows
    return replace(configured, strategy=strategy, rows=rows, fill=fill)


def _longer_rows(stats: Stats, config: RunConfig, configured: Point) -> Point | None:
    """The fullest of rows that are two, four or eight times as long, with the same documents; None if even these are
    hardly fuller than the configured rows, or too few.
    """
    # Rows of strategies that cut documents are full at any length; without packing, no row is. And no row can be fuller
    # by `FULLER` than rows that are nearly full.
    if config.pack.cuts_documents or not config.pack.does.is_packing or configured.fill * FULLER >= 1:
        return None
    # By their capacity, 256 rows become 128, 64 or 32 longer ones, and the 32 are too few.
    lengths = (configured.row_length * times for times in (2, 4, 8))
    points = [
        estimate(stats, config, configured.max_length, configured.strategy, length)
        for length in lengths
        if length <= MOST and configured.rows * configured.row_length >= FEW_ROWS * length
    ]
    fullest = max(points, key=lambda point: point.fill, default=configured)
    return fullest if fullest.fill > configured.fill * FULLER else None


def _as_packed(point: Point, train: SplitFigures) -> Point:
    """A point with the figures of the rows that the run packs."""
    # The lost labels are what is left of all supervised ones: 90 + 10 in the estimate and 88 packed are 12 lost.
    return replace(
        point,
        rows=train.rows,
        bound=train.bound,
        fill=train.fill,
        labels=train.labels,
        labels_lost=point.labels + point.labels_lost - train.labels,
        tokens=train.tokens - train.padding,
    )


def _describe_sharing(
    stats: Stats, config: RunConfig, configured: Point, sharing: SharedLengths | None
) -> Sharing | None:
    """From how many tokens the comparison of `pack.share` is, and what it would save in longer rows; None if nothing
    can be shared.
    """
    is_used = config.pack.shares
    if isinstance(stats, PairStats) and configured.sharing_factor is not None:
        # Prompts are known, so none is compared, and no pair is divided between rows.
        return Sharing(
            share="row",
            is_used=is_used,
            compared=stats.tokens,
            tokens=stats.tokens,
            longer_row_length=configured.row_length,
            longer_rows_factor=configured.sharing_factor,
        )
    if sharing is None:
        return None
    longer = rows_for_groups(stats, config)
    point = estimate(stats, config, longer.limit, config.pack.strategy, longer.row_length, sharing.by_length[longer])
    return Sharing(
        share=sharing.share,
        is_used=is_used,
        compared=sharing.compared,
        tokens=sharing.tokens,
        longer_row_length=longer.row_length,
        longer_rows_factor=point.sharing_factor or 1.0,
    )


def _compare_keys(stats: PairStats, config: RunConfig, configured: Point) -> PairKeys:
    """How many pairs the configured length would leave out with other values of `truncate.keep` and `pack.share`."""
    with_end = None
    if config.truncate.overlong == "truncate" and config.truncate.keep == "start":
        keep_end = config.truncate.model_copy(update={"keep": "end"})
        with_end = _left_out(stats, config.model_copy(update={"truncate": keep_end}), configured)
    # Where another key forbids sharing, `pack.share: row` would be refused.
    with_share = None
    if config.pack.can_share and not config.pack.shares:
        share_rows = config.pack.model_copy(update={"share": "row"})
        with_share = _left_out(stats, config.model_copy(update={"pack": share_rows}), configured)
    return PairKeys(are_packed=stats.are_packed, left_out_with_end=with_end, left_out_with_share=with_share)


def _left_out(stats: PairStats, changed: RunConfig, configured: Point) -> int:
    """Pairs that another configuration leaves out at the configured length."""
    point = estimate(stats, changed, configured.max_length, configured.strategy, configured.row_length)
    return point.documents_lost


def length_histogram(lengths: NDArray[Any]) -> Histogram:
    """A histogram of whole numbers whose bins grow by a factor, with whole-number edges and a separate bin for 0."""
    longest = int(lengths.max(initial=0))
    # In 60 bins of equal width, one document of 131,072 tokens would leave all chats in the first. For a longest length
    # of 5 the edges are 0 1 2 3 4 5 6: rounding makes some equal, of which `unique` leaves one.
    grown = np.unique(np.rint(np.geomspace(1, max(longest + 1, 2), _BINS)))
    edges = np.append(0, grown)
    counts, _ = np.histogram(lengths, bins=edges)
    return Histogram(edges.tolist(), counts.tolist())
