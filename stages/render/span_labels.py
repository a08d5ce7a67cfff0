"""Says what each character of a rendered conversation is, and how much it counts in the loss.

A turn with a thought and a call is labelled so:

    <think>Easy.</think>Let me add.<call>add</call><|im_end|>
    TTTTTTTTTTTTAAAAAAAAAAAAAAAAAAACCCCCCCCCCCCCCCCEEEEEEEEEE    T thought, A answer, C tool call, E end of turn

Which part of a turn a character belongs to follows from the turn's source spans:

- *Thought*: source spans of a thought, with what the template writes before them in the turn, and with white space
  after them. If the turn has spans of the message's own field (`reasoning_content`, `thinking`, `reasoning`, parts of
  such a type), these are the thought, and tags in the content are only text.
- *Tool call*: source spans of calls, with what the template writes around them, except the end of a thought before
  them.
- *Answer*: all else. So the tag that closes a thought is the answer's: a model that has to answer after a thought must
  generate it, as it must generate the token that ends a turn.

What the template writes without its origin gets no part: `check_lost_content` finds it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import RowRejectedError
from ...schemas.rows import SpanKind
from ..template.tracked_messages import CLOSING_TAG, OPENING_TAG, is_blank
from ..template.tracked_str import GENERATION, REASONING_FIELD, TAGGED_THOUGHT, THOUGHT, TOOL_CALL, SourceSpan
from .rendered import EMPTY_TEXT, Spans, merged_spans
from .rendered_chat import RenderedChat, Turn, UnprovedError
from .turn_ends import past_space

_PART_KINDS = TOOL_CALL | THOUGHT
# A label is the index of the message, shifted left by these bits, plus the kind of the span.
_KIND_BITS = 5
_KIND_MASK = (1 << _KIND_BITS) - 1


class _Part(NamedTuple):
    """A part of a turn, in characters of the text."""

    kind: int
    """TOOL_CALL, REASONING_FIELD, TAGGED_THOUGHT, or 0 for an answer."""
    begin: int
    end: int


class _CharacterLabels:
    """What each character of a text is. What is assigned later covers what was assigned before.

    Args:
        length: of the text, in characters.
    """

    def __init__(self, length: int) -> None:
        self._labels: NDArray[np.int32] = np.zeros(length, np.int32)
        self.weights: NDArray[np.float64] | None = None
        """(length,) how much each character counts in the loss. None if all count 1, as in most rows, because a text
        may have millions of characters."""

    def assign(self, begin: int, end: int, kind: SpanKind, message: int) -> None:
        """Say that the characters begin..end are of a kind, and belong to a message; nothing if `end` is not after
        `begin`.
        """
        if begin < end:
            self._labels[begin:end] = message << _KIND_BITS | kind

    def spans(self) -> Spans:
        """The spans: they end where something changes."""
        labels = self._labels
        if not len(labels):
            return EMPTY_TEXT
        # Labels 5 5 7 7 7 change behind character 1: the last characters of spans are 1 and 4, and their ends 2 and 5.
        changes = labels[1:] != labels[:-1]
        if self.weights is not None:
            changes |= self.weights[1:] != self.weights[:-1]
        last_characters = [*changes.nonzero()[0].tolist(), len(labels) - 1]
        span_labels = labels[last_characters].tolist()
        span_weights = [1.0] * len(last_characters)
        if self.weights is not None:
            span_weights = self.weights[last_characters].tolist()
        return Spans(
            ends=tuple([character + 1 for character in last_characters]),
            kinds=tuple([label & _KIND_MASK for label in span_labels]),
            turns=tuple([label >> _KIND_BITS for label in span_labels]),
            # 0 and 1 become False and True, as in traces: digests cover how weights are written.
            weights=tuple([bool(weight) if weight in (0, 1) else weight for weight in span_weights]),
        )


def label_spans(chat: RenderedChat, turns: Sequence[Turn], completion_begin: int) -> Spans:
    """The spans of a conversation whose turns were located.

    Raises:
        UnprovedError: a thought or a call of a turn cannot be located in it.
    """
    # Parts are labelled after turns, and so cover them.
    labels = _CharacterLabels(len(chat.text))
    _label_turns(labels, chat, turns, completion_begin)
    messages_with_parts = chat.tracked.messages_with(_PART_KINDS)
    spans_by_message: dict[int, list[SourceSpan]] = {}
    if messages_with_parts:
        for span in chat.source_spans:
            spans_by_message.setdefault(span.message, []).append(span)
    for turn in turns:
        if turn.message in messages_with_parts:
            _label_parts(labels, chat, turn, spans_by_message.get(turn.message, []))
    # Most rows have no weights: their spans end only where labels change.
    if set(chat.tracked.loss_weights) != {True}:
        labels.weights = _character_weights(chat, turns)
    return labels.spans()


def label_unproved_spans(chat: RenderedChat, completion_begin: int, reason: str) -> Spans:
    """The spans of a conversation whose turns could not be located: its prompt and its completion.

    Args:
        reason: why they could not.

    Raises:
        RowRejectedError: `train_flags`, if messages of the completion differ in theirs.
    """
    loss_weights = chat.tracked.loss_weights
    prompt_weights = set(loss_weights[: chat.prompt_length])
    completion_weights = set(loss_weights[chat.prompt_length :])
    if len(completion_weights) > 1:
        raise RowRejectedError(
            "train_flags",
            "messages of the completion have different `train` flags or weights, and the template does not show where "
            f"each of them lies ({reason}); split the row",
        )
    # Without a completion, its span is empty, and dropped: then any message will do.
    completion_message = min(chat.prompt_length, len(loss_weights) - 1)
    return merged_spans(
        Spans(
            ends=(completion_begin, len(chat.text)),
            kinds=(SpanKind.UNPROVED, SpanKind.UNPROVED_COMPLETION),
            turns=(0, completion_message),
            # One weight for the prompt, whose messages may differ in theirs: the smallest, so that none is overruled.
            weights=(min(prompt_weights, default=True), min(completion_weights, default=True)),
        )
    )


class _Stretch(NamedTuple):
    """The text between two turns, before the first turn, or after the last."""

    begin: int
    end: int
    message: int
    """Index of the message whose header it has: the one after the turn before it, or 0 at the text's beginning. If no
    message follows, the last one."""
    follows_turn: bool
    """Whether a turn is before it."""


def _stretches_between(chat: RenderedChat, turns: Sequence[Turn]) -> Iterator[_Stretch]:
    """The stretches of text around turns, in their order; some are empty. Of question, answer "Hello<|im_end|>" and
    question:

        <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n     message 0, follows no turn
        \\n<|im_start|>user\\nAnd now?<|im_end|>\\n                  message 2, follows a turn
    """
    last_message = len(chat.tracked.roles) - 1
    begin = 0
    next_message = 0
    for turn in turns:
        # Two generation blocks may be of the same message: then no other message is between them.
        yield _Stretch(begin, turn.begin, min(next_message, turn.message), follows_turn=next_message > 0)
        # A stop token in the header after the turn is labelled with the turn.
        begin = turn.next_stop_end or turn.end
        next_message = turn.message + 1
    yield _Stretch(begin, len(chat.text), min(next_message, last_message), follows_turn=next_message > 0)


def _label_turns(labels: _CharacterLabels, chat: RenderedChat, turns: Sequence[Turn], completion_begin: int) -> None:
    """Label turns with what ends them, and the text around them: as prompt up to the completion, or as USER if it
    begins with a user's message after a turn, where a conversation is best cut; and as completion from there on.
    """
    for turn in turns:
        is_earlier = turn.message < chat.prompt_length
        turn_kind = SpanKind.HISTORY if is_earlier else SpanKind.ASSISTANT
        end_kind = SpanKind.HISTORY_END if is_earlier else SpanKind.END
        labels.assign(turn.begin, turn.end, turn_kind, turn.message)
        labels.assign(turn.stop_begin, turn.stop_end, end_kind, turn.message)
        if turn.next_stop_end:
            is_before = turn.end < completion_begin
            stop_kind = SpanKind.HISTORY_STOP_IN_NEXT_HEADER if is_before else SpanKind.STOP_IN_NEXT_HEADER
            labels.assign(turn.end, turn.next_stop_end, stop_kind, turn.message)
    for begin, end, message, follows_turn in _stretches_between(chat, turns):
        is_user = follows_turn and chat.tracked.roles[message] == "user"
        prompt_kind = SpanKind.USER if is_user else SpanKind.PROMPT
        labels.assign(begin, min(end, completion_begin), prompt_kind, message)
        # If the completion begins within the stretch, the rest of it belongs to the completion's first message.
        completion_message = chat.prompt_length if begin < completion_begin else message
        labels.assign(max(begin, completion_begin), end, SpanKind.COMPLETION, completion_message)


def _label_parts(labels: _CharacterLabels, chat: RenderedChat, turn: Turn, source_spans: Sequence[SourceSpan]) -> None:
    """Label the thoughts and calls of a turn, with what belongs to them. What follows an end-of-turn token in a
    generation block has no parts.

    Args:
        source_spans: of the turn's message.

    Raises:
        UnprovedError: a thought is not the first part.
    """
    # All of the turn is labelled as an answer already: only the other parts are left to label.
    text = chat.text
    is_earlier = turn.message < chat.prompt_length
    thought_kind = SpanKind.HISTORY_THOUGHT if is_earlier else SpanKind.THOUGHT
    call_kind = SpanKind.HISTORY_CALL if is_earlier else SpanKind.TOOL_CALL
    parts = _parts_within(turn, source_spans)
    # With a thought in a field, tags in the content are only text: the template does not look for them either.
    has_field = any(kind & REASONING_FIELD and not is_blank(text[begin:end]) for kind, begin, end in parts)
    # The kind of parts that count as thoughts.
    labelled_thought = REASONING_FIELD if has_field else TAGGED_THOUGHT
    # Between two parts stands what the template wrote. White space after a thought is the thought's. Before a thought
    # or a call, everything behind a closing tag is theirs; and after a call, the rest is the call's:
    #
    #     <think>Easy.</think>Let me add.<call>add</call>, <call>sub</call><|im_end|>
    #     TTTTTTTTTTTTAAAAAAAAAAAAAAAAAAACCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCEEEEEEEEEE
    labelled_end = turn.begin  # the end of the part before, with what belongs to it
    kind_before = 0  # of the part before
    # At the end, so that what the template wrote after the last part is labelled, too.
    empty_answer = _Part(kind=0, begin=turn.stop_begin, end=turn.stop_begin)
    for number, (kind, begin, end) in enumerate([*parts, empty_answer]):
        if kind_before == TOOL_CALL:
            labels.assign(labelled_end, begin, call_kind, turn.message)
        elif kind_before == labelled_thought:
            space_end = past_space(text, labelled_end, begin)
            labels.assign(labelled_end, space_end, thought_kind, turn.message)
            labelled_end = space_end
        if kind == TOOL_CALL:
            labels.assign(_after_closing_tag(chat, labelled_end, begin), end, call_kind, turn.message)
        elif kind == labelled_thought:
            # What the template writes before a later thought may belong to the answer or the call before it.
            if number > 0:
                raise UnprovedError("nothing shows where a later thought begins", turn.message)
            thought_begin = _thought_begin(chat, turn_begin=turn.begin, begin=begin, end=end, is_tagged=not has_field)
            labels.assign(thought_begin, end, thought_kind, turn.message)
        labelled_end = end
        kind_before = kind


def _thought_begin(chat: RenderedChat, turn_begin: int, begin: int, end: int, *, is_tagged: bool) -> int:
    """Where the thought at the beginning of a turn begins, with what the template wrote before it.

    Args:
        begin, end: of the thought's source spans.
        is_tagged: whether it is from a content, and may have brought its own opening tag.
    """
    brings_opening_tag = is_tagged and chat.text.startswith(OPENING_TAG, past_space(chat.text, begin, end))
    if not brings_opening_tag:
        return _after_closing_tag(chat, turn_begin, begin)
    # What the template wrote before the content's own tag is the answer's, if it is more than white space.
    template_text = chat.text[turn_begin:begin]
    return begin if template_text.strip() else turn_begin


def _parts_within(turn: Turn, source_spans: Sequence[SourceSpan]) -> list[_Part]:
    """The source spans within a turn, before its stop; neighbours of one kind are one part."""
    parts: list[_Part] = []
    for span_begin, span_end, origin in source_spans:
        kind = origin & _PART_KINDS
        begin = max(span_begin, turn.begin)
        end = min(span_end, turn.stop_begin)
        if begin >= end:
            continue
        if parts and parts[-1].kind == kind:
            begin = parts.pop().begin
        parts.append(_Part(kind, begin, end))
    return parts


def _after_closing_tag(chat: RenderedChat, begin: int, end: int) -> int:
    """Where a part begins in what the template wrote before it: behind the last tag that closes a thought, and white
    space; `begin` if there is no such tag. Of `</think>\\n<call>`, that is before `<call>`.
    """
    if begin == end:
        return begin  # mostly: the template writes nothing between parts
    tags = {chat.profile.thought_closing_tag, CLOSING_TAG} - {""}
    template_text = chat.text[begin:end]
    tag_ends = [template_text.rfind(tag) + len(tag) for tag in tags if tag in template_text]
    if not tag_ends:
        return begin
    return past_space(chat.text, begin + max(tag_ends), end)


def _character_weights(chat: RenderedChat, turns: Sequence[Turn]) -> NDArray[np.float64]:
    """(length,) how much characters count: as much as their message.

    Text that the template wrote between two messages has the smaller of their weights, so that it is trained only if
    both messages are. Of two messages with the weights 1 and 0.5:

        <user>Hi<assistant>Yes.</>      1 for "<user>Hi", 0.5 for what follows

    With messages 0 and 2 beside each other, because the text has nothing of message 1, that of message 1 counts, too.
    """
    loss_weights = chat.tracked.loss_weights
    weights = np.ones(len(chat.text))
    end_before = 0  # of the source span before
    message_before = 0
    for span in chat.source_spans:
        if span.origin == GENERATION:
            continue
        # The default is for templates that write a later message first: no messages are between the two then.
        weights[end_before : span.begin] = min(loss_weights[message_before : span.message + 1], default=True)
        weights[span.begin : span.end] = loss_weights[span.message]
        end_before = span.end
        message_before = span.message
    weights[end_before:] = min(loss_weights[message_before:], default=True)
    # What the template wrote within a turn counts as much as the turn.
    for turn in turns:
        weights[turn.begin : max(turn.end, turn.next_stop_end)] = loss_weights[turn.message]
    return weights
