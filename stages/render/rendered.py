"""What rendering an example gives: its text, and spans that say what each part of it is.

A question and an answer under ChatML, as prompt and completion:

    <|im_start|>user         ends  kinds       turns  weights
    Hi<|im_end|>               52  PROMPT          0  True       up to the end of the generation prompt
    <|im_start|>assistant      57  ASSISTANT       1  True       "Hello"
    Hello<|im_end|>            67  END             1  True       "<|im_end|>"
                               68  COMPLETION      1  True       the line break at the end
"""

from typing import NamedTuple

from ...schemas.rows import NEXT_STOP_KINDS, PART_KINDS, UNPROVED_KINDS, SpanKind


class Spans(NamedTuple):
    """The spans of a text, side by side: each begins where the one before it ends. Only `ends` differs between rows of
    one trace.
    """

    ends: tuple[int, ...]
    """The end of each span: one past its last character. Ascending; the last is the text's length."""
    kinds: tuple[int, ...]
    """Values of `schemas.rows.SpanKind`."""
    turns: tuple[int, ...]
    """Index of each span's message."""
    weights: tuple[float, ...]
    """How much each span counts in the loss: True (1), False (not trained), or a weight."""


class Rendered(NamedTuple):
    """A rendered example."""

    text: str
    completion_begin: int
    """The character at which the completion begins."""
    spans: Spans
    unproved: str
    """Why its turns, or the thoughts and tool calls in them, could not be located, or ""."""
    lost: tuple[str, ...] = ()
    """Allowed losses: parts of the conversation that the template leaves out; see `check_lost_content`."""


EMPTY_TEXT = Spans((0,), (int(SpanKind.PROMPT),), (0,), (True,))
"""The one span of an empty text."""
_KIND_OF_TURN: dict[int, int] = {
    kind: SpanKind.HISTORY if kind.name.startswith("HISTORY") else SpanKind.ASSISTANT
    for kind in (SpanKind.HISTORY, SpanKind.ASSISTANT, *PART_KINDS)
}
"""Kind of a part of a turn → kind of the whole turn: THOUGHT → ASSISTANT, HISTORY_CALL → HISTORY."""


def merged_spans(spans: Spans) -> Spans:
    """The spans without empty ones, and with neighbours as one that differ in nothing but their ends. Of PROMPT to 5,
    ASSISTANT to 5 and PROMPT to 9, that is PROMPT to 9. An empty text has one empty prompt span.
    """
    merged: list[tuple[int, int, int, float]] = []  # end, kind, turn and weight of each span
    last_end = 0
    for span in zip(*spans, strict=True):
        end = span[0]
        if end == last_end:
            continue
        if merged and merged[-1][1:] == span[1:]:  # all but the end
            merged.pop()
        merged.append(span)
        last_end = end
    return Spans(*zip(*merged, strict=True)) if merged else EMPTY_TEXT


def text_for_digest(spans: Spans) -> str:
    """What an example's digest covers of its spans: where whole turns and whole headers end, and how much they count.
    Which parts of a turn are known does not make another example. Of a prompt and an answer that is not trained:

        Runs(ends=(52, 57), kinds=(<RunKind.PROMPT: 0>, <RunKind.ASSISTANT: 6>), turns=(0, 1), trains=(True, False))

    Held-out splits are drawn by digests, so this text must never change. `RunKind` and `Runs` are what `SpanKind` and
    `Spans` were called when it was fixed, and kinds of unproved turns had no names then: 8 stands for UNPROVED.
    """
    whole_turns = _whole_turn_spans(spans)
    kind_texts: list[str] = []
    for kind in whole_turns.kinds:
        kind_texts.append(f"{kind:d}" if kind in UNPROVED_KINDS else f"<RunKind.{SpanKind(kind).name}: {kind:d}>")
    # Written as Python writes a tuple, which has a comma behind its only item.
    kinds = f"({kind_texts[0]},)" if len(kind_texts) == 1 else f"({', '.join(kind_texts)})"
    ends = whole_turns.ends
    return f"Runs(ends={ends}, kinds={kinds}, turns={whole_turns.turns}, trains={whole_turns.weights})"


def _whole_turn_spans(spans: Spans) -> Spans:
    """The spans with whole turns instead of their parts, and without stops in the header after a turn: of THOUGHT to
    12, ASSISTANT to 31 and TOOL_CALL to 47, ASSISTANT to 47.
    """
    merged: list[tuple[int, int, int, float]] = []  # end, kind, turn and weight of each span
    kind_before = -1  # none
    for end, kind, turn, weight in zip(*spans, strict=True):
        if kind in NEXT_STOP_KINDS:
            continue  # without it, the span after it begins where the turn ends
        span = (end, _KIND_OF_TURN.get(kind, kind), turn, weight)
        # Two neighbours of the same kind are not parts of one turn, but two turns: they stay apart.
        continues_turn = kind in _KIND_OF_TURN and kind != kind_before
        if continues_turn and merged and merged[-1][1:] == span[1:]:  # all but the end
            merged.pop()
        merged.append(span)
        kind_before = kind
    return Spans(*zip(*merged, strict=True))
