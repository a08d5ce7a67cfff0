"""Locates the assistant's turns in a rendered conversation, by its template's marks or by its words, and where the
completion begins.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence

from ...schemas.errors import RowRejectedError
from .assistant_turns import (
    ASSISTANT,
    Chat,
    TemplateProfile,
    Turn,
    UnprovedError,
    common_prefix,
    header_pattern,
    past_space,
    stop_pattern,
    turns_by_words,
)
from .tracked_str import CALL, GENERATION, MESSAGE, code_of


def locate(chat: Chat) -> tuple[list[Turn], int]:
    """Return the assistant's turns, and where the completion begins.

    Raises:
        UnprovedError: the turns cannot be located with certainty.
        RowRejectedError: see `completion_start`.
    """
    turns = _generated_turns(chat) if chat.manner.generation else turns_by_words(chat)
    begin = completion_start(chat, turns)
    if any(turn.begin < begin < turn.end for turn in turns):
        raise UnprovedError("the completion begins within a turn")
    return _with_next_stops(chat, turns, begin), begin


def _generated_turns(chat: Chat) -> list[Turn]:
    """Locate the turns of a conversation whose template has generation blocks: turns are exactly the blocks' contents.

    Raises:
        UnprovedError: no block was rendered despite assistant messages, or a block belongs to no message.
    """
    text, words, manner = chat.text, chat.words, chat.manner
    said = [index for index, role in enumerate(chat.roles) if role == ASSISTANT]
    blocks = [(begin, end) for begin, end, code in words if code == GENERATION]
    if len(blocks) != chat.blocks:
        raise UnprovedError("what a generation block wrote was changed by the template")
    if said and not blocks:
        raise UnprovedError("the template rendered no generation block")
    plain = [word for word in words if word[2] != GENERATION]
    turns: list[Turn] = []
    place = 0
    for number, (begin, end) in enumerate(blocks):
        if turns and begin < turns[-1].end:
            raise UnprovedError("generation blocks are nested")
        while place < len(plain) and plain[place][0] < begin:
            place += 1
        inside = place
        while inside < len(plain) and plain[inside][1] <= end:
            inside += 1
        owners = {word[2] >> MESSAGE for word in plain[place:inside]}
        if not owners and len(blocks) == len(said):
            owners = {said[number]}
        elif not owners and turns and begin == turns[-1].end:  # what ends a turn may stand in a block of its own
            turns[-1] = _longer(text, turns[-1], end, manner)
            continue
        if len(owners) != 1:
            raise UnprovedError("a generation block does not belong to one message")
        tail = plain[inside - 1][1] if inside > place else begin
        called = inside > place and plain[inside - 1][2] & CALL and manner.call_stop
        stops = stop_pattern([manner.call_stop]) if called else manner.stops
        stop, stop_end = _stop_within(text, stops, tail, end)
        if stop < end and manner.ending and text.startswith(manner.ending, stop):
            stop_end = min(stop + len(manner.ending), end)
        turns.append(Turn(owners.pop(), begin, stop, stop_end, end))
    return turns


def _longer(text: str, turn: Turn, end: int, manner: TemplateProfile) -> Turn:
    """A turn that goes on to `end` with text of the template's. If it has no end-of-turn token, that may have it."""
    stop, stop_end = turn.stop, turn.stop_end
    if stop == stop_end:
        stop, stop_end = _stop_within(text, manner.stops, turn.end, end)
    return turn._replace(stop=stop, stop_end=stop_end, end=end)


def _stop_within(text: str, stops: re.Pattern[str] | None, low: int, high: int) -> tuple[int, int]:
    """Where the first of some tokens begins and ends; `high` twice if there is none."""
    found = stops.search(text, low, high) if stops is not None else None
    return found.span() if found is not None else (high, high)


def _with_next_stops(chat: Chat, turns: list[Turn], completion: int) -> list[Turn]:
    """The turns, with the stop tokens that stand in the headers after them.

    A header of the assistant's own ends no turn: a model is not asked to generate two turns. Neither does one in which
    the completion begins.
    """
    text, roles, headers = chat.text, chat.roles, header_pattern(chat.manner.header_stops)
    if headers is None:
        return turns
    begins = [*(begin for begin, _, code in chat.words if code >= 0), len(text)]
    out = []
    for turn, following in zip(turns, [*(turn.begin for turn in turns[1:]), len(text)], strict=True):
        follower = turn.message + 1
        if turn.stop == turn.stop_end and follower < len(roles) and roles[follower] != ASSISTANT:
            found = headers.match(text, past_space(text, turn.end, len(text)))
            high = min(begins[bisect_left(begins, turn.end)], following)
            if found is not None and found.end() <= high and not turn.end < completion < found.end():
                turn = turn._replace(next_stop=found.end())
        out.append(turn)
    return out


def completion_start(chat: Chat, turns: Sequence[Turn] = ()) -> int:
    """Return where the completion begins: with its first message, if that is one of the turns that were located.

    Else it begins where the text departs from the prompt's own rendering with a generation prompt. If the two already
    differ among the prompt's words, it begins with the completion's words. Without a prompt, a completion that the user
    begins is the whole text; without a completion, it begins at the text's end.

    Raises:
        RowRejectedError: the template refuses the prompt alone; `unproved`, if words of the prompt follow.
    """
    text, words, roles, cut, *_ = chat
    if cut == len(roles):
        return len(text)
    own = code_of(cut)
    last = max((end for begin, end, code in words if 0 <= code < own and begin < end), default=0)
    answers = [(begin, end) for begin, end, code in words if code >= own]
    anchor = min((begin for begin, _ in answers), default=len(text))
    if last > min((begin for begin, end in answers if begin < end), default=last):
        raise RowRejectedError("unproved", "the template writes words of the prompt after the completion begins")
    for turn in turns:
        if turn.message == cut:
            return turn.begin
    if not cut and roles[0] != ASSISTANT:
        return 0
    low = max([last, *(earlier.end for earlier in turns if earlier.message < cut)])
    if cut:
        alone, alone_words = chat.head(cut)
        shared = common_prefix(alone, text)
        said = 0 if shared == len(alone) else max((end for _, end, _ in alone_words), default=0)
        if shared >= max(low, said) or shared >= anchor:
            return max(shared, low)
    return anchor
