"""Divides located turns of the assistant into thoughts, tool calls and answers.

Which part a piece of a turn is, follows from its words:

- *Thought*: words of the message's own field (`reasoning_content`, `thinking`, `reasoning`, parts of such a type), with
  what the template writes before them in the turn, and with white space after them. If the turn has no such words:
  what lies between tags such as `<think>` and `</think>`, wherever they come from, with the opening tag. Everything
  before a closing tag that comes first is one, too: templates and servers read it so. An opening tag that nothing
  closes counts only at the beginning of a turn.
- *Tool call*: words of calls, with what the template writes around them, except the end of a thought before them.
- *Answer*: all else. So the tag that closes a thought is the answer's: a model that has to answer after a thought must
  generate it, as it must generate the token that ends a turn. A thought without a character other than white space is
  no thought: the empty block is what a model generates instead of one.

Words show where the data lies, so tags in a followed field or in arguments are never searched. If a message has a
thought or calls of which the turn shows no words, although they may be in it, the turn is *mixed*: nothing is guessed,
and masks that treat its parts differently refuse it.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any

from ...schemas.rows import NEXT_STOP_KINDS, PART_KINDS, Message, RunKind
from .assistant_turns import CALL, MESSAGE, REASONING, Word
from .chat_template import REASONING_KEYS
from .losses import Gaps, call_texts
from .rendered import Runs
from .thought_style import ThoughtStyle, is_blank

_ENDS = (int(RunKind.END), int(RunKind.HISTORY_END))
_REASONING = frozenset(REASONING_KEYS)


class Part(IntEnum):
    """What a stretch of a turn is; an index of `_KINDS`."""

    ANSWER = 0
    THOUGHT = 1
    CALL = 2
    MIXED = 3


_ANSWER, _THOUGHT, _CALL = Part.ANSWER, Part.THOUGHT, Part.CALL  # Python finds members of an enum slowly

_KINDS = {
    int(RunKind.ASSISTANT): (RunKind.ASSISTANT, RunKind.THOUGHT, RunKind.TOOL_CALL, RunKind.MIXED),
    int(RunKind.HISTORY): (RunKind.HISTORY, RunKind.HISTORY_THOUGHT, RunKind.HISTORY_CALL, RunKind.HISTORY_MIXED),
}
_IS_TURN = [kind in _KINDS for kind in range(len(RunKind))]
"""By kind. Python hashes members of an enum slowly."""
_WHOLE = {int(kind): kinds[Part.ANSWER] for kinds in _KINDS.values() for kind in kinds}
Stretch = tuple[int, int, Part]
"""(begin, end, part) in characters."""


def own_thoughts(message: Message) -> list[str]:
    """Texts of a message's fields and parts for thoughts that are more than white space."""
    content = message.get("content")
    if type(content) is not list and _REASONING.isdisjoint(message):
        return []
    parts = [message.get(key) for key in REASONING_KEYS]
    if type(content) is list:
        parts += [one for one in content if type(one) is dict and one.get("type") in ("thinking", "reasoning")]
    return [text for text in _texts(parts) if not is_blank(text)]


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value, but not names of types."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key != "type":
                yield from _texts(item)


def has_parts(messages: Iterable[Message], style: ThoughtStyle) -> bool:
    """Whether an assistant's message may have a thought or a call."""
    for message in messages:
        if message.get("role") != "assistant":
            continue
        content = message.get("content")
        if message.get("tool_calls") or message.get("function_call") or own_thoughts(message):
            return True
        if style.in_any([content] if isinstance(content, str) else _texts(content)):
            return True
    return False


