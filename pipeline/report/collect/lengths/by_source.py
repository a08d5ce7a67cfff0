"""What each source loses at the configured and at the advised length. A small source may lose all without showing in
the total."""

from collections.abc import Sequence
from dataclasses import replace

from .....schemas.report import Advice, Choice, SourceLoss
from .....schemas.units import exact, plural, share

MUCH = 0.05
"""Lost share of a source's trained tokens from which the report names the source."""
MANY = 0.25
"""Share of a source's documents cut into pieces from which the report names the source."""
SOURCES_HEAD = ("source", "documents", "longest", "cut", "left out", "tokens lost", "trained tokens lost")


def source_tables(choice: Choice) -> list[tuple[str, list[SourceLoss]]]:
    """(title, rows) of each table: for the configured length first, then for the advised one."""
    out = []
    if choice.sources_configured:
        title = f"By source, at the configured {choice.max_length:,} with {_named(choice.strategy)}"
        out.append((title, choice.sources_configured))
    if choice.sources and choice.advice is not None:
        advised = (planned(choice.advice.strategy), choice.advice.max_length)
        same = (planned(choice.strategy), choice.max_length) == advised
        word = "configured" if same else "advised"
        out.append(
            (f"By source, at the {word} {choice.advice.max_length:,} with {choice.advice.strategy}", choice.sources)
        )
    return out


def _named(strategy: str) -> str:
    return strategy if strategy == "tight" else planned(strategy)


def planned(strategy: str) -> str:
    """The strategy whose losses stand in for a strategy's own: `none` and `tight` cut what `bfd` cuts, and the pieces
    of `wrapped` depend on where rows end."""
    return {"none": "bfd", "tight": "bfd", "wrapped": "bfd_split"}.get(strategy, strategy)


def worst_source(sources: Sequence[SourceLoss]) -> SourceLoss | None:
    """The source that loses the largest share of its trained tokens; None if that is little, or there is one source."""
    if len(sources) < 2:
        return None
    trained = any(one.labels for one in sources)
    worst = max(sources, key=lambda one: lost(one, trained))
    return worst if lost(worst, trained) >= MUCH else None


def source_warning(choice: Choice) -> str | None:
    """`At the configured 4,096, meetings loses 99 %.`; None if no source loses much, or the advice says it already."""
    words = loss_words(choice.sources_configured)
    return f"At the configured {choice.max_length:,}, {words}." if words else None


def loss_words(sources: Sequence[SourceLoss], would: str = "") -> str:
    """`meetings loses 99 %`, or with `would` `meetings would lose 99 %`; empty if no source loses much."""
    worst = worst_source(sources)
    if worst is None:
        return ""
    trained = any(one.labels for one in sources)
    hit = sum(lost(one, trained) >= MUCH for one in sources)
    what = f"{share(lost(worst, trained))} of its {'trained ' if trained else ''}tokens"
    if hit > 1:
        loses = f"{would} lose" if would else "lose"
        return f"{plural(hit, 'source')} {loses} much, most of all {worst.source}: {what}"
    return f"source {worst.source} {f'{would} lose' if would else 'loses'} {what}"


def source_cells(one: SourceLoss) -> tuple[str, ...]:
    """A table row for one source."""
    return (
        one.source,
        f"{one.documents:,}",
        f"{one.longest:,}",
        _of(one.documents_cut, one.documents),
        _of(one.documents_lost, one.documents),
        share(one.tokens_lost / one.tokens) if one.tokens else "–",
        share(one.labels_lost / one.labels) if one.labels else "–",
    )


def _of(number: int, whole: int) -> str:
    return f"{number:,} ({share(number / whole)})" if number else "0"


def with_sources(advice: Advice, sources: Sequence[SourceLoss], *, pieces: bool) -> Advice:
    """The advice, plus what it does to the sources that it does not fit.

    Args:
        pieces: whether long documents are cut into pieces, so that almost nothing is lost.
    """
    if len(sources) < 2:
        return advice
    trained = any(one.labels for one in sources)
    what = "trained tokens" if trained else "tokens"
    hit = sorted((one for one in sources if lost(one, trained) >= MUCH), key=lambda one: -lost(one, trained))
    reasons = [
        f"Source {one.source} would lose {share(lost(one, trained))} of its {what} at {advice.max_length:,}: "
        f"{exact(one.documents_cut + one.documents_lost)} of {plural(one.documents, 'document')} are longer or left "
        f"out, and the longest has {exact(one.longest)} tokens. " + _instead(pieces)
        for one in hit
    ]
    if pieces:
        reasons += [
            f"Source {one.source} would have {share(one.documents_cut / one.documents)} of its documents cut into "
            f"pieces at {advice.max_length:,}; the longest has {exact(one.longest)} tokens."
            for one in sources
            if one not in hit and one.documents_cut >= MANY * one.documents
        ]
    if not hit:
        return replace(advice, reasons=[*reasons, *advice.reasons])
    return replace(
        advice,
        sentence=f"{advice.sentence.removesuffix('.')}; but {loss_words(sources, 'would')}.",
        reasons=reasons + advice.reasons,
    )


def lost(one: SourceLoss, trained: bool = True) -> float:
    """The share of a source's trained tokens that is lost; of all its tokens, if no source has trained ones."""
    if trained:
        return one.labels_lost / one.labels if one.labels else 0.0
    return one.tokens_lost / one.tokens if one.tokens else 0.0


def _instead(pieces: bool) -> str:
    if pieces:
        return "Nothing in these would be trained."
    return "truncate.overlong: split keeps them, or pack this source in a run of its own with longer rows."
