"""Which `max_length`: the sweep over lengths and strategies, as the report shows it."""

from dataclasses import asdict, fields, replace

from ...schemas.config import RunConfig
from ...schemas.errors import ConfigError
from ...schemas.report import Choice, Point, Shape, SourceLoss
from ...stages.losses import losses
from ...stages.stock import Compose, Stock
from ...stages.sweep import Outcome, SweepOptions, sweep
from ...stages.truncate import Keep
from ..windows import WINDOW_TOKENS, compose
from .advice import advise
from .by_source import loss_words, planned, with_sources
from .choice_notes import notes_on
from .histograms import Tally
from .options import ReportOptions
from .remedies import closed_early, remedies
from .spoken import count, many, share

LEAST, MOST = 2, 1 << 24
"""Of `truncate.max_length`."""
_FULLER = 0.02
"""Fill that a length beyond the longest document must gain over the first such length, to be shown."""
_FURTHER = 16
"""Times the longest document."""


def choose(stock: Stock, config: RunConfig, options: ReportOptions, *, documents_in_all: int) -> Choice:
    """Compare lengths and strategies.

    Args:
        stock: as `stock.read_stock` gives it.
        documents_in_all: more than the stock has where it is a sample.

    Raises:
        ConfigError: a length is out of range.
    """
    how = SweepOptions(
        batch=min(options.batch, max(len(stock.lengths), 1)),  # the last batch has no more, and takes no more room
        keep=Keep(config.truncate.keep),
        drop=config.truncate.overlong == "drop",
        split=config.truncate.overlong == "split",
        keep_untrained=config.keep_untrained,
        max_docs=config.pack.max_docs,
        align=config.pack.align,
        seed=config.seed,
    )
    documents = len(stock.lengths)
    together = _composed(stock, config) if documents >= documents_in_all else None
    outcomes = sweep(stock, candidates(config, options.lengths), options=how, compose=together)
    shown = set(_shown(outcomes, int(stock.lengths.max(initial=0)), config.truncate.max_length, options.lengths))
    points = [point_of(one, options.shape) for one in outcomes if one.max_length in shown]
    lengths = Tally()
    lengths.add(stock.lengths)
    histogram = lengths.logarithmic(exact=documents == documents_in_all)
    more = max(documents_in_all / documents, 1.0) if documents else 1.0
    limit = options.max_length_limit
    advice = advise(points, config, histogram, options.batch, more, limit) if documents else None
    sources = _sources(stock, config, advice.max_length, advice.strategy, how) if advice is not None else []
    configured, own = sources, (config.truncate.max_length, planned(config.pack.strategy))
    if advice is not None and own != (advice.max_length, advice.strategy):
        configured = _sources(stock, config, *own, how)
    if advice is not None:
        advice = replace(advice, reasons=[*advice.reasons, *remedies(stock, points, config)])
        advice = with_sources(advice, sources, pieces=how.split or advice.strategy == "bfd_split")
    return Choice(
        sentence=_with_loss(_sentence(points, config, documents, documents_in_all), configured),
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
        notes=[
            *notes_on(points, config, stock, max(documents, documents_in_all)),
            *closed_early(stock, points, config, how, together),
        ],
        sources=sources,
        sources_configured=configured if configured is not sources else [],
    )


def _composed(stock: Stock, config: RunConfig) -> Compose | None:
    """What a run plans together; None where it is everything at every length."""
    limit, parts = config.pack.window_tokens or WINDOW_TOKENS, stock.parts
    grows = config.truncate.overlong == "split" and config.truncate.split.overlap > 0
    if parts is None or (stock.tokens <= limit and not grows):
        return None
    sources = parts.sources.tolist()
    return lambda tokens: compose(tokens, sources, limit, config.seed)


def _sources(stock: Stock, config: RunConfig, length: int, strategy: str, how: SweepOptions) -> list[SourceLoss]:
    """What each source loses at a length; nothing where there is one."""
    found = losses(stock, length, strategy, how)
    if len(found) < 2:
        return []
    return [SourceLoss(**{**asdict(one), "source": config.sources[one.source].name}) for one in found]


def _with_loss(sentence: str, sources: list[SourceLoss]) -> str:
    """The same, and which source loses much at the configured length: all together may hardly lose anything."""
    words = loss_words(sources, "is")
    return f"{sentence} {words[0].upper()}{words[1:]}." if words else sentence


def candidates(config: RunConfig, lengths: tuple[int, ...]) -> list[int]:
    """The lengths to compare, rising: multiples of `pack.align`, the configured one among them.

    Raises:
        ConfigError: one is out of range.
    """
    align = config.pack.align
    out = {config.truncate.max_length}
    for length in lengths:
        check_length(length)
        if length - length % align >= LEAST:
            out.add(length - length % align)
    return sorted(out)


