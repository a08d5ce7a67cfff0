"""Locates the assistant's turns in a rendered conversation, by its template's marks or by its words, and where the
completion begins.
"""

from collections.abc import Collection, Sequence

from .assistant_turns import (
    ASSISTANT,
    Head,
    TemplateProfile,
    Turn,
    UnprovedError,
    common_prefix,
    find_turns,
    stop_pattern,
    with_next_stops,
)
from .tracked_str import CALL, GENERATION, MESSAGE, Word, code_of


def locate(
    text: str,
    words: Sequence[Word],
    roles: Sequence[str],
    prompt: int,
    manner: TemplateProfile,
    blocks: int,
    head: Head,
    *,
    calls: Collection[int] = (),
) -> tuple[list[Turn], int]:
    """Return the assistant's turns, and where the completion begins.

    Args:
        blocks: how many generation blocks ran.
        head, calls: see `find_turns`.

    Raises:
        UnprovedError: the turns cannot be located with certainty.
        RowRejectedError: see `completion_start`.
    """
    if manner.generation:
        if sum(code == GENERATION for _, _, code in words) != blocks:
            raise UnprovedError("what a generation block wrote was changed by the template")
        turns = generated_turns(text, words, roles, manner)
    else:
        turns = find_turns(text, words, roles, manner, head, calls=calls)
    begin = completion_start(text, words, prompt, roles, turns, head, manner)
    if any(turn.begin < begin < turn.end for turn in turns):
        raise UnprovedError("the completion begins within a turn")
    return with_next_stops(text, words, roles, turns, manner, begin), begin


def generated_turns(text: str, words: Sequence[Word], roles: Sequence[str], manner: TemplateProfile) -> list[Turn]:
    """Locate the turns of a conversation whose template has generation blocks: turns are exactly the blocks' contents.

    Args:
        words: sorted, including those of code GENERATION.

    Raises:
        UnprovedError: no block was rendered despite assistant messages, or a block belongs to no message.
    """
    said = [index for index, role in enumerate(roles) if role == ASSISTANT]
    blocks = [(begin, end) for begin, end, code in words if code == GENERATION]
    if not said and not blocks:
        return []
    if not blocks:
        raise UnprovedError("the template rendered no generation block")
    edges = {place for block in blocks for place in block}
    # An empty question at the edge of a block is not part of the block (a non-empty one would not be either), unless
    # the template marks questions too.
    plain: list[Word] = []
    beside: list[Word] = []
    for begin, end, code in words:
        if code != GENERATION:
            edge = begin == end and begin in edges and code >> MESSAGE not in said
            (beside if edge else plain).append((begin, end, code))
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
        if not owners and len(blocks) != len(said):
            if begin == end:
                continue
            if turns and begin == turns[-1].end:  # what ends a turn may stand in a block of its own
                turns[-1] = _longer(text, turns[-1], end, manner)
                continue
        if len(owners) == 1:
            (index,) = owners
        elif not owners and len(blocks) == len(said):
            index = said[number]
        elif not owners and len(near := {code >> MESSAGE for at, _, code in beside if begin <= at <= end}) == 1:
            (index,) = near
        else:
            raise UnprovedError("a generation block does not belong to one message")
        tail = plain[inside - 1][1] if inside > place else begin
        called = inside > place and plain[inside - 1][2] & CALL and manner.call_stop
        stops = stop_pattern([manner.call_stop]) if called else manner.stops
        found = stops.search(text, tail, end) if stops is not None else None
        stop, stop_end = (found.start(), found.end()) if found is not None else (end, end)
        if found is not None and manner.ending and text.startswith(manner.ending, stop):
            stop_end = min(stop + len(manner.ending), end)
        turns.append(Turn(index, begin, stop, stop_end, end))
    return turns


def _longer(text: str, turn: Turn, end: int, manner: TemplateProfile) -> Turn:
    """A turn that goes on to `end` with text of the template's. If it has no end-of-turn token, that may have it."""
    if turn.stop < turn.stop_end:
        return turn._replace(end=end)
    found = manner.stops.search(text, turn.end, end) if manner.stops is not None else None
    stop, stop_end = (found.start(), found.end()) if found is not None else (end, end)
    return turn._replace(stop=stop, stop_end=stop_end, end=end)


def completion_start(
    text: str,
    words: Sequence[Word],
    cut: int,
    roles: Sequence[str],
    turns: Sequence[Turn],
    head: Head,
    manner: TemplateProfile,
) -> int:
    """Return where the completion begins: with its first message, if that is a turn that was located.

    Else it begins where the text departs from the prompt's own rendering with a generation prompt. If the two already
    differ among the prompt's words, it begins after the generation prompt, if that occurs once between the words of
    prompt and completion; else with the completion's words, or the second time that these are written, if the prompt's
    follow the first. Without a prompt, a completion that the user begins is the whole text; without a completion, it
    begins at the text's end.

    Args:
        cut: number of messages in the prompt.
        roles: one per message.
        turns: the turns that were located.
        head: renders the prompt alone, if that is needed.

    Raises:
        RowRejectedError: the template refuses the prompt alone.
    """
    if cut == len(roles):
        return len(text)
    begin = next((turn.begin for turn in turns if turn.message == cut), None)
    if begin is not None:
        return begin
    if not cut and roles[0] != ASSISTANT:
        return 0
    own = code_of(cut)
    anchor = min((begin for begin, _, code in words if code >= own), default=len(text))
    last = max((end for begin, end, code in words if 0 <= code < own and begin < end), default=0)
    later = {code: begin for begin, _, code in reversed(words) if code >= own and begin >= last}
    if later and later.keys() == {code for _, _, code in words if code >= own}:
        anchor = min(later.values())
    low = max(
        *(end for _, end, code in words if 0 <= code < own and end <= anchor),
        *(earlier.end for earlier in turns if earlier.message < cut),
        0,
        0,
    )
    if cut:
        alone, alone_words = head(cut)
        shared = common_prefix(alone, text)
        said = 0 if shared == len(alone) else max((end for _, end, _ in alone_words), default=0)
        if shared >= max(low, said) or shared >= anchor:
            return max(shared, low)
    before = text[low:anchor]
    # Otherwise there may be words that were not followed.
    complete = len({code >> MESSAGE for _, _, code in words if code >= 0}) == len(roles)
    if complete and manner.opening and before.count(manner.opening) == 1:
        return low + before.index(manner.opening) + len(manner.opening)
    return anchor
