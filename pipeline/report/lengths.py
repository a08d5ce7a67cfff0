"""Which `max_length`: compares lengths, and recommends one by simple rules.

Where rows are longer than documents (`pack.row_length`), shorter lengths are compared in these rows, and longer ones in
rows of their own length; and it is said what still longer rows would save.

1. If long documents are truncated or dropped: the shortest length that keeps `KEEPS` of the trained tokens. If they are
   split: the shortest that also leaves `WHOLE` of the documents whole, or `WHOLE_TEXTS` for plain texts.
2. A longer length is chosen only if its rows use less space per trained token by more than `CHEAPER`, since longer rows
   waste less when documents barely fit, and only if at least `FEW_ROWS` rows are left.

Of plain texts that are not cut into pieces, it is said that they could be. Later pieces of conversations would be
answers without the question.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.errors import PacktrainError
from ...schemas.files.foreign import SETTINGS_BYTES, read_regular
from ...schemas.jsontext import parse_json
from ...schemas.models.model_facts import Limit, stretching
from ...schemas.report.length_choice import Advice, Choice, Histogram, Point
from ...schemas.report.report import SplitFigures
from ...stages.forecast import CANDIDATES, LengthStats, estimate, rows_and_bound
from ..encode.tokenizer import find_tokenizer

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
_FULL = 0.995
"""Share of the rows that is full, from which no longer length is compared."""
FEW_ROWS = 64
"""Least number of rows from which fuller rows can justify a longer length."""
SAVES = 0.003
"""Another strategy is shown if it needs fewer rows by more than this share."""
_BINS = 60
_MOST_POSITIONS = 10_000_000
"""Largest number of positions that is believed."""
GAIN = 0.0005
"""Share of trained tokens from which it is said what the next longer length would keep."""


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


def model_limit(tokenizer: str, base: Path) -> Limit | None:
    """The limit of the model in the tokenizer's folder; None if there is none, or its configuration does not say.

    Args:
        tokenizer, base: as for `find_tokenizer`.
    """
    try:
        config = parse_json(read_regular(find_tokenizer(tokenizer, base) / "config.json", SETTINGS_BYTES))
    except (PacktrainError, OSError, ValueError, RecursionError):
        return None
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    if not isinstance(config, dict):
        return None
    limits = list[Limit]()
    for key in ("max_position_embeddings", "n_positions"):
        positions = config.get(key)
        if type(positions) is int:  # a boolean is an int, too
            limits.append(Limit(positions, f"the model's positions end at {positions:,}"))
            break
    with suppress(AttributeError, TypeError, ValueError, OverflowError):  # of a configuration that no model has
        for stretched in stretching(SimpleNamespace(**config)):
            limits.append(Limit(stretched.tokens, f"the model's {stretched.reason}"))
    believed = [limit for limit in limits if 1 < limit.tokens <= _MOST_POSITIONS]
    return min(believed, key=lambda limit: limit.tokens, default=None)


def choose(
    stats: LengthStats,
    config: RunConfig,
    lengths: Sequence[int] = CANDIDATES,
    limit: Limit | None = None,
    packed: Sequence[SplitFigures] = (),
) -> Choice:
    """Compare lengths, and advise one.

    Args:
        stats: see `document_lengths.read_documents`.
        lengths: those to compare.
        limit: the longest document that the model is made for; no longer length is advised.
        packed: the splits that the run packs; the configured length then has the figures of its split train. Lengths
            are compared by their own, which know nothing of windows, of copies that are kept apart, and of where texts
            are split.
    """
    documents = len(stats.lengths)
    documents_in_all = max(documents, stats.in_all)
    configured = config.longest_piece
    cuts = config.pack.cuts_documents or config.truncate.overlong == "split"
    least_uncut = (WHOLE_TEXTS if stats.texts else WHOLE) if cuts else 0.0
    points = _compare_lengths(stats, config, lengths, limit)
    advice = None
    if stats.tokens:
        advice = _advise(points, stats, least_uncut, limit, documents_in_all / max(documents, 1))
    if lengths == CANDIDATES:
        points = _worth_showing(points, stats, configured, advice)
    configured_point = next(point for point in points if point.max_length == configured)
    fuller = None
    longer_rows = None
    if config.pack.share == "none":  # of documents that share tokens, lengths alone do not say how full rows are
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
    )


def _compare_lengths(stats: LengthStats, config: RunConfig, lengths: Sequence[int], limit: Limit | None) -> list[Point]:
    """What the configured strategy makes of the documents at each length, by ascending length. Lengths that the user
    named are all compared. Of others, none beyond which a longer one would neither keep nor save more.
    """
    longest = int(stats.lengths.max(initial=0))
    fixed_rows = _fixed_row_length(config)
    points = list[Point]()
    enough = False
    for length in candidates(config, lengths, limit):
        if enough and length != config.longest_piece:
            continue
        point = estimate(stats, config, length, config.pack.strategy, max(length, fixed_rows))
        points.append(point)
        has_full_rows = point.fill >= _FULL or length < fixed_rows
        enough = enough or (lengths == CANDIDATES and length >= longest and has_full_rows)
    return points


def _worth_showing(points: Sequence[Point], stats: LengthStats, configured: int, advice: Advice | None) -> list[Point]:
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


def _fuller_strategy(stats: LengthStats, config: RunConfig, configured: Point) -> _Fuller | None:
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


def _longer_rows(stats: LengthStats, config: RunConfig, configured: Point) -> Point | None:
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
    least_space = min((_space(point) for point in points), default=_space(configured))
    if least_space * (1 + CHEAPER) >= _space(configured):  # equal where nothing is trained, and both are 0
        return None
    return next(point for point in points if _space(point) <= least_space * (1 + CHEAPER))


def _as_packed(point: Point, train: SplitFigures) -> Point:
    """A point with the figures of the rows that are packed."""
    return replace(
        point,
        **{key: getattr(train, key) for key in ("rows", "bound", "labels", "fill")},
        labels_lost=point.labels + point.labels_lost - train.labels,
        tokens=train.tokens - train.padding,
    )


def _advise(
    points: Sequence[Point], stats: LengthStats, least_uncut: float, limit: Limit | None, scale: float
) -> Advice:
    """The advice by the rules above.

    Args:
        points: by ascending length.
        least_uncut: share of the documents that must not be cut into pieces.
        scale: all documents over those that the points are of.
    """
    possible = [point for point in points if limit is None or point.max_length <= limit.tokens] or points[:1]
    is_bounded = len(possible) < len(points)
    enough = [point for point in possible if lost_at(point) <= 1 - KEEPS and uncut_at(point) >= least_uncut]
    if not enough:
        best = _best_of(possible, by_uncut=bool(least_uncut))
        shorter = _shorter_than(best.max_length, possible)
        return Advice(best.max_length, False, is_bounded, shorter, longer=0, instead_of=0, saves=0.0)
    shortest = enough[0]
    # Longer rows are fewer. With very few rows, an epoch has too few steps, however full they are.
    worth = [shortest, *(point for point in enough[1:] if point.rows * scale >= FEW_ROWS)]
    least_space = min(map(_space, worth))
    advised = next(point for point in worth if _space(point) <= least_space * (1 + CHEAPER))
    shorter = _shorter_than(advised.max_length, possible)
    if advised is not shortest:
        saves = 1 - _space(advised) / _space(shortest)
        return Advice(advised.max_length, True, is_bounded, shorter, 0, shortest.max_length, saves)
    longer = int(np.count_nonzero(stats.lengths > shorter)) if shorter else 0
    return Advice(advised.max_length, True, is_bounded, shorter, longer, instead_of=0, saves=0.0)


def _best_of(points: Sequence[Point], *, by_uncut: bool) -> Point:
    """Of points that do not keep enough, the shortest that leaves the most documents whole; or else loses the least,
    or hardly more.
    """
    if by_uncut:
        return max(points, key=lambda point: (uncut_at(point), -point.max_length))
    least_lost = min(map(lost_at, points))
    return next(point for point in points if lost_at(point) <= least_lost + GAIN)


def _shorter_than(length: int, points: Sequence[Point]) -> int:
    """The next shorter length of some points; 0 if there is none."""
    return max((point.max_length for point in points if point.max_length < length), default=0)


def lost_at(point: Point) -> float:
    """The share of trained tokens that a point loses; of all tokens, if none is trained."""
    labels = point.labels + point.labels_lost
    if labels:
        return point.labels_lost / labels
    return point.tokens_lost / max(point.tokens + point.tokens_lost, 1)


def uncut_at(point: Point) -> float:
    """Share of documents that are not cut."""
    return 1 - point.documents_cut / max(point.documents + point.documents_lost, 1)


def _space(point: Point) -> float:
    """Space in rows per trained token. It decides the tokens per step, and the work of batches with fixed shapes."""
    return point.rows * point.row_length / max(point.labels or point.tokens, 1)


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
