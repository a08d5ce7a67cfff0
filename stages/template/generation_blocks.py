"""Locates the assistant's turns by a template's `{% generation %}` blocks."""

from collections.abc import Sequence

from .assistant_turns import (
    ASSISTANT,
    CALL,
    GENERATION,
    MESSAGE,
    TemplateProfile,
    Turn,
    UnprovedError,
    Word,
    stop_pattern,
)


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
