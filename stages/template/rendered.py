"""A rendered conversation: its text, and the spans that say what each part of it is."""

from typing import NamedTuple

from ...schemas.rows import NEXT_STOP_KINDS, PART_KINDS, UNPROVED_KINDS, SpanKind


class Spans(NamedTuple):
    """A text's spans. Only `ends` differs between rows of one trace."""

    ends: tuple[int, ...]
    """The end of each span: one past its last character. Ascending; the last is the text's length."""
    kinds: tuple[int, ...]
    """Values of `schemas.rows.SpanKind`."""
    turns: tuple[int, ...]
    """Index of each span's message."""
    trains: tuple[float, ...]
    """How much each span counts in the loss: True (1), False (not trained), or a weight."""


class Rendered(NamedTuple):
    """A rendered conversation."""

    text: str
    begin: int
    """The character at which the completion begins."""
    spans: Spans
    unproved: str
    """Why its turns, or the thoughts and tool calls in them, could not be located, or ""."""
    dropped: tuple[str, ...] = ()
    """Allowed losses: parts of the conversation that the template leaves out; see `check_losses`."""


NOTHING = Spans((0,), (int(SpanKind.PROMPT),), (0,), (True,))
"""The one span of an empty text."""
_WHOLE = {
    kind: SpanKind.HISTORY if kind.name.startswith("HISTORY") else SpanKind.ASSISTANT
    for kind in (SpanKind.HISTORY, SpanKind.ASSISTANT, *PART_KINDS)
}
"""Kinds of parts of turns, with the kind of a whole turn."""


def solid(spans: Spans) -> Spans:
    """The spans without empty ones, and like neighbours as one; a prompt span for an empty text."""
    kept: list[tuple[int, int, int, float]] = []
    done = 0
    for span in zip(*spans, strict=True):
        if span[0] > done:
            if kept and kept[-1][1:] == span[1:]:
                kept.pop()
            kept.append(span)
            done = span[0]
    return Spans(*zip(*kept, strict=True)) if kept else NOTHING


def whole(spans: Spans) -> Spans:
    """The spans of whole turns, without their parts, and of whole headers after them. Digests are made of these: which
    parts of a turn are known does not make another example.
    """
    out: list[tuple[int, int, int, float]] = []
    before = -1
    for end, kind, turn, train in zip(*spans, strict=True):
        if kind in NEXT_STOP_KINDS:
            continue  # its characters belong to the span after it
        # As numbers where turns are unproved: digests are made of these texts.
        turn_kind = int(kind) if kind in UNPROVED_KINDS else _WHOLE.get(SpanKind(kind), SpanKind(kind))
        if kind != before and kind in _WHOLE and out and out[-1][1:] == (turn_kind, turn, train):
            out.pop()
        out.append((end, turn_kind, turn, train))
        before = kind
    return Spans(*zip(*out, strict=True))
