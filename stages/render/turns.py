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
from ..template.tracked_str import GENERATION, TOOL_CALL, SourceSpan, message_of
from .rendered_chat import RenderedChat, Turn, UnprovedError
from .turn_begins import PromptTails, find_turn_begin, shared_prefix_length, with_blank_span
from .turn_ends import find_turn_end, last_span_of_turn, with_next_stop


def locate_turns(chat: RenderedChat) -> tuple[list[Turn], int]:
    """Return the assistant's turns, and where the completion begins.

    Raises:
        UnprovedError: the turns cannot be located with certainty.
        RowRejectedError: the template refuses the prompt alone, or writes contents of the prompt in the completion.
    """
    ambiguous_message = chat.tracked.with_several_thoughts
    if ambiguous_message >= 0:
        raise UnprovedError("its content has more thoughts than one at its beginning", ambiguous_message)
    locate = _turns_of_generation_blocks if chat.profile.has_generation_blocks else _turns_of_source_spans
    turns = locate(chat)
    completion_begin = completion_start(chat, turns)
    # Last, because a header in which the completion begins has no stop of the turn before it.
    turns = [with_next_stop(chat, turn, completion_begin) for turn in turns]
    return turns, completion_begin


def completion_start(chat: RenderedChat, turns: Sequence[Turn] = ()) -> int:
    """Where the completion begins.

    1. Where there is no completion: at the text's end.
    2. Where its first message is one of the turns that were located: with this turn.
    3. Where there is no prompt: at the text's beginning, or if the assistant begins it, with its first content, because
       the template's header before that is not generated.
    4. Else, as of a completion that the user begins: where the text departs from the prompt's own rendering with a
       generation prompt. Under ChatML, that is behind the second "<|im_start|>":

           text               <|im_start|>user\nHi<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n
           prompt's own       <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n

       If the two already differ among the prompt's contents, the completion begins with its first content.

    Args:
        turns: those that were located; none if that failed.

    Raises:
        RowRejectedError: the template refuses the prompt alone; `unproved`, if contents of the prompt follow.
    """
    text = chat.text
    prompt_length = chat.prompt_length
    # 1. No completion.
    if prompt_length == len(chat.tracked.roles):
        return len(text)
    # The message of a generation block's span is -1: it is neither's.
    prompt_spans = [span for span in chat.source_spans if 0 <= span.message < prompt_length]
    completion_spans = [span for span in chat.source_spans if span.message >= prompt_length]
    prompt_end = max((span.end for span in prompt_spans), default=0)
    # An empty content of the completion has a span, too, but no character before which the prompt would have to end.
    first_character = min((span.begin for span in completion_spans if span.begin < span.end), default=prompt_end)
    if prompt_end > first_character:
        raise RowRejectedError("unproved", "the template writes words of the prompt after the completion begins")
    # 2. A located turn.
    for turn in turns:
        if turn.message == prompt_length:
            return turn.begin
    first_content = min((span.begin for span in completion_spans), default=len(text))
    # 3. No prompt.
    if prompt_length == 0:
        return first_content if chat.tracked.roles[0] == ASSISTANT else 0
    # 4. Where the text departs from the prompt's own rendering.
    for turn in turns:
        if turn.message < prompt_length:
            prompt_end = max(prompt_end, turn.end)  # the stop of an earlier turn is the prompt's, too
    prompt_alone = chat.rendered_before(prompt_length)
    shared_end = shared_prefix_length(prompt_alone.text, text)
    contents_end_alone = max((span.end for span in prompt_alone.source_spans), default=0)
    # Whether the two agree up to the end of the prompt's contents, in both of them.
    has_all_contents = shared_end >= max(prompt_end, contents_end_alone)
    # An empty first content of the completion may stand within what both share. All that both share is the prompt.
    if has_all_contents or shared_end >= first_content:
        return max(shared_end, prompt_end)
    return first_content


# Turns of templates with generation blocks