def divided(
    text: str,
    runs: Runs,
    words: Sequence[Word],
    messages: Sequence[Message],
    style: ThoughtStyle,
) -> tuple[Runs, str]:
    """Divide the runs of turns into their parts.

    Args:
        text: a rendered conversation whose turns were located.
        words: of the text, sorted.

    Returns:
        The runs, and why the first mixed turn is mixed, or "".
    """
    split: list[tuple[int, list[tuple[int, Part]]]] = []
    ends, kinds, turns, _ = runs
    places = [place for place, kind in enumerate(kinds) if _IS_TURN[kind]]
    mixed, tag = "", style.first_tag(text, ends[places[0] - 1] if places and places[0] else 0)
    for place in places:
        begin, end, turn = ends[place - 1] if place else 0, ends[place], turns[place]
        # What follows an end-of-turn token in a generation block has no parts.
        if end <= begin or (place and turns[place - 1] == turn and kinds[place - 1] in _ENDS):
            continue
        message = messages[turn]
        bare = (end <= tag or not style.within(text, begin, end)) and _has_plain_content(message, style)
        if bare and len(message) == 2:
            continue
        found, why = _stretches(text, begin, end, words, message, turn, style, bare=bare)
        mixed = mixed or (f"message {turn + 1}: {why}" if why else "")
        if why or len(found) > 1 or found[0][1] is not _ANSWER:
            split.append((place, found))
    if not split:
        return runs, mixed
    out = list(zip(*runs, strict=True))
    for place, found in reversed(split):
        _, kind, turn, train = out[place]
        kinds_of = _KINDS[kind]
        out[place : place + 1] = [(end, kinds_of[part], turn, train) for end, part in found]
    return Runs(*zip(*out, strict=True)), mixed


def whole(runs: Runs) -> Runs:
    """The inverse of `divided`: the runs of whole turns, and of whole headers after them. Digests are made of these, so
    that they stay what they were.
    """
    if not PART_KINDS.union(NEXT_STOP_KINDS).intersection(runs.kinds):
        return runs
    out: list[tuple[int, int, int, float]] = []
    before = -1
    for end, kind, turn, train in zip(*runs, strict=True):
        if kind in NEXT_STOP_KINDS:
            continue  # its characters belong to the run after it
        turn_kind = _WHOLE.get(kind, kind)
        if kind != before and turn_kind in _KINDS and out and out[-1][1:] == (turn_kind, turn, train):
            out.pop()
        out.append((end, turn_kind, turn, train))
        before = kind
    return Runs(*zip(*out, strict=True))


def _has_plain_content(message: Message, style: ThoughtStyle) -> bool:
    """Whether a message's content is a text without tags."""
    content = message.get("content")
    return type(content) is str and not style.in_any((content,))


def _within(words: Sequence[Word], begin: int, end: int, turn: int) -> list[Word]:
    """The words of a message in begin..end, without empty ones."""
    first = bisect_left(words, (begin,))
    while first and words[first - 1][1] > begin:  # a turn may begin within a word
        first -= 1
    out = []
    for low, high, code in words[first:]:
        if low >= end:
            break
        low, high = max(low, begin), min(high, end)
        if low < high and code >= 0 and code >> MESSAGE == turn:
            out.append((low, high, code))
    return out


def _stretches(
    text: str,
    begin: int,
    end: int,
    words: Sequence[Word],
    message: Message,
    turn: int,
    style: ThoughtStyle,
    *,
    bare: bool,
) -> tuple[list[tuple[int, Part]], str]:
    """Return (end, part) of the stretches that fill begin..end; if that is one mixed stretch, also why.

    Args:
        bare: whether neither that text nor the message has tags of thoughts.
    """
    mixed = [(end, Part.MIXED)]
    mine = _within(words, begin, end, turn)
    found = _by_words(text, begin, end, mine, style)
    if found is None:
        return mixed, "nothing shows where a thought after a tool call begins"
    parts = [part for *_, part in found]
    if _CALL not in parts and (calls := call_texts(message)):
        gaps = Gaps(text[low:high] for low, high in _gaps(begin, end, mine))
        if any(gaps.hold(said) for said in calls):
            return mixed, "its tool calls could not be followed into the text"
    if _THOUGHT not in parts and not (bare and _REASONING.isdisjoint(message)):
        if own := own_thoughts(message):
            gaps = Gaps(text[low:high] for low, high in _gaps(begin, end, mine))
            if any(gaps.hold([thought]) for thought in own):
                return mixed, "its thought could not be followed into the text"
        tagged: list[Stretch] = []
        if style.within(text, begin, end):
            hidden = [(low, high) for low, high, _ in found]
            tagged = [(low, high, _THOUGHT) for low, high in style.thoughts(text, begin, end, hidden)]
        if not tagged and not _left_out(text, begin, end, mine, message, style):
            return mixed, "the template writes its thought without tags"
        if tagged:
            found = sorted([*found, *tagged])
    out: list[tuple[int, Part]] = []
    done = begin
    for low, high, part in found:
        if low > done:
            out.append((low, _ANSWER))
        out.append((high, part))
        done = high
    if done < end or not out:
        out.append((end, _ANSWER))
    return out, ""


