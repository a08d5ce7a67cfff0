"""Locates the assistant's turns in a rendered conversation, and where the completion begins, or says why they cannot be
located with certainty.

A rendering is known by its text and its source spans: which stretches came from which message. The template wrote the
rest. Where it marks what the assistant says with `{% generation %}`, these blocks are the turns. Else, for each
assistant message, this gives

1. its source spans: from the first to the last, with none of another message between them;
2. where it begins: where generation would begin, after the generation prompt; see `turn_begins`;
3. where it ends: after the special token with which the template ends an answer; see `turn_ends`.

    <|im_start|>user
    Hi<|im_end|>
    <|im_start|>assistant
    Hello<|im_end|>            Turn(message=1, begin=52, stop_begin=57, stop_end=67, end=67)

A step that fails raises `UnprovedError`; nothing is guessed. Contents are never searched: they may contain the
template's own markers.
"""

from bisect import bisect_left
from collections.abc import Sequence

from ...schemas.errors import RowRejectedError
from ..template.tracked_messages import ASSISTANT
from ..template.tracked_str import GENERATION, TOOL_CALL, SourceSpan, message_of, origin_of
from .rendered_chat import RenderedChat, Turn, UnprovedError
from .turn_begins import PromptTails, find_turn_begin, shared_prefix_length, with_blank_span
from .turn_ends import find_turn_end, last_span_of_turn, with_next_stops


def locate_turns(chat: RenderedChat) -> tuple[list[Turn], int]:
    """Return the assistant's turns, and where the completion begins.

    Raises:
        UnprovedError: the turns cannot be located with certainty.
        RowRejectedError: see `completion_start`.
    """
    ambiguous_message = chat.tracked.with_several_thoughts
    if ambiguous_message >= 0:
        raise UnprovedError("its content has more thoughts than one at its beginning", ambiguous_message)
    locate = _turns_of_generation_blocks if chat.profile.has_generation_blocks else _turns_of_source_spans
    turns = locate(chat)
    completion_begin = completion_start(chat, turns)
    return with_next_stops(chat, turns, completion_begin), completion_begin


def completion_start(chat: RenderedChat, turns: Sequence[Turn] = ()) -> int:
    """Return where the completion begins: with its first message, if that is one of the turns that were located.

    Else it begins where the text departs from the prompt's own rendering with a generation prompt. If the two already
    differ among the prompt's contents, it begins with the completion's first source span. Without a prompt, a
    completion that the user begins is the whole text; without a completion, it begins at the text's end.

    Raises:
        RowRejectedError: the template refuses the prompt alone; `unproved`, if contents of the prompt follow.
    """
    text = chat.text
    prompt_length = chat.prompt_length
    if prompt_length == len(chat.tracked.roles):
        return len(text)
    first_origin = origin_of(prompt_length)
    prompt_spans = [span for span in chat.source_spans if 0 <= span.origin < first_origin]
    completion_spans = [span for span in chat.source_spans if span.origin >= first_origin]
    prompt_end = max((span.end for span in prompt_spans), default=0)  # an empty question counts, too
    # An empty content has a span, too, but no character before which the prompt would have to end.
    first_character = min((span.begin for span in completion_spans if span.begin < span.end), default=prompt_end)
    if prompt_end > first_character:
        raise RowRejectedError("unproved", "the template writes words of the prompt after the completion begins")
    for turn in turns:
        if turn.message == prompt_length:
            return turn.begin
    first_span_begin = min((span.begin for span in completion_spans), default=len(text))
    if prompt_length == 0:
        # One that the assistant begins has the template's header as its prompt.
        return first_span_begin if chat.tracked.roles[0] == ASSISTANT else 0
    earlier_ends = [turn.end for turn in turns if turn.message < prompt_length]
    return _departure_from_prompt(chat, max([prompt_end, *earlier_ends]), first_span_begin)


def _departure_from_prompt(chat: RenderedChat, prompt_end: int, first_span_begin: int) -> int:
    """Where the text departs from the prompt's own rendering with a generation prompt; `first_span_begin` if the two
    already differ among the prompt's contents.

    A completion that the user begins, under ChatML: the prompt's rendering has "<|im_start|>assistant" behind its
    contents, and the text "<|im_start|>user". They depart behind the shared "<|im_start|>".

    Args:
        prompt_end: where the prompt's contents and turns end.
        first_span_begin: where the completion's first source span begins.
    """
    prompt_alone = chat.rendered_before(chat.prompt_length)
    shared_end = shared_prefix_length(prompt_alone.text, chat.text)
    needed_end = prompt_end
    if shared_end < len(prompt_alone.text):
        # The text does not have all of the prompt's own rendering: it must at least have all contents in it.
        contents_end = max((span.end for span in prompt_alone.source_spans), default=0)
        needed_end = max(prompt_end, contents_end)
    if shared_end >= needed_end or shared_end >= first_span_begin:
        return max(shared_end, prompt_end)
    return first_span_begin


# Turns of templates with generation blocks


