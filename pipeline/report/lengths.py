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

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.errors import PacktrainError
from ...schemas.files.foreign import SETTINGS_BYTES, read_regular
from ...schemas.jsontext import parse_json
from ...schemas.models.model_facts import Limit, stretching
from ...schemas.report import Advice, Choice, Histogram, Point, SplitFigures
from ...schemas.tables.strategies import STRATEGIES
from ...schemas.units import plural, share
from ...stages.forecast import CANDIDATES, LengthStats, estimate
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
_FEW = 3
"""At most so many documents, if they alone decide the advice, are named."""
_GAIN = 0.0005
"""Share of trained tokens from which it is said what the next longer length would keep."""


def candidates(config: RunConfig, lengths: Sequence[int], limit: Limit | None = None) -> list[int]:
    """The lengths to compare, in ascending order: rounded down to multiples of what rows are padded to, with the
    configured length and the model's limit, unless that is above all lengths.
    """
    multiple = config.pack.alignment.row
    model = (limit.tokens,) if limit is not None and limit.tokens < max(lengths, default=0) else ()
    held = _held_rows(config)  # rows of this length are padded, not their documents
    rounded = {length if length <= held else length - length % multiple for length in (*lengths, *model)}
    return sorted({config.longest_piece, *(one for one in rounded if one >= LEAST)})


def _held_rows(config: RunConfig) -> int:
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
    found = (config.get(name) for name in ("max_position_embeddings", "n_positions"))
    limits = [Limit(one, f"the model's positions end at {one:,}") for one in found if type(one) is int][:1]
    with suppress(AttributeError, TypeError, ValueError, OverflowError):
        limits += [Limit(one.tokens, f"the model's {one.reason}") for one in stretching(SimpleNamespace(**config))]
    return min((one for one in limits if 1 < one.tokens <= _MOST_POSITIONS), key=lambda one: one.tokens, default=None)


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
    read, configured, strategy = len(stats.lengths), config.longest_piece, config.pack.strategy
    held = _held_rows(config)
    longest, points, full = int(stats.lengths.max(initial=0)), list[Point](), False
    for length in candidates(config, lengths, limit):
        if not full or length == configured:
            points.append(estimate(stats, config, length, strategy, max(length, held)))
            # Lengths that the user named are all shown. Of others, a longer one would neither keep nor save more.
            same = points[-1].fill >= _FULL or length < held
            full = full or (lengths == CANDIDATES and length >= longest and same)
    in_all, texts = max(read, stats.in_all), stats.texts
    cuts = config.pack.cuts_documents or config.truncate.overlong == "split"
    whole = (WHOLE_TEXTS if texts else WHOLE) if cuts else 0.0
    advice = _advise(points, stats, whole, limit, in_all / max(read, 1)) if stats.tokens else None
    if lengths == CANDIDATES:
        # Up to the first length that no document exceeds, the configured and the advised one.
        beyond = min((one.max_length for one in points if one.max_length >= longest), default=MOST)
        most = max(beyond, advice.max_length if advice is not None else 0)
        points = [one for one in points if one.max_length <= most or one.max_length == configured]
    own = next(one for one in points if one.max_length == configured)
    fuller = config.pack.does.fuller
    other, saves = None, 0.0
    if fuller and own.rows - own.bound > SAVES * own.rows:
        other = estimate(stats, config, configured, fuller, own.row_length)
        saves = 1 - other.rows / own.rows
    longer_rows = _longer_rows(stats, config, own) if held else None
    if in_all == read:
        for train in (one for one in packed if one.split == "train"):
            points = [_as_packed(one, train) if one is own else one for one in points]
    return Choice(
        documents=read,
        documents_in_all=in_all,
        lengths=length_histogram(stats.lengths),
        longest=list(stats.longest),
        points=points,
        strategy=strategy,
        max_length=configured,
        key="max_length" if configured == config.truncate.max_length else "row_length",
        row_length=own.row_length,
        longer_rows=longer_rows,
        overlong=config.truncate.overlong,
        cuts=cuts,
        texts=texts,
        advice=advice,
        limit=limit,
        over_limit=int(np.count_nonzero(stats.lengths > limit.tokens)) if limit and configured > limit.tokens else None,
        other=other if saves > SAVES else None,
        other_saves=saves if saves > SAVES else 0.0,
    )


