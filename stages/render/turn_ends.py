"""Where a turn of the assistant ends: in the gap between its contents and those of the next message, without the header
of the next message's role.

    Hello<|im_end|>
    <|im_start|>user       gap             "<|im_end|>\\n<|im_start|>user\\n"
    And now?               end of turn     "<|im_end|>\\n", whose closing token is "<|im_end|>"
                           next header     "<|im_start|>user\\n"

What the template writes between the two is found for each turn of each row, because templates end earlier turns, last
turns and calls differently, and write remarks before the end. There are two ways to the end: to take the next header
off the gap, and to look for what follows such a turn at the end of a text. Where both find an end, they must agree.
Where one does, that is enough if nothing else could be the end.
"""

import json
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import TypeAlias

from ..template.gaps import TemplateGaps
from ..template.tracked_messages import ASSISTANT, is_blank
from ..template.tracked_str import TOOL_CALL
from .rendered_chat import RenderedChat, Turn, UnprovedError

_Ends: TypeAlias = dict[tuple[int, int], str]
"""Texts that may be the end of a turn, by where their closing tokens begin and end in them, so that texts which close
the turn in the same place count once: {(0, 10): "<|im_end|>\\n"}."""


def find_turn_end(
    chat: RenderedChat, message: int, contents_end: int, next_message: int | None, gap_end: int, *, ends_with_call: bool
) -> tuple[int, int]:
    """Where the closing tokens of a turn begin and end in the text.

    Args:
        message: index of the turn's message.
        contents_end: where its contents end, and the gap begins.
        next_message: the message whose contents come next. None if there is none because the text ends with this turn;
            -1 if the text ends although messages follow, whose contents it does not have.
        gap_end: where the contents of the next message begin, or the text ends.
        ends_with_call: whether the turn ends with a tool call.

    Raises:
        UnprovedError: nothing shows where it ends, or it may end at several places.
    """
    gap = chat.text[contents_end:gap_end]
    gaps = chat.profile.gaps
    if next_message is None:
        end_of_text = gaps.end_of_text(gap)
        if end_of_text is None:
            raise UnprovedError("what stands at the text's end may open another turn", message)
        end = end_of_text
    else:
        last_ends = gaps.call_ends if ends_with_call else gaps.answer_ends
        end = _end_before_next(chat, message, next_message, gap, last_ends)
    # In the gap "<|im_end|>\n<|im_start|>user\n", the end is "<|im_end|>\n", and its closing tokens are (0, 10).
    stop_begin, stop_end = gaps.tokens.closing_span(end)
    # A token at which a generation stops certainly closes the turn. Any other may as well open the next turn: then the
    # end is only accepted if the gap has no token that the samples show in both uses.
    if not gaps.tokens.ends_generation(end[stop_begin:stop_end]):
        if gaps.ambiguous_tokens.search(gap):
            raise UnprovedError("nothing shows whether a token closes it or opens the next turn", message)
        if stop_begin < stop_end and not is_blank(end[stop_end:]):
            raise UnprovedError("nothing shows whether the text after its last special token belongs to it", message)
    return contents_end + stop_begin, contents_end + stop_end


