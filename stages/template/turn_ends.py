"""Where a turn of the assistant ends: in the gap between its words and those of the next message, without the header of
the next message's role.

What the template writes between the two is found for each turn of each row, because templates end earlier turns, last
turns and calls differently, and write remarks before the end. Two things must agree, or only one of them be known, and
not be ambiguous: the gap without the header, and what follows such a turn at the end of a text.
"""

import json
from typing import TypeAlias

from .chat import Chat, UnprovedError
from .gaps import TemplateGaps
from .marked import is_blank
from .tracked_str import CALL, MESSAGE

_Ends: TypeAlias = dict[tuple[int, int], str]
"""What the end of a turn may be, by where its closing tokens begin and end."""


def end_of_turn(
    chat: Chat, index: int, done: int, follower: int | None, following: int, *, calling: bool
) -> tuple[int, int]:
    """Where the closing tokens of a turn begin and end.

    Args:
        index: of the turn's message.
        done: where its words end.
        follower: the message whose words come next; None if the text ends, -1 if it ends although messages follow.
        following: where they begin.
        calling: whether the turn ends with a tool call.

    Raises:
        UnprovedError: nothing shows where it ends, or it may end at several places.
    """
    gap = chat.text[done:following]
    gaps = chat.manner.gaps
    if follower is None:
        end = gaps.end_of_text(gap)
        if end is None:
            raise UnprovedError("what stands at the text's end may open another turn", index)
    else:
        end = _end_before(chat, index, follower, gap, gaps.call_ends if calling else gaps.answer_ends)
    low, high = gaps.closing_span(end)
    if gaps.ends_generation(end[low:high]):
        return done + low, done + high
    if gaps.double_faced.search(gap):
        raise UnprovedError("nothing shows whether a token closes it or opens the next turn", index)
    if low < high and not is_blank(end[high:]):
        raise UnprovedError("nothing shows whether the text after its last special token belongs to it", index)
    return done + low, done + high


def _end_before(chat: Chat, index: int, follower: int, gap: str, last_ends: tuple[str, ...]) -> str:
    """The end of a turn before another message's words.

    Args:
        last_ends: how such turns end where they end the text.
    """
    gaps = chat.manner.gaps
    closed = (end for end in last_ends if gaps.stops.search(end))  # a last turn may be left open
    by_last = {gaps.closing_span(end): end for end in closed if gap.startswith(end)}
    is_next = follower == index + 1
    ends = _without_headers(gaps, gap, gaps.headers(chat.own.roles[follower])) if is_next else []
    by_header = {gaps.closing_span(end): end for end in ends}
    if (end := _agreed(gaps, by_header, by_last, last_ends)) is not None:
        return end
    opener = gaps.openers.search(gap)
    if not by_header and len(by_last) == 1:
        (end,) = by_last.values()
        after = gaps.stops.search(gap, len(end))
        if after is None or (opener is not None and opener.start() == after.start()):
            return end  # it cannot go on: no end has a token that opens headers
    if is_next and index and (header := _header_without_turn(chat, index, follower)):
        ends = _without_headers(gaps, gap, [header])
        by_header = {gaps.closing_span(end): end for end in ends}
        if (end := _agreed(gaps, by_header, by_last, last_ends)) is not None:
            return end
    if by_header or by_last:
        raise UnprovedError("it may end at several places", index)
    if opener is not None and gaps.stops.search(gap, 0, opener.start()):
        end = gap[: opener.start()]
        if gaps.is_plain(end, last_ends):
            return end
    raise UnprovedError("nothing shows where it ends", index)


def _agreed(gaps: TemplateGaps, by_header: _Ends, by_last: _Ends, last_ends: tuple[str, ...]) -> str | None:
    """The end of a turn on which all that is known agrees; None if it does not.

    Args:
        by_header: by where they close, the gap without headers; it may begin what another message needs, such as tools.
        by_last: how such turns end where they end the text, if the gap begins so.
    """
    if len(by_header) != 1:
        return None
    ((closing, end),) = by_header.items()
    if by_last:
        return by_last[closing] if by_last.keys() == {closing} else None
    return end if gaps.is_plain(end, last_ends) else None


def _without_headers(gaps: TemplateGaps, gap: str, headers: "tuple[str, ...] | list[str]") -> list[str]:
    """A gap without each header that it ends with, if no token that opens headers is left in it."""
    ends = [gap.removesuffix(header) for header in headers if header and gap.endswith(header)]
    return [end for end in ends if not gaps.openers.search(end)]


def _header_without_turn(chat: Chat, index: int, follower: int) -> str:
    """The header of the message after a turn, as the template writes it where the turn is left out; "" if it refuses
    that, or ends the message before it in another way then.
    """
    before = list(range(index))
    end = chat.gap(before, index - 1, None)
    gap = chat.gap([*before, follower], index - 1, follower)
    if end is None or gap is None:
        return ""
    gaps = chat.manner.gaps
    header = gaps.header_after(end, gap, chat.own.roles[follower])
    first = gaps.stops.search(header)
    opens = first is None or gaps.openers.fullmatch(first.group()) is not None
    return header if opens else ""  # else it may begin with the end of the message before


def last_word_of(chat: Chat, first: int, last: int) -> int:
    """The last word of a turn, of those from `first` to `last`, which are its message's first and last ones. Headers
    after it may repeat the names of its calls, and nothing else.

    Raises:
        UnprovedError: what is repeated could also be an argument of a call.
    """
    words, text = chat.words, chat.text
    index = words[first][2] >> MESSAGE
    message_calls = chat.own.chat[index].get("tool_calls") or []
    functions = [call.get("function") or call for call in message_calls if isinstance(call, dict)]
    names = {str(function.get("name")) for function in functions if isinstance(function, dict)}

    def is_repeated(place: int) -> bool:
        begin, end, code = words[place]
        earlier = ((text[low:high], other) for low, high, other in words[first:place])
        return bool(code & CALL) and text[begin:end] in names and (text[begin:end], code) in earlier

    others = (place for place in range(first, last + 1) if words[place][2] >> MESSAGE != index)
    place = next(others, last + 1) - 1
    if not all(is_repeated(later) for later in range(place + 1, last + 1) if words[later][2] >> MESSAGE == index):
        return last  # its words lie on both sides of another message's
    while place > first and is_repeated(place):
        word = json.dumps(text[words[place][0] : words[place][1]])
        if any(word in json.dumps(function.get("arguments", "")) for function in functions):
            raise UnprovedError("a call's name is one of its arguments, too", index)
        place -= 1
    return place
