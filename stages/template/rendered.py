"""A rendered conversation: its text, and the runs that say what each part of it is."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from ...schemas.rows import ASSISTANT_KINDS, NEXT_STOP_KINDS, RunKind
from .assistant_turns import (
    ASSISTANT,
    CALL,
    GENERATION,
    MESSAGE,
    Head,
    TemplateProfile,
    Turn,
    UnprovedError,
    Word,
    code_of,
    find_turns,
    stop_pattern,
    with_next_stops,
)
from .completion_start import completion_start


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


class Runs(NamedTuple):
    """A text's runs. Only `ends` differs between rows of one trace."""

    ends: tuple[int, ...]
    """The end of each run: one past its last character. Ascending; the last is the text's length."""
    kinds: tuple[int, ...]
    """Values of `schemas.rows.RunKind`."""
    turns: tuple[int, ...]
    """Index of each run's message."""
    trains: tuple[float, ...]
    """How much each run counts in the loss: True (1), False (not trained), or a weight."""


class Rendered(NamedTuple):
    """A rendered conversation."""

    text: str
    begin: int
    """The character at which the completion begins."""
    runs: Runs
    """The runs of the text; a run may be empty if a content is empty."""
    unproved: str
    """Why its turns could not be located, or ""."""
    dropped: tuple[str, ...] = ()
    """Allowed losses: parts of the conversation that the template leaves out; see `Losses.check`."""
    mixed: str = ""
    """Why thoughts or tool calls of a located turn could not be located, or ""."""


# Python finds members of an enum slowly.
_PROMPT, _USER, _COMPLETION = RunKind.PROMPT, RunKind.USER, RunKind.COMPLETION
_HISTORY, _HISTORY_END, _ASSISTANT, _END = RunKind.HISTORY, RunKind.HISTORY_END, RunKind.ASSISTANT, RunKind.END
_NOTHING = Runs((0,), (int(RunKind.PROMPT),), (0,), (True,))
"""The one run of an empty text."""


def solid(runs: Runs) -> Runs:
    """The runs without empty ones; a prompt run for an empty text."""
    kept, done = [], 0
    for run in zip(*runs, strict=True):
        if run[0] > done:
            kept.append(run)
            done = run[0]
    if not kept:
        return _NOTHING
    ends, kinds, turns, trains = zip(*kept, strict=True)
    return Runs(ends, kinds, turns, trains)


def same(first: Rendered, second: Rendered) -> bool:
    """Whether two renderings are equal."""
    if first._replace(runs=second.runs) != second:
        return False
    return solid(first.runs) == solid(second.runs)


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
    cut: Callable[[int, str], None] | None = None,
) -> tuple[list[Turn], int]:
    """Return the assistant's turns, and where the completion begins.

    Args:
        blocks: how many generation blocks ran.
        head, calls, cut: see `find_turns`.

    Raises:
        UnprovedError: the turns cannot be located with certainty.
        RowRejectedError: see `completion_start`.
    """
    if manner.generation:
        if sum(code == GENERATION for _, _, code in words) != blocks:
            raise UnprovedError("what a generation block wrote was changed by the template")
        turns = generated_turns(text, words, roles, manner)
    else:
        turns = find_turns(text, words, roles, manner, head, calls=calls, cut=cut)
    begin = completion_start(text, words, prompt, roles, turns, head, manner)
    if any(turn.begin < begin < turn.end for turn in turns):
        raise UnprovedError("the completion begins within a turn")
    return with_next_stops(text, words, roles, turns, manner), begin


def runs_of(
    turns: Sequence[Turn],
    begin: int,
    length: int,
    prompt: int,
    roles: Sequence[str],
    flags: Sequence[float],
    words: Sequence[Word],
) -> Runs:
    """The runs of a text whose turns are known.

    Args:
        begin: where the completion begins.
        prompt: how many of the messages are the prompt.
        flags: the train flag or weight of each message. Text that the template wrote between two messages has the
            smaller of their weights, so that it is trained only if both messages are.
        words: words of the text, sorted; used only if flags differ.
    """
    everywhere = flags[0] if flags else True
    pieces = _pieces(turns, begin, length, prompt, roles)
    if list(flags).count(everywhere) == len(flags):
        if not pieces:
            return _NOTHING
        ends, kinds, indices = zip(*pieces, strict=True)
        return Runs(ends, kinds, indices, (everywhere,) * len(ends))
    done = 0
    out: list[tuple[int, int, int, float]] = []
    for end, kind, index in pieces:
        if kind in ASSISTANT_KINDS or kind in NEXT_STOP_KINDS:
            stretches: Iterable[tuple[int, float]] = ((end, flags[index]),)
        else:
            stretches = _flagged(done, end, flags, words)
        for stretch, train in stretches:
            if stretch <= done:
                continue
            if out and out[-1][1:] == (kind, index, train):
                out.pop()
            out.append((stretch, kind, index, train))
            done = stretch
    return Runs(*zip(*out, strict=True)) if out else _NOTHING