def _longer_rows(stats: LengthStats, config: RunConfig, own: Point) -> Point | None:
    """The same documents in rows of twice the length, or four or eight times: the first that saves `CHEAPER` of the
    space and comes as near to the best of them; None if none does, or too few rows would be left.
    """
    if not config.pack.does.is_packing or 1 - own.fill <= CHEAPER:
        return None
    lengths = (own.row_length * times for times in (2, 4, 8))
    points = [
        estimate(stats, config, own.max_length, own.strategy, length)
        for length in lengths
        if length <= MOST and own.rows * own.row_length >= FEW_ROWS * length
    ]
    best = min((_space(one) for one in points), default=_space(own))
    if best * (1 + CHEAPER) > _space(own):
        return None
    return next(one for one in points if _space(one) <= best * (1 + CHEAPER))


def _as_packed(point: Point, train: SplitFigures) -> Point:
    """A point with the figures of the rows that are packed."""
    return replace(
        point,
        **{key: getattr(train, key) for key in ("rows", "bound", "labels", "fill")},
        labels_lost=point.labels + point.labels_lost - train.labels,
        tokens=train.tokens - train.padding,
    )


def _advise(points: Sequence[Point], stats: LengthStats, whole: float, limit: Limit | None, more: float) -> Advice:
    """The advice by the rules above.

    Args:
        points: by ascending length.
        whole: share of the documents that must not be cut into pieces.
        more: all documents over those that the points are of.
    """
    may = [one for one in points if limit is None or one.max_length <= limit.tokens] or points[:1]
    bounded = len(may) < len(points)

    def shorter_than(length: int) -> int:
        return max((one.max_length for one in may if one.max_length < length), default=0)

    enough = [one for one in may if lost_at(one) <= 1 - KEEPS and _whole_at(one) >= whole]
    if not enough:
        least = min(map(lost_at, may))
        best = max(may, key=lambda one: (_whole_at(one), -one.max_length))
        best = best if whole else next(one for one in may if lost_at(one) <= least + _GAIN)
        shorter = shorter_than(best.max_length)
        return Advice(best.max_length, False, bounded, shorter, longer=0, instead_of=0, saves=0.0)
    # Longer rows are fewer. With very few rows, an epoch has too few steps, however full they are.
    worth = [enough[0], *(one for one in enough[1:] if one.rows * more >= FEW_ROWS)]
    space = min(map(_space, worth))
    needs = next(one for one in worth if _space(one) <= space * (1 + CHEAPER))
    shorter = shorter_than(needs.max_length)
    if needs is not enough[0]:
        saves = 1 - _space(needs) / _space(enough[0])
        return Advice(needs.max_length, True, bounded, shorter, 0, enough[0].max_length, saves)
    longer = int(np.count_nonzero(stats.lengths > shorter)) if shorter else 0
    return Advice(needs.max_length, True, bounded, shorter, longer, instead_of=0, saves=0.0)


def lost_at(point: Point) -> float:
    """The share of trained tokens that a point loses; of all tokens, if none is trained."""
    if whole := point.labels + point.labels_lost:
        return point.labels_lost / whole
    return point.tokens_lost / max(point.tokens + point.tokens_lost, 1)


def _whole_at(point: Point) -> float:
    """Share of documents that are not cut."""
    return 1 - point.documents_cut / max(point.documents + point.documents_lost, 1)


def _space(point: Point) -> float:
    """Space in rows per trained token. It decides the tokens per step, and the work of batches with fixed shapes."""
    return point.rows * point.row_length / max(point.labels or point.tokens, 1)


# In words


def point_at(choice: Choice, length: int) -> Point:
    """The counts at a length, which is among those compared."""
    return next(one for one in choice.points if one.max_length == length)


def counted_tokens(choice: Choice) -> str:
    """What losses are counted in, in words."""
    return "trained tokens" if any(one.labels + one.labels_lost for one in choice.points) else "tokens"