def _turns_of_generation_blocks(chat: RenderedChat) -> list[Turn]:
    """The turns of a conversation whose template has generation blocks: turns are exactly the blocks' contents. A block
    belongs to the message whose source spans lie in it.

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
        # Spans are begin, end and origin, sorted by where they begin. So those in the block are side by side, from the
        # first that does not begin before it.
        inside: list[SourceSpan] = []
        for span in message_spans[bisect_left(message_spans, (block.begin, 0, 0)) :]:
            if span.end > block.end:
                break
            inside.append(span)
        messages = {span.message for span in inside}
        if not messages and len(blocks) == len(assistant_messages):
            # A blank content may leave no span. With a block for each message, their order says whose it is.
            messages = {assistant_messages[number]}
        contents_end = inside[-1].end if inside else block.begin
        stop_begin, stop_end = _closing_tokens_between(chat, contents_end, block.end)
        if len(messages) == 1:
            turns.append(
                Turn(messages.pop(), begin=block.begin, stop_begin=stop_begin, stop_end=stop_end, end=block.end)
            )
        elif not messages and turns and block.begin == turns[-1].end:
            # What ends a turn may stand in a block of its own, right behind the turn's.
            turn = turns[-1]._replace(end=block.end)
            has_stop = turn.stop_begin < turn.stop_end
            turns[-1] = turn if has_stop else turn._replace(stop_begin=stop_begin, stop_end=stop_end)
        else:
            raise UnprovedError("a generation block does not belong to one message")
    return turns


def _closing_tokens_between(chat: RenderedChat, begin: int, end: int) -> tuple[int, int]:
    """Where the closing tokens between two places begin and end; `end` twice if there are none."""
    stop_begin, stop_end = chat.profile.gaps.tokens.closing_span(chat.text[begin:end])
    if stop_begin == stop_end:
        return end, end
    return begin + stop_begin, begin + stop_end


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
    # A template may skip a blank content. An empty span stands for it, so that each message below has a first and a
    # last span.
    for message in assistant_messages:
        if message not in messages_with_span:
            chat = with_blank_span(chat, message, is_complete=is_complete)
    span_indices: dict[int, list[int]] = {}
    for index, span in enumerate(chat.source_spans):
        span_indices.setdefault(span.message, []).append(index)
    messages_with_calls = chat.tracked.messages_with(TOOL_CALL)
    tails = PromptTails(chat)
    turns: list[Turn] = []
    for message in assistant_messages:
        own_spans = [chat.source_spans[index] for index in span_indices[message]]
        if message in messages_with_calls and not any(span.origin & TOOL_CALL for span in own_spans):
            raise UnprovedError("the template leaves its tool calls out of the text", message)
        first = span_indices[message][0]
        last = span_indices[message][-1]
        if first < last:
            # The turn may end earlier: the header after it may repeat the name of a call, with a span of the message.
            last = last_span_of_turn(chat, first, last)
        if any(span.message != message for span in chat.source_spans[first : last + 1]):
            raise UnprovedError("it contains words of other messages", message)
        last_span = chat.source_spans[last]
        begin = find_turn_begin(chat, first, contents_end=last_span.end, is_complete=is_complete, tails=tails)
        if turns and begin < turns[-1].end:
            raise UnprovedError("it begins before the previous turn ends", message)
        next_message, gap_end = _next_message(chat, message, last)
        stop_begin, stop_end = find_turn_end(
            chat,
            message,
            contents_end=last_span.end,
            next_message=next_message,
            gap_end=gap_end,
            ends_with_call=bool(last_span.origin & TOOL_CALL),
        )
        # Without a generation block, nothing of a turn stands behind its stop.
        turns.append(Turn(message, begin, stop_begin, stop_end, end=stop_end))
    return turns


def _next_message(chat: RenderedChat, message: int, last: int) -> tuple[int | None, int]:
    """The message whose contents come after a turn, and the character at which they begin:

        (2, 93)       message 2 comes next
        (None, 68)    none comes, because the turn's message is the last; the text has 68 characters
        (-1, 68)      none comes, although messages follow: the text has nothing of them

    Args:
        message: index of the turn's message.
        last: index of the turn's last source span.
    """
    for span in chat.source_spans[last + 1 :]:
        # Later spans of the turn's own message stand in the next header, which repeats the name of a call.
        if span.message != message:
            return span.message, span.begin
    text_end = len(chat.text)
    if message == len(chat.tracked.roles) - 1:
        return None, text_end
    return -1, text_end


def _assistant_messages(chat: RenderedChat) -> list[int]:
    """Indices of the assistant's messages."""
    return [index for index, role in enumerate(chat.tracked.roles) if role == ASSISTANT]
