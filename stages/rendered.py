"""A rendered conversation: its text, and the runs that say what each part of it is."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..schemas.rows import Kind
from .turns import GENERATION, MESSAGE, Turn, Word, code_of


class Runs(NamedTuple):
    """A text's runs. All but `ends` is the same for all rows of one trace."""

    ends: tuple[int, ...]
    """One past each run's last character, rising; the last is the text's length."""
    kinds: tuple[int, ...]
    """Of `schemas.rows.Kind`."""
    turns: tuple[int, ...]
    """Index of the message."""
    trains: tuple[bool, ...]


class Rendered(NamedTuple):
    """A rendered conversation."""

    text: str
    begin: int
    """The character at which the completion begins."""
    runs: Runs
    """Runs may be empty where a content is."""
    unproved: str
    """Why its turns are not known, or ""."""
    dropped: tuple[str, ...] = ()
    """What of the conversation is not in the text although it may be lost: see `kept.Keeper.check`."""
    rewritten: bool = False
    """Whether its prompt alone is rendered otherwise than within the conversation."""


_NOTHING = Runs((0,), (int(Kind.PROMPT),), (0,), (True,))
"""An empty text still has a run."""


def solid(runs: Runs) -> Runs:
    """The runs that are not empty; one of the prompt's for an empty text."""
    kept, done = [], 0
    for run in zip(*runs, strict=True):
        if run[0] > done:
            kept.append(run)
            done = run[0]
    if not kept:
        return _NOTHING
    ends, kinds, turns, trains = zip(*kept, strict=True)
    return Runs(ends, kinds, turns, trains)


def runs_of(
    turns: Sequence[Turn],
    begin: int,
    length: int,
    prompt: int,
    roles: Sequence[str],
    flags: Sequence[bool],
    words: Sequence[Word],
) -> Runs:
    """The runs of a text whose turns are known.

    Args:
        begin: where the completion begins.
        prompt: how many of the messages are the prompt.
        flags: the person's train flag of each message. What the template wrote between two messages is trained only
            where both are.
        words: of the text, sorted; looked at only where flags differ.
    """
    everywhere = flags[0] if flags else True
    pieces = _pieces(turns, begin, length, prompt, roles)
    if list(flags).count(everywhere) == len(flags):
        if not pieces:
            return _NOTHING
        ends, kinds, indices = zip(*pieces, strict=True)
        return Runs(ends, kinds, indices, (everywhere,) * len(ends))
    done = 0
    out: list[tuple[int, int, int, bool]] = []
    for end, kind, index in pieces:
        if kind in _SAID:
            stretches: Iterable[tuple[int, bool]] = ((end, flags[index]),)
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


_SAID = frozenset({Kind.HISTORY, Kind.HISTORY_END, Kind.ASSISTANT, Kind.END})


def _pieces(
    turns: Sequence[Turn], begin: int, length: int, prompt: int, roles: Sequence[str]
) -> list[tuple[int, int, int]]:
    """(end, kind, message) of what turns and the beginning of the completion divide a text into."""
    out: list[tuple[int, int, int]] = []
    done = following = 0
    for message, start, stop, stop_end, end in (*turns, (len(roles), length, length, length, length)):
        if start > done:
            index = min(following, message, len(roles) - 1)
            if done < begin:
                before = Kind.USER if following and roles[index] == "user" else Kind.PROMPT
                out.append((min(begin, start), before, index))
                index = prompt
            if start > begin:
                out.append((start, Kind.COMPLETION, index))
            done = start
        earlier = message < prompt
        if stop > done:
            out.append((stop, Kind.HISTORY if earlier else Kind.ASSISTANT, message))
            done = stop
        if stop_end > done:
            out.append((stop_end, Kind.HISTORY_END if earlier else Kind.END, message))
            done = stop_end
        if end > done:
            out.append((end, Kind.HISTORY if earlier else Kind.ASSISTANT, message))
            done = end
        following = message + 1
    return out


def _flagged(low: int, high: int, flags: Sequence[bool], words: Sequence[Word]) -> Iterable[tuple[int, bool]]:
    """(end, flag) of stretches that fill low..high, each of the words of one message or of what lies between."""
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
            yield high, all(between)
            return
        yield min(max(begin, done), high), all(flags[max(before, 0) : owner + 1])
        yield min(end, high), flags[owner]
        done, before = max(done, end), owner
    if done < high:
        yield high, all(flags[max(before, 0) :])


def unproved_runs(begin: int, length: int, prompt: int, before: bool = True, after: bool = True) -> Runs:
    """The runs of a conversation whose turns are not known: what stands before its completion, and the rest.

    Args:
        before, after: the person's train flags of the two.
    """
    ends, kinds, indices, trains = [], [], [], []
    if begin:
        ends, kinds, indices, trains = [begin], [int(Kind.UNPROVED)], [0], [before]
    if begin < length or not begin:
        ends.append(length)
        kinds.append(int(Kind.UNPROVED_COMPLETION))
        indices.append(prompt)
        trains.append(after)
    return Runs(tuple(ends), tuple(kinds), tuple(indices), tuple(trains))


_NOT_COMPLETION = {int(Kind.COMPLETION): int(Kind.PROMPT), int(Kind.UNPROVED_COMPLETION): int(Kind.UNPROVED)}


def prompt_apart(runs: Runs, begin: int, prompt: int, words: Sequence[Word]) -> Runs:
    """The runs, with words of the prompt that a template writes behind the beginning of the completion taken out.

    Args:
        begin: where the completion begins.
        prompt: how many of the messages are the prompt.
        words: of the text, sorted.
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
    out: list[tuple[int, int, int, bool]] = []
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