def _by_words(text: str, begin: int, end: int, words: Sequence[Word], style: ThoughtStyle) -> list[Stretch] | None:
    """Return thoughts and calls that are known by their words; None if one cannot be told from the other."""
    groups: list[Stretch] = []
    before = -1
    for low, high, code in words:
        if (kind := code & (CALL | REASONING)) == before:
            groups[-1] = (groups[-1][0], high, groups[-1][2])
        else:
            groups.append((low, high, _CALL if kind & CALL else _THOUGHT if kind else _ANSWER))
        before = kind
    if any(part is _THOUGHT and is_blank(text[low:high]) for low, high, part in groups):
        groups = [
            (low, high, _ANSWER if part is _THOUGHT and is_blank(text[low:high]) else part)
            for low, high, part in groups
        ]
    out: list[Stretch] = []
    last, done = None, begin
    for low, high, part in groups:
        if last is _THOUGHT:
            out[-1] = (out[-1][0], (done := _past_space(text, done, low)), _THOUGHT)
        gap = text[done:low]
        if part is _THOUGHT:
            start = done
            if last is not None:
                at = gap.rfind(style.opening) if style.opening else -1
                if at < 0 and last is _CALL:
                    return None
                start = done + at if at >= 0 else _past_space(text, done, low)
            if last is _CALL:
                out[-1] = (out[-1][0], start, _CALL)
            out.append((start, high, part))
        elif part is _CALL:
            after = max([at + len(tag) for tag in _closings(style) if (at := gap.rfind(tag)) >= 0], default=0)
            out.append((_past_space(text, done + after, low) if after else done, high, part))
        elif last is _CALL:
            out[-1] = (out[-1][0], low, _CALL)
        last, done = part, high
    if last is _THOUGHT:
        out[-1] = (out[-1][0], _past_space(text, done, end), _THOUGHT)
    elif last is _CALL:
        out[-1] = (out[-1][0], end, _CALL)
    return out


@lru_cache(maxsize=16)
def _closings(style: ThoughtStyle) -> frozenset[str]:
    """The tags that end a thought."""
    return frozenset({closing for _, closing in style.tags} | {style.closing} - {""})


def _past_space(text: str, low: int, high: int) -> int:
    """The first place from `low` on that is not white space, at most `high`."""
    while low < high and text[low].isspace():
        low += 1
    return low


def _gaps(begin: int, end: int, words: Sequence[Word]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of begin..end between words."""
    for low, high, _ in words:
        if low > begin:
            yield begin, low
        begin = max(begin, high)
    if begin < end:
        yield begin, end


_OPENING = re.compile(r"^\s*(<[^<>]*>|\[[^\[\]]*\])")


def _left_out(text: str, begin: int, end: int, words: Sequence[Word], message: Message, style: ThoughtStyle) -> bool:
    """Whether a content has no thought between tags, or all of its words in begin..end are from outside of them."""
    content = message.get("content")
    if not isinstance(content, str) or not style.in_any([content]):
        return True
    rest, thoughts, done = [], [], 0
    for low, high in style.thoughts(content, 0, len(content)):
        rest.append(content[done:low])
        thoughts.append(_OPENING.sub("", content[low:high]).strip())
        done = high
    rest.append(content[done:])
    said = [text[low:high].strip() for low, high, code in words if not code & CALL]
    if thoughts and any(not any(word in one for one in rest) for word in said):
        return False
    return not any(thought in text[low:high] for thought in thoughts for low, high in _gaps(begin, end, words))