def _turns_of_generation_blocks(chat: RenderedChat) -> list[Turn]:
    """Locate the turns of a conversation whose template has generation blocks: turns are exactly the blocks' contents.

    Raises:
        UnprovedError: no block was rendered despite assistant messages, or a block belongs to no message.
    """
    assistant_messages = _assistant_messages(chat)
    blocks = [span for span in chat.source_spans if span.origin == GENERATION]
    if assistant_messages and not blocks:
        raise UnprovedError("the template rendered no generation block")
    message_spans = [span for span in chat.source_spans if span.origin != GENERATION]
    turns: list[Turn] = []
    for number, block in enumerate(blocks):
        if turns and block.begin < turns[-1].end:
            raise UnprovedError("generation blocks are nested")
        inside = _spans_inside(message_spans, block)
        messages = {span.message for span in inside}
        if not messages and len(blocks) == len(assistant_messages):
            # A blank content may leave no span. With a block for each message, their order says whose it is.
            messages = {assistant_messages[number]}
        is_adjacent = bool(turns) and block.begin == turns[-1].end
        if not messages and is_adjacent:
            # What ends a turn may stand in a block of its own.
            turns[-1] = _extended_by_block(chat, turns[-1], block)
        elif len(messages) == 1:
            contents_end = inside[-1].end if inside else block.begin
            stop_begin, stop_end = _closing_tokens_between(chat, contents_end, block.end)
            turns.append(Turn(messages.pop(), block.begin, stop_begin, stop_end, block.end))
        else:
            raise UnprovedError("a generation block does not belong to one message")
    return turns


def _spans_inside(spans: Sequence[SourceSpan], block: SourceSpan) -> Sequence[SourceSpan]:
    """The spans within a block, of sorted ones."""
    first = bisect_left(spans, (block.begin, 0, 0))
    end = first
    while end < len(spans) and spans[end].end <= block.end:
        end += 1
    return spans[first:end]


def _extended_by_block(chat: RenderedChat, turn: Turn, block: SourceSpan) -> Turn:
    """A turn with the block after it, in which its closing tokens are if it has none."""
    if turn.stop_begin < turn.stop_end:
        return turn._replace(end=block.end)
    stop_begin, stop_end = _closing_tokens_between(chat, block.begin, block.end)
    return turn._replace(stop_begin=stop_begin, stop_end=stop_end, end=block.end)


def _closing_tokens_between(chat: RenderedChat, begin: int, end: int) -> tuple[int, int]:
    """Where the closing tokens between two places begin and end; `end` twice if there are none."""
    stop_begin, stop_end = chat.profile.gaps.tokens.closing_span(chat.text[begin:end])
    return (begin + stop_begin, begin + stop_end) if stop_begin < stop_end else (end, end)


# Turns of other templates


def _turns_of_source_spans(chat: RenderedChat) -> list[Turn]:
    """The turns of a conversation whose template has no generation blocks.

    Raises:
        UnprovedError: a turn cannot be located with certainty.
    """
    assistant_messages = _assistant_messages(chat)
    if not assistant_messages:
        return []
    messages_with_span = {span.message for span in chat.source_spans}
    # If every message with contents has a source span, the template wrote the text between spans. Else that text may
    # contain contents whose origin was lost, and must not be searched.
    is_complete = {message_of(origin) for origin in chat.tracked.contents} <= messages_with_span
    # From here on, every turn has a span, if only an empty one, between whose neighbours it is looked for.
    for message in assistant_messages:
        if message not in messages_with_span:
            chat = with_blank_span(chat, message, is_complete=is_complete)
    places: dict[int, list[int]] = {}
    for place, span in enumerate(chat.source_spans):
        places.setdefault(span.message, []).append(place)
    tails = PromptTails(chat)
    turns: list[Turn] = []
    for message in assistant_messages:
        first = places[message][0]
        last = _last_own_span(chat, message, first, places[message][-1])
        begin = find_turn_begin(chat, first, chat.source_spans[last].end, is_complete=is_complete, tails=tails)
        if turns and begin < turns[-1].end:
            raise UnprovedError("it begins before the previous turn ends", message)
        turns.append(_turn_from(chat, message, begin, last))
    return turns


def _turn_from(chat: RenderedChat, message: int, begin: int, last: int) -> Turn:
    """A turn whose beginning is known.

    Args:
        last: place of its last source span.
    """
    last_span = chat.source_spans[last]
    next_message, gap_end = _next_message(chat, message, last)
    # A turn begins behind its last span where all of its contents are blank, and the prompt writes something there.
    contents_end = max(last_span.end, begin)
    ends_with_call = last_span.origin & TOOL_CALL > 0
    stop_begin, end = find_turn_end(chat, message, contents_end, next_message, gap_end, ends_with_call=ends_with_call)
    return Turn(message, begin, stop_begin, end, end)


def _require_written_calls(chat: RenderedChat, message: int, first: int, last: int) -> None:
    """Raise UnprovedError if a message has tool calls and none of its spans, `first` to `last`, comes from them."""
    spans = chat.source_spans[first : last + 1]
    if message in chat.tracked.messages_with(TOOL_CALL) and not any(span.origin & TOOL_CALL for span in spans):
        raise UnprovedError("the template leaves its tool calls out of the text", message)


def _last_own_span(chat: RenderedChat, message: int, first: int, last: int) -> int:
    """The last span of a turn, among those of its message from `first` to `last`.

    Raises:
        UnprovedError: spans of other messages stand between them, or the message has calls that left none.
    """
    _require_written_calls(chat, message, first, last)
    if first == last:
        return last
    last = last_span_of_turn(chat, first, last)
    if any(span.message != message for span in chat.source_spans[first : last + 1]):
        raise UnprovedError("it contains words of other messages", message)
    return last


def _assistant_messages(chat: RenderedChat) -> list[int]:
    return [index for index, role in enumerate(chat.tracked.roles) if role == ASSISTANT]


def _next_message(chat: RenderedChat, message: int, last: int) -> tuple[int | None, int]:
    """The message whose source span comes after a turn's last one, and where that begins. It is None if the text ends,
    and -1 if the text ends although messages follow.
    """
    for span in chat.source_spans[last + 1 :]:
        # Spans of the turn's own message behind its last one repeat a call's name, in the next message's header.
        if span.message != message:
            return span.message, span.begin
    is_last = message == len(chat.tracked.roles) - 1
    return None if is_last else -1, len(chat.text)