def _end_before_next(chat: RenderedChat, message: int, next_message: int, gap: str, last_ends: Sequence[str]) -> str:
    """The end of a turn before another message's contents. Three ways are tried, the cheapest first:

    1. Take a header that the next message's role is known to have off the gap. What is left must agree with how such
       turns end where they end the text, if the gap begins with that.
    2. If no known header fits: how such turns end where they end the text, alone.
    3. As 1, with the header that the template writes where this turn is left out.

    Under ChatML, the first way is enough:

        gap                    "<|im_end|>\\n<|im_start|>user\\n"
        gap without header     "<|im_end|>\\n", whose closing tokens are (0, 10)
        end where text ends    "<|im_end|>", with which the gap begins; its closing tokens are (0, 10), too

    Args:
        message: index of the turn's message.
        next_message: index of the message whose contents come next; -1 if the text has none of those that follow.
        gap: what stands between the contents of the turn and those of the next message, or the text's end.
        last_ends: how such turns end where they end the text, such as "<|im_end|>".

    Raises:
        UnprovedError: nothing shows where it ends, or it may end at several places.
    """
    gaps = chat.profile.gaps
    is_next = next_message == message + 1
    # Those of `last_ends` with which the gap begins. One without a special token is of a template that leaves the last
    # turn open, which shows nothing of earlier turns.
    fitting_ends: _Ends = {}
    for last_end in last_ends:
        if gaps.special_tokens.search(last_end) and gap.startswith(last_end):
            fitting_ends[gaps.tokens.closing_span(last_end)] = last_end

    # 1. Only for the message after this one: before a later one, the headers of those between them come first.
    known_headers = gaps.headers(chat.tracked.roles[next_message]) if is_next else ()
    without_header = _gap_without_headers(gaps, gap, known_headers)
    end = _agreed_end(gaps, without_header, fitting_ends, last_ends)
    if end is not None:
        return end

    # 2. Only if the first special token behind the end opens a header, or there is none: another could belong to the
    # end, too. Of "<|im_end|>\n<|im_start|>user\n", it is "<|im_start|>".
    if not without_header and len(fitting_ends) == 1:
        (fitting_end,) = fitting_ends.values()
        token_behind = gaps.special_tokens.search(gap, len(fitting_end))
        opener = gaps.header_openers.search(gap)
        if token_behind is None or (opener is not None and opener.start() == token_behind.start()):
            return fitting_end

    # 3. Rendered for this row, and so the slowest: most templates never come here. Without the turn, the header follows
    # the message before the turn, so there must be one.
    if is_next and message > 0:
        header = _header_without_turn(chat, message, next_message)
        if header:
            without_header = _gap_without_headers(gaps, gap, [header])
            end = _agreed_end(gaps, without_header, fitting_ends, last_ends)
            if end is not None:
                return end
    if without_header or fitting_ends:
        raise UnprovedError("it may end at several places", message)
    raise UnprovedError("nothing shows where it ends", message)


def _gap_without_headers(gaps: TemplateGaps, gap: str, headers: Sequence[str]) -> _Ends:
    """A gap without each header that it ends with: "<|im_end|>\\n<|im_start|>user\\n" without "<|im_start|>user\\n" is
    "<|im_end|>\\n". If a header still begins in what is left, that is not the end of the turn: the header is longer.
    """
    ends = [gap.removesuffix(header) for header in headers if header and gap.endswith(header)]
    return {gaps.tokens.closing_span(end): end for end in ends if not gaps.header_openers.search(end)}


def _agreed_end(gaps: TemplateGaps, without_header: _Ends, fitting_ends: _Ends, last_ends: Sequence[str]) -> str | None:
    """The end of a turn that `without_header` and `fitting_ends` agree on, or that `without_header` has while the other
    is empty. None if there is no such end, or several.

    Args:
        without_header: the gap without headers. What the next message needs, such as tools, may still be in it, behind
            the closing tokens.
        fitting_ends: of `last_ends`, those with which the gap begins.
        last_ends: how such turns end where they end the text.
    """
    if len(without_header) != 1:
        return None
    ((closing_span, end),) = without_header.items()
    if not fitting_ends:
        return end if gaps.tokens.is_only_end(end, last_ends) else None
    if list(fitting_ends) != [closing_span]:
        return None
    # Of the two, the one that ends a text is returned: it has nothing of the next message behind the closing tokens.
    return fitting_ends[closing_span]


def _header_without_turn(chat: RenderedChat, message: int, next_message: int) -> str:
    """The header of the message after a turn, as the template writes it where the turn is left out; "" if it refuses
    that, or ends the message before it in another way then.

    Of question, answer and question, only the two questions are rendered: in the gap between them, what follows the end
    of the first one is the header of the second.
    """
    messages_before = list(range(message))
    end = chat.gap(messages_before, before=message - 1, after=None)
    gap = chat.gap([*messages_before, next_message], before=message - 1, after=next_message)
    if end is None or gap is None:
        return ""
    gaps = chat.profile.gaps
    header = gaps.header_after(end, gap, chat.tracked.roles[next_message])
    first_token = gaps.special_tokens.search(header)
    # A header whose first token opens no headers may begin with the end of the message before.
    is_header = first_token is None or gaps.header_openers.fullmatch(first_token.group()) is not None
    return header if is_header else ""


