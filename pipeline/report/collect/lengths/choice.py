"""Which `max_length`: the sweep over lengths and strategies, as the report shows it."""

from dataclasses import asdict, fields, replace

import numpy as np

from .....schemas.config.config import RunConfig
from .....schemas.errors import ConfigError
from .....schemas.positions import Limit
from .....schemas.report import Choice, Point, ReportShape, SourceLoss
from .....schemas.units import exact, plural, share
from .....stages.forecast.length_stats import Compose, LengthStats
from .....stages.forecast.lost_by_source import lost_by_source
from .....stages.forecast.sweep import QUICK, STRATEGIES, PackingEstimate, SweepOptions, sweep
from .....stages.select.truncate import Keep
from ....pack.windows import WINDOW_TOKENS, compose
from ...draw.choice_notes import notes_on
from ...draw.remedies import closed_early, remedies, rows_unpadded, tighter
from ...options import ReportOptions
from .advice import advise
from .by_source import loss_words, planned, with_sources
from .histograms import Tally

LEAST, MOST = 2, 1 << 24
"""Limits of `truncate.max_length`."""
_FULLER = 0.02
"""Fill that a length beyond the longest document must gain over the first such length to be shown."""
_FURTHER = 16
"""Lengths up to this many times the longest document are shown."""


def choose(stats: LengthStats, config: RunConfig, options: ReportOptions, *, documents_in_all: int) -> Choice:
    """Compare lengths and strategies.

    Args:
        stats: the result of `read_stats`.
        documents_in_all: number of all documents, which is larger than the stats's if that is a sample.

    Raises:
        ConfigError: a length is out of range.
    """
    how = SweepOptions(
        batch=min(options.batch, max(len(stats.lengths), 1)),  # no batch is larger than all documents
        keep=Keep(config.truncate.keep),
        drop=config.truncate.overlong == "drop",
        split=config.truncate.overlong == "split",
        keep_untrained=config.keep_untrained,
        max_docs=config.pack.max_docs,
        align=config.pack.alignment.document,
        seed=config.seed,
    )
    documents = len(stats.lengths)
    together = _composed(stats, config) if documents >= documents_in_all else None
    lengths_compared = candidates(config, options.lengths, options.shape.limit)
    outcomes = _outcomes(stats, lengths_compared, config, how, together)
    shown = set(_shown(outcomes, int(stats.lengths.max(initial=0)), config.truncate.max_length, options.lengths))
    points = [point_of(one, options.shape) for one in outcomes if one.max_length in shown]
    lengths = Tally()
    lengths.add(stats.lengths)
    histogram = lengths.logarithmic(exact=documents == documents_in_all)
    more = max(documents_in_all / documents, 1.0) if documents else 1.0
    given = options.max_length_limit
    limit = Limit(given, "") if given is not None else options.shape.limit
    advice = advise(points, config, stats, histogram, options.batch, more, limit) if documents else None
    over = _over_limit(stats, config, options.shape.limit, sampled=documents < documents_in_all)
    sources = _sources(stats, config, advice.max_length, advice.strategy, how) if advice is not None else []
    configured, own = sources, (config.truncate.max_length, planned(config.pack.strategy))
    if advice is not None and own != (advice.max_length, planned(advice.strategy)):
        configured = _sources(stats, config, *own, how)
    sentence = _with_loss(_sentence(points, config, documents, documents_in_all), configured)
    if advice is not None:
        advice = replace(advice, reasons=[*advice.reasons, *remedies(stats, points, config)])
        advice = with_sources(advice, sources, pieces=how.split or advice.strategy == "bfd_split")
    return Choice(
        sentence=f"{sentence} {over}" if over is not None else sentence,
        documents=documents,
        documents_in_all=max(documents, documents_in_all),
        lengths=histogram,
        batch=options.batch,
        shape=options.shape,
        points=points,
        strategy=config.pack.strategy,
        max_length=config.truncate.max_length,
        overlong=config.truncate.overlong,
        advice=advice,
        over_limit=over,
        notes=[
            *notes_on(points, config, stats, max(documents, documents_in_all), options.lengths),
            *closed_early(stats, points, config, how, together),
            *tighter(stats, points, config, how, together),
        ],
        sources=sources,
        sources_configured=configured if configured is not sources else [],
        rows_unpadded=rows_unpadded(stats, points, config, how, together),
    )