def check_length(length: int) -> None:
    """Refuse what no row can hold.

    Raises:
        ConfigError: it is out of range.
    """
    if not LEAST <= length <= MOST:
        raise ConfigError(f"--lengths: {length:,} is no length of a row; give numbers from {LEAST} to {MOST:,}")


def point_of(outcome: Outcome, shape: Shape) -> Point:
    """The outcome with what a model of a shape costs."""
    same = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
    attention, total = outcome.flops(shape.parameters, shape.layers, shape.hidden)
    return Point(**same, fill=outcome.fill, gap=outcome.gap, attention_flops=attention, flops=total)


def _shown(outcomes: list[Outcome], longest: int, configured: int, asked: tuple[int, ...]) -> list[int]:
    """Lengths that say anything: up to the first that no document is longer than, and on as long as rows get fuller."""
    from .options import ReportOptions

    fills = {one.max_length: one.fill for one in outcomes if one.strategy == "bfd"}
    kept = [length for length in fills if length <= longest]
    beyond = [length for length in fills if longest < length <= max(_FURTHER * longest, configured)]
    beyond = beyond or [length for length in fills if length > longest][:1]
    fuller = [length for length in beyond if fills[length] >= fills[beyond[0]] + _FULLER]
    kept += beyond[: beyond.index(fuller[-1]) + 1 if fuller else 1]
    # Lengths that a person named are all shown.
    return [*kept, configured] if asked == ReportOptions().lengths else list(fills)


def _sentence(points: list[Point], config: RunConfig, documents: int, documents_in_all: int) -> str:
    """What the configured length does."""
    length, strategy, overlong = config.truncate.max_length, config.pack.strategy, config.truncate.overlong
    known = strategy if strategy != "none" else "bfd"
    point = next(one for one in points if (one.strategy, one.max_length) == (known, length))
    if not point.documents and not point.documents_lost:
        return "There is no document to choose a length for."
    begin = ""
    if documents < documents_in_all:
        begin = f"Of about {count(documents_in_all)} documents, {count(documents)} were read. "
    among = f"{count(point.documents_cut)} of {many(documents, 'document')}"
    lost = f"{share(labels_lost(point))} of the {'trained ' if point.labels + point.labels_lost else ''}tokens"
    if not point.documents_cut and not point.documents_lost:
        did = f"At {length:,} with {known}, no document is cut and no token lost"
    elif strategy in ("bfd_split", "wrapped"):
        did = f"{strategy} at {length:,} loses no token and cuts {among} into pieces"
    elif overlong == "drop":
        did = f"At {length:,}, {count(point.documents_lost)} of {many(documents, 'document')} are dropped, "
        did += f"and {lost} with them"
    elif overlong == "error":
        did = f"At {length:,}, {count(point.documents_cut + point.documents_lost)} of {many(documents, 'document')} "
        did += "are longer than a row, which stops the run"
    elif overlong == "split" and point.documents_cut:
        pieces = point.pieces - (point.documents - point.documents_cut)
        did = f"At {length:,}, {among} are split into {many(pieces, 'piece')} and {lost} lost"
        if point.documents_lost:
            did += f" ({many(point.documents_lost, 'document')} left out, as nothing trained remains)"
    else:
        did = f"At {length:,}, {among} are cut and {lost} lost"
        if not point.documents_cut:
            are = "is" if point.documents_lost == 1 else "are"
            did = f"At {length:,}, {count(point.documents_lost)} of {many(documents, 'document')} {are} left out, "
            did += f"as nothing trained remains, and {lost} lost with "
            did += "it" if point.documents_lost == 1 else "them"
        elif point.documents_lost:
            did += f" ({many(point.documents_lost, 'document')} left out, as nothing trained remains)"
    if strategy == "none":
        each = "documents" if point.pieces == point.documents else "pieces"
        return f"{begin}{did}; each of the {count(point.pieces)} {each} is a row of its own."
    gap = f"{share(point.gap, 2)} above the bound" if point.gap else "as few as any plan could have"
    return (
        f"{begin}{did}; {many(point.rows, 'row')} {'is' if point.rows == 1 else 'are'} {share(point.fill)} full, {gap}."
    )


def labels_lost(point: Point) -> float:
    """Share of the trained tokens that are lost; of all tokens, where none is trained."""
    total = point.labels + point.labels_lost
    if total:
        return point.labels_lost / total
    return point.tokens_lost / max(point.tokens + point.tokens_lost, 1)
