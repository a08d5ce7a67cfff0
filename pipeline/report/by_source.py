"""What the advised length does to each source: one that hardly counts in all of them may be lost by it."""

from collections.abc import Sequence
from dataclasses import replace

from ...schemas.report import Advice, SourceLoss
from .spoken import count, many, share

MUCH = 0.05
"""Of a source's trained tokens, from which on it is told that they are lost."""
MANY = 0.25
"""Of a source's documents, from which on it is told that they are cut into pieces."""
SOURCES_HEAD = ("source", "documents", "longest", "cut", "left out", "tokens lost", "trained tokens lost")


def sources_title(advice: Advice) -> str:
    """Of the table whose rows `source_cells` are."""
    return f"By source, at the advised {advice.max_length:,} with {advice.strategy}"


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
    worst = share(lost(hit[0], trained))
    tail = f"of {hit[0].source}, {worst} would be lost"
    if len(hit) > 1:
        tail = f"of {many(len(hit), 'source')}, up to {worst} would be lost"
    return replace(
        advice, sentence=f"{advice.sentence.removesuffix('.')}; but {tail}.", reasons=reasons + advice.reasons
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