def _outcomes(
    stats: LengthStats, lengths: list[int], config: RunConfig, how: SweepOptions, compose: Compose | None
) -> list[PackingEstimate]:
    """The sweep; with `tight`, if that is configured: as a run does it at the configured length, quickly elsewhere."""
    if config.pack.strategy != "tight":
        return sweep(stats, lengths, options=how, compose=compose)
    own = sweep(stats, [config.truncate.max_length], ["tight"], how, compose)[0]
    quick = sweep(stats, lengths, (*STRATEGIES, "tight"), replace(how, work=QUICK), compose)
    return [own if (one.strategy, one.max_length) == (own.strategy, own.max_length) else one for one in quick]


def _composed(stats: LengthStats, config: RunConfig) -> Compose | None:
    """A function that says which parts a run plans together; None if it plans all in one window at every length."""
    limit, parts = config.pack.window_tokens or WINDOW_TOKENS, stats.parts
    grows = config.truncate.overlong == "split" and config.truncate.split.overlap > 0
    if parts is None or (stats.tokens <= limit and not grows):
        return None
    sources = parts.sources.tolist()
    return lambda tokens: compose(tokens, sources, limit, config.seed)


def _sources(stats: LengthStats, config: RunConfig, length: int, strategy: str, how: SweepOptions) -> list[SourceLoss]:
    """What each source loses at a length; empty if there is only one source."""
    found = lost_by_source(stats, length, planned(strategy), how)
    if len(found) < 2:
        return []
    return [SourceLoss(**{**asdict(one), "source": config.sources[one.source].name}) for one in found]


def _with_loss(sentence: str, sources: list[SourceLoss]) -> str:
    """Add which source loses much at the configured length, since the total may not show it."""
    words = loss_words(sources)
    return f"{sentence} {words[0].upper()}{words[1:]}." if words else sentence


def _over_limit(stats: LengthStats, config: RunConfig, limit: Limit | None, *, sampled: bool) -> str | None:
    """That the configured length is above what the model is made for, and what to do; None if it is not."""
    length = config.truncate.max_length
    if limit is None or length <= limit.tokens:
        return None
    over = stats.lengths > limit.tokens
    if config.truncate.overlong == "drop":
        over &= stats.lengths <= length
    count = int(np.count_nonzero(over))
    read = " of the sample" if sampled else ""
    said = f"max_length {length:,} is above what the model is made for: {limit.reason}"
    if not count:
        return f"{said}. That is harmless: no document{read} is longer, and each document has positions of its own."
    longer = f"{plural(count, 'document')}{read} {'is' if count == 1 else 'are'} longer"
    fits = limit.tokens - limit.tokens % config.pack.alignment.row
    shorter = f"Set truncate.max_length: {fits}, or take" if fits >= LEAST else "Take"
    return f"{said}, and {longer}. {shorter} a model with more positions."


def candidates(config: RunConfig, lengths: tuple[int, ...], limit: Limit | None = None) -> list[int]:
    """The lengths to compare, in ascending order: rounded down to multiples of what rows are padded to, and the
    configured length.

    Args:
        limit: the longest document that the model is made for; compared, too, unless it is above all lengths.

    Raises:
        ConfigError: a length is out of range.
    """
    multiple = config.pack.alignment.row
    out = {config.truncate.max_length}
    for length in lengths:
        check_length(length)
    model = (limit.tokens,) if limit is not None and limit.tokens < max(lengths, default=0) else ()
    for length in (*lengths, *model):
        if length - length % multiple >= LEAST:
            out.add(length - length % multiple)
    return sorted(out)


def check_length(length: int) -> None:
    """Refuse a length that rows cannot have.

    Raises:
        ConfigError: the length is out of range.
    """
    if not LEAST <= length <= MOST:
        raise ConfigError(f"--lengths: {length:,} is out of range; give lengths from {LEAST} to {MOST:,}")


