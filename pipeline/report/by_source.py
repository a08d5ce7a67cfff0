"""What the configured and the advised length do to each source: one that hardly counts among all may be lost by it."""

from collections.abc import Sequence
from dataclasses import replace

from ...schemas.report import Advice, Choice, SourceLoss
from .spoken import count, many, share

MUCH = 0.05
"""Of a source's trained tokens, from which on it is told that they are lost."""
MANY = 0.25
"""Of a source's documents, from which on it is told that they are cut into pieces."""
SOURCES_HEAD = ("source", "documents", "longest", "cut", "left out", "tokens lost", "trained tokens lost")


def source_tables(choice: Choice) -> list[tuple[str, list[SourceLoss]]]:
    """(title, rows) of each table: of the configured length first, which a reader may keep, and of the advised one."""
    out = []
    if choice.sources_configured:
        title = f"By source, at the configured {choice.max_length:,} with {planned(choice.strategy)}"
        out.append((title, choice.sources_configured))
    if choice.sources and choice.advice is not None:
        same = (planned(choice.strategy), choice.max_length) == (choice.advice.strategy, choice.advice.max_length)
        word = "configured" if same else "advised"
        out.append(
            (f"By source, at the {word} {choice.advice.max_length:,} with {choice.advice.strategy}", choice.sources)
        )
    return out


def planned(strategy: str) -> str:
    """The strategy whose losses of sources are told for it: the pieces of `wrapped` depend on where rows end, and
    `none` cuts what `bfd` cuts."""
    return {"none": "bfd", "wrapped": "bfd_split"}.get(strategy, strategy)


def worst_source(sources: Sequence[SourceLoss]) -> SourceLoss | None:
    """That which loses the largest share of its trained tokens, if that is much; None where there is only one."""
    if len(sources) < 2:
        return None
    trained = any(one.labels for one in sources)
    worst = max(sources, key=lambda one: lost(one, trained))
    return worst if lost(worst, trained) >= MUCH else None


def source_warning(choice: Choice) -> str | None:
    """`At the configured 4,096, of meetings, 99 % is lost.`; None where no source loses much, or the advice says it."""
    words = loss_words(choice.sources_configured, "is")
    return f"At the configured {choice.max_length:,}, {words}." if words else None


def loss_words(sources: Sequence[SourceLoss], verb: str) -> str:
    """`of meetings, 99 % would be lost`; nothing where no source loses much."""
    worst = worst_source(sources)
    if worst is None:
        return ""
    trained = any(one.labels for one in sources)
    hit = sum(lost(one, trained) >= MUCH for one in sources)
    if hit > 1:
        return f"of {many(hit, 'source')}, up to {share(lost(worst, trained))} {verb} lost, most of {worst.source}"
    return f"of {worst.source}, {share(lost(worst, trained))} {verb} lost"


def source_cells(one: SourceLoss) -> tuple[str, ...]:
    """A row of it."""
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
    """The same, and what it does to those sources that it does not suit.

    Args:
        pieces: whether what is too long is cut into pieces, so that it loses next to nothing.
    """
    if len(sources) < 2:
        return advice
    trained = any(one.labels for one in sources)
    what = "trained tokens" if trained else "tokens"
    hit = sorted((one for one in sources if lost(one, trained) >= MUCH), key=lambda one: -lost(one, trained))
    reasons = [
        f"Of source {one.source}, {share(lost(one, trained))} of the {what} would be lost at {advice.max_length:,}: "
        f"{count(one.documents_cut + one.documents_lost)} of {many(one.documents, 'document')} are longer or left out, "
        f"the longest has {count(one.longest)} tokens. " + _instead(pieces)
        for one in hit
    ]
    if pieces:
        reasons += [
            f"Of source {one.source}, {share(one.documents_cut / one.documents)} of the documents would be cut into "
            f"pieces at {advice.max_length:,}; the longest has {count(one.longest)} tokens."
            for one in sources
            if one not in hit and one.documents_cut >= MANY * one.documents
        ]
    if not hit:
        return replace(advice, reasons=[*reasons, *advice.reasons])
    return replace(
        advice,
        sentence=f"{advice.sentence.removesuffix('.')}; but {loss_words(sources, 'would be')}.",
        reasons=reasons + advice.reasons,
    )


def lost(one: SourceLoss, trained: bool = True) -> float:
    """Share of its trained tokens that is lost; of all its tokens, where no source is trained."""
    if trained:
        return one.labels_lost / one.labels if one.labels else 0.0
    return one.tokens_lost / one.tokens if one.tokens else 0.0


def _instead(pieces: bool) -> str:
    if pieces:
        return "Nothing in them would be trained."
    return "truncate.overlong: split keeps them, or a run of its own with longer rows."