def advice_sentence(choice: Choice) -> str:
    """What the advised length keeps, and what the next one would; empty if there is no advice."""
    advice = choice.advice
    if advice is None:
        return ""
    point, gone = point_at(choice, advice.max_length), lost_at(point_at(choice, advice.max_length))
    kept = f"{share(1 - gone, 2) if gone else 'all'} of the {counted_tokens(choice)}"
    if choice.cuts:
        kept += f" and leaves {share(_whole_at(point))} of documents whole"
    if not advice.reached:
        said = f"keeps {kept}{_why_not_more(choice, advice)}"
    else:
        said = f"is enough: it keeps {kept}" if advice.max_length == choice.max_length else f"keeps {kept}"
    words = f"{choice.key} {advice.max_length:,} {said}"
    if advice.instead_of:
        words += f", as {advice.instead_of:,} does, in fuller rows, which take {share(advice.saves)} less space"
    after = next((one for one in choice.points if one.max_length > advice.max_length), point)
    if (gain := gone - lost_at(after)) >= _GAIN:
        more = share(after.tokens / max(point.tokens, 1) - 1)
        words += f"; {after.max_length:,} would keep {share(gain, 2)} more, with {more} more tokens to compute"
        if choice.limit is not None and after.max_length > choice.limit.tokens >= advice.max_length:
            words += f", but the model is not made for it ({choice.limit.reason})" if advice.reached else ""
    if point.row_length > choice.row_length > choice.max_length:
        words += f". Rows of {choice.row_length:,} cannot hold such documents: raise pack.row_length, too"
    if (longer := choice.longer_rows) is not None:
        own = point_at(choice, choice.max_length)
        words += (
            f". With max_length {choice.max_length:,}, rows of {longer.row_length:,} (pack.row_length) would be "
            f"{share(longer.fill)} full, in place of {share(own.fill)}"
        )
    if 0 < advice.longer <= _FEW and choice.longest:
        named = [(id, tokens) for id, tokens in choice.longest if tokens > advice.shorter]  # copies count once
        only = "Of those read, only" if choice.documents < choice.documents_in_all else "Only"
        words += f". {only} {plural(len(named), 'document is', 'documents are')} longer than {advice.shorter:,}: "
        words += "; ".join(f"{id}, {tokens:,} tokens" for id, tokens in named)
    if choice.texts and not choice.cuts and lost_at(point_at(choice, choice.max_length)) > 1 - KEEPS:
        words += ". These are plain texts: pack.strategy=bfd_split cuts them into pieces, and packs all tokens"
    if choice.other is not None and STRATEGIES[choice.strategy].is_packing:
        words += f". pack.strategy={choice.other.strategy} fills rows of {choice.row_length:,} better: it needs "
        words += f"{share(choice.other_saves)} fewer of them"
    return f"{words}."


def _why_not_more(choice: Choice, advice: Advice) -> str:
    """Why no length that keeps enough is advised."""
    enough = f"{share(KEEPS)} of the {counted_tokens(choice)}"
    if choice.cuts:
        enough += f" and {share(WHOLE_TEXTS if choice.texts else WHOLE, 0)} of documents whole"
    if advice.bounded and choice.limit is not None:
        most = f"the most of the lengths that the model is made for: {choice.limit.reason}"
        return f", {most}. No such length keeps {enough}"
    longest = f": the longest document has {choice.longest[0][1]:,} tokens" if choice.longest else ""
    return f". None of the lengths that were compared keeps {enough}{longest}"


def warnings_of(choice: Choice) -> Iterator[str]:
    """What is wrong with the configured length for the model."""
    length, limit = choice.max_length, choice.limit
    if choice.over_limit is not None and limit is not None:
        longer = plural(choice.over_limit, "document is", "documents are") if choice.over_limit else "no document is"
        yield f"{choice.key} {length:,} is above what the model is made for: {limit.reason}; {longer} longer."


# Histograms


def length_histogram(lengths: NDArray[Any]) -> Histogram:
    """A histogram of whole numbers whose bins grow by a factor, with whole-number edges and a separate bin for 0."""
    most = int(lengths.max(initial=0))
    grown = np.unique(np.rint(np.geomspace(1, max(most + 1, 2), _BINS)))
    return _histogram(lengths, np.r_[0, grown])


def fill_histogram(tokens: NDArray[Any], capacity: int) -> Histogram:
    """A histogram of rows by the share of `capacity` that they hold, with up to 50 bins of equal width."""
    bins = min(50, capacity)
    return _histogram(tokens / capacity, np.arange(bins + 1) / bins)  # an edge is the same number as a row's share


def _histogram(values: NDArray[Any], edges: NDArray[np.floating[Any]]) -> Histogram:
    counts, _ = np.histogram(values, bins=edges)
    return Histogram(edges.tolist(), counts.tolist())