def point_of(outcome: PackingEstimate, shape: ReportShape) -> Point:
    """The outcome, with the work it means for a model of this shape."""
    same = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
    attention, total = shape.model.attention(outcome.squares), shape.model.flops(outcome.computed, outcome.squares)
    return Point(**same, fill=outcome.fill, gap=outcome.gap, attention_flops=attention, flops=total)


def _shown(outcomes: list[PackingEstimate], longest: int, configured: int, asked: tuple[int, ...]) -> list[int]:
    """The lengths worth showing: up to the first that no document exceeds, then on while rows get fuller."""
    from ...options import ReportOptions

    fills = {one.max_length: one.fill for one in outcomes if one.strategy == "bfd"}
    kept = [length for length in fills if length <= longest]
    beyond = [length for length in fills if longest < length <= max(_FURTHER * longest, configured)]
    beyond = beyond or [length for length in fills if length > longest][:1]
    fuller = [length for length in beyond if fills[length] >= fills[beyond[0]] + _FULLER]
    kept += beyond[: beyond.index(fuller[-1]) + 1 if fuller else 1]
    # Lengths that the user named are all shown.
    return [*kept, configured] if asked == ReportOptions().lengths else list(fills)


def _sentence(points: list[Point], config: RunConfig, documents: int, documents_in_all: int) -> str:
    """What the configured length does, in a sentence. The section on packing says how full the rows are."""
    length, strategy, overlong = config.truncate.max_length, config.pack.strategy, config.truncate.overlong
    known = strategy if strategy != "none" else "bfd"
    point = next(one for one in points if (one.strategy, one.max_length) == (known, length))
    if not point.documents and not point.documents_lost:
        return "There are no documents to choose a length for."
    begin = ""
    if documents < documents_in_all:
        begin = f"Of about {exact(documents_in_all)} documents, {exact(documents)} were read. "
    among = f"{exact(point.documents_cut)} of {plural(documents, 'document')}"
    lost = f"{share(labels_lost(point))} of the {'trained ' if point.labels + point.labels_lost else ''}tokens"
    if not point.documents_cut and not point.documents_lost:
        did = f"At {length:,} with {known}, no document is cut and no token is lost"
    elif strategy in ("bfd_split", "wrapped"):
        did = f"{strategy} at {length:,} loses no token and cuts {among} into pieces"
    elif overlong == "drop":
        did = f"At {length:,}, {exact(point.documents_lost)} of {plural(documents, 'document')} are dropped, "
        did += f"and {lost} with them"
    elif overlong == "error":
        did = f"At {length:,}, {exact(point.documents_cut + point.documents_lost)} of {plural(documents, 'document')} "
        did += "are longer than a row, which stops the run"
    elif overlong == "split" and point.documents_cut:
        pieces = point.pieces - (point.documents - point.documents_cut)
        did = f"At {length:,}, {among} are split into {plural(pieces, 'piece')} and {lost} lost"
        if point.documents_lost:
            did += f" ({plural(point.documents_lost, 'document')} left out, as nothing trained remains)"
    else:
        did = f"At {length:,}, {among} are cut and {lost} lost"
        if not point.documents_cut:
            are = "is" if point.documents_lost == 1 else "are"
            did = f"At {length:,}, {exact(point.documents_lost)} of {plural(documents, 'document')} {are} left out, "
            did += f"as nothing trained remains, and {lost} lost with "
            did += "it" if point.documents_lost == 1 else "them"
        elif point.documents_lost:
            did += f" ({plural(point.documents_lost, 'document')} left out, as nothing trained remains)"
    if strategy == "none":
        each = "documents" if point.pieces == point.documents else "pieces"
        return f"{begin}{did}; each of the {exact(point.pieces)} {each} is a row of its own."
    return f"{begin}{did}."


def labels_lost(point: Point) -> float:
    """The share of trained tokens that is lost; of all tokens, if none is trained."""
    total = point.labels + point.labels_lost
    if total:
        return point.labels_lost / total
    return point.tokens_lost / max(point.tokens + point.tokens_lost, 1)