def _pieces(
    turns: Sequence[Turn], begin: int, length: int, prompt: int, roles: Sequence[str]
) -> list[tuple[int, int, int]]:
    """Divide a text at its turns and where the completion begins; yield (end, kind, message) of each piece."""
    out: list[tuple[int, int, int]] = []
    done = following = 0
    final = len(roles) - 1
    for message, start, stop, stop_end, end, next_stop in (*turns, Turn(len(roles), length, length, length, length)):
        if start > done:
            index = min(following, message, final)
            if done < begin:
                before = _USER if following and roles[index] == "user" else _PROMPT
                out.append((min(begin, start), before, index))
                index = prompt
            if start > begin:
                out.append((start, _COMPLETION, index))
            done = start
        earlier = message < prompt
        if stop > done:
            out.append((stop, _HISTORY if earlier else _ASSISTANT, message))
            done = stop
        if stop_end > done:
            out.append((stop_end, _HISTORY_END if earlier else _END, message))
            done = stop_end
        if end > done:
            out.append((end, _HISTORY if earlier else _ASSISTANT, message))
            done = end
        if next_stop > done and not done < begin < next_stop:
            later = RunKind.HISTORY_STOP_IN_NEXT_HEADER if done < begin else RunKind.STOP_IN_NEXT_HEADER
            out.append((next_stop, later, message))
            done = next_stop
        following = message + 1
    return out


def _flagged(low: int, high: int, flags: Sequence[float], words: Sequence[Word]) -> Iterable[tuple[int, float]]:
    """Yield (end, flag) of the stretches that fill low..high: the words of a message, or the text between them."""
    done, before = low, -1
    for begin, end, code in words:
        if code == GENERATION:
            continue
        owner = code >> MESSAGE
        if end <= low:
            before = owner
            continue
        if begin >= high:
            between = flags[max(before, 0) : owner + 1]
            yield high, min(between, default=True)
            return
        yield min(max(begin, done), high), min(flags[max(before, 0) : owner + 1], default=True)
        yield min(end, high), flags[owner]
        done, before = max(done, end), owner
    if done < high:
        yield high, min(flags[max(before, 0) :], default=True)


def unproved_runs(begin: int, length: int, prompt: int, before: float = True, after: float = True) -> Runs:
    """Return the two runs of a conversation whose turns could not be located: its prompt and its completion.

    Args:
        before, after: the train flags or weights of prompt and completion.
    """
    ends, kinds, indices, trains = [], [], [], []
    if begin:
        ends, kinds, indices, trains = [begin], [int(RunKind.UNPROVED)], [0], [before]
    if begin < length or not begin:
        ends.append(length)
        kinds.append(int(RunKind.UNPROVED_COMPLETION))
        indices.append(prompt)
        trains.append(after)
    return Runs(tuple(ends), tuple(kinds), tuple(indices), tuple(trains))


_NOT_COMPLETION = {
    int(RunKind.COMPLETION): int(RunKind.PROMPT),
    int(RunKind.UNPROVED_COMPLETION): int(RunKind.UNPROVED),
}


def prompt_apart(runs: Runs, begin: int, prompt: int, words: Sequence[Word]) -> Runs:
    """Return the runs, excluding words of the prompt that the template writes inside the completion.

    Args:
        begin: where the completion begins.
        prompt: how many of the messages are the prompt.
        words: words of the text, sorted.
    """
    late = []
    for low, high, code in reversed(words):
        if high <= begin:
            break
        if 0 <= code < code_of(prompt) and low < high:
            late.append((max(low, begin), high, code >> MESSAGE))
    if not late:
        return runs
    late.reverse()
    out: list[tuple[int, int, int, float]] = []
    done = 0
    for end, kind, turn, train in zip(*runs, strict=True):
        for low, high, owner in late if kind in _NOT_COMPLETION else ():
            if high <= done or low >= end:
                continue
            if low > done:
                out.append((low, kind, turn, train))
            done = min(high, end)
            out.append((done, _NOT_COMPLETION[kind], owner, train))
        if end > done or not out:
            out.append((end, kind, turn, train))
            done = end
    return Runs(*zip(*out, strict=True))