# Call names that the next header repeats


def last_span_of_turn(chat: RenderedChat, first: int, last: int) -> int:
    """The index of a turn's last source span. Headers after the turn may repeat the names of its calls, and nothing
    else, as gpt-oss does:

        <|start|>assistant to=functions.add<|message|>{"a": 1}<|call|><|start|>functions.add to=assistant<|message|>3

    Of the spans `add`, `{"a": 1}` and `add`, the third is the header's of the tool's result 3, and so the turn's last
    one is the second.

    Args:
        first, last: indices of the first and the last source span of its message.

    Raises:
        UnprovedError: what is repeated could also be an argument of a call.
    """
    spans = chat.source_spans
    message = spans[first].message
    calls = chat.tracked.for_template[message].get("tool_calls") or []
    # Some rows have a call's name and arguments without the `function` around them.
    functions = [call.get("function") or call for call in calls if isinstance(call, dict)]
    functions = [function for function in functions if isinstance(function, dict)]
    names = {str(function.get("name")) for function in functions}
    # The last span before the first of another message.
    own_last = first
    while own_last < last and spans[own_last + 1].message == message:
        own_last += 1
    # Behind spans of other messages, only names may stand: in the headers of the second result of calls and later ones.
    later_indices = [index for index in range(own_last + 1, last + 1) if spans[index].message == message]
    if not all(_repeats_name(chat, names, first, index) for index in later_indices):
        return last  # contents of the turn lie on both sides of another message's
    # Before them, the last spans may be names in the header of the first result.
    while own_last > first and _repeats_name(chat, names, first, own_last):
        # With the quotes of JSON, so that the name counts as a whole text or key, and not inside a longer one.
        name = json.dumps(chat.text[spans[own_last].begin : spans[own_last].end])
        if any(name in json.dumps(function.get("arguments", "")) for function in functions):
            raise UnprovedError("a call's name is one of its arguments, too", message)
        own_last -= 1
    return own_last


def _repeats_name(chat: RenderedChat, names: Collection[str], first: int, index: int) -> bool:
    """Whether a source span is the name of a call that an earlier span of the turn has written already.

    Args:
        names: of the turn's calls.
        first: index of the turn's first source span.
    """
    span = chat.source_spans[index]
    text = chat.text[span.begin : span.end]
    if not span.origin & TOOL_CALL or text not in names:
        return False
    for earlier in chat.source_spans[first:index]:
        if earlier.origin == span.origin and chat.text[earlier.begin : earlier.end] == text:
            return True
    return False


# Stop tokens in the next header


def with_next_stop(chat: RenderedChat, turn: Turn, completion_begin: int) -> Turn:
    """A turn, with the stop token that stands in the header after it, for a template that ends no turn itself. In
    `b\\n<|user|>c`, the turn `b` ends at 1, and its next stop, with the line break before it, at 10.

    A header of the assistant's own ends no turn: a model is not asked to generate two turns. Neither does one in which
    the completion begins.
    """
    roles = chat.tracked.roles
    next_message = turn.message + 1
    has_stop = turn.stop_begin < turn.stop_end
    if has_stop or next_message == len(roles) or roles[next_message] == ASSISTANT:
        return turn
    header_begin = past_space(chat.text, begin=turn.end, end=len(chat.text))
    token = chat.profile.header_stop_tokens.match(chat.text, header_begin)
    # None if the header begins with no such token. The second condition: the completion begins in it.
    if token is None or turn.end < completion_begin < token.end():
        return turn
    # A token within the next message's content is the content's, and no part of a header. The content is the first span
    # behind the turn that is another message's. Spans are begin, end and origin, sorted by where they begin.
    first_later = bisect_left(chat.source_spans, (turn.end, 0, 0))
    for span in chat.source_spans[first_later:]:
        if span.origin >= 0 and span.message != turn.message:
            if token.end() > span.begin:
                return turn
            break
    return turn._replace(next_stop_end=token.end())


def past_space(text: str, begin: int, end: int) -> int:
    """The first place from `begin` on that is not white space, at most `end`."""
    while begin < end and text[begin].isspace():
        begin += 1
    return begin
