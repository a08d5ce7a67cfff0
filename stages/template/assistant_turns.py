"""Locates the assistant's turns in a rendered conversation by its words, or says why they cannot be located with
certainty.

A rendering is known by its text and its `words`: which stretches came from which message. The template wrote the rest.
For each assistant message, this gives

1. its words: from the first stretch that came from it to the last, with nothing of another message between them;
2. where it begins: where generation would begin, after the generation prompt. That is found in what the template wrote
   before the words, or by rendering the messages before it with a generation prompt, provided that the text continues
   as this rendering does after the last words before the turn. What follows is generated, also an empty thought;
3. where it ends: after the special token with which the template ends an answer.

A step that fails raises `UnprovedError`; nothing is guessed. Contents are never searched: they may contain the
template's own markers.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ...schemas.errors import RowRejectedError
from .thoughts import CLOSING, bare
from .tracked_str import CALL, MESSAGE, Word

ASSISTANT = "assistant"
"""The role whose messages are trained."""
Head: TypeAlias = Callable[[int], tuple[str, Sequence[Word]]]
"""Renders the messages before an index with a generation prompt; returns the text and its words. Raises
RowRejectedError if the template refuses them."""


class UnprovedError(Exception):
    """The assistant's turns cannot be located with certainty. The renderer catches it.

    Attributes:
        reason: a stable sentence for messages.
        message: index of the message at fault, or -1.
    """

    def __init__(self, reason: str, message: int = -1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.message = message


class Turn(NamedTuple):
    """One turn of the assistant, in characters of the text."""

    message: int
    """Index of its message."""
    begin: int
    stop: int
    """Where its end-of-turn token begins; equal to `stop_end` if it has none."""
    stop_end: int
    end: int
    """One past its last character. Only a generation block has characters after the end-of-turn token."""
    next_stop: int = 0
    """One past the token of the next message's header that ends it; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class TemplateProfile:
    """Facts about a template, learned from fixed sample conversations before any row is rendered."""

    opening: str = ""
    """The generation prompt; "" if the template writes none."""
    before: str | None = None
    """What the template writes between the words of an answer that ends a conversation and `ending`; None if that is
    not known."""
    stops: re.Pattern[str] | None = None
    """Finds special tokens."""
    generation: bool = False
    """Whether the template has `{% generation %}` blocks; if so, they decide."""
    thought_end: str = ""
    """The first tag that the template writes after the thought of a field; "" if there is none."""
    call_stop: str = ""
    """The special token after a tool call that ends a conversation; "" if there is none."""
    header_stops: tuple[str, ...] = ()
    """If the template writes no token at the end of a turn: the special tokens with which what follows a turn may
    begin, such as `<|user|>`. A model that generates one of them has ended its turn."""
    ending: str = ""
    """The special token that ends an answer, with those right after it that the template writes after every answer; ""
    if there is none."""


class Chat(NamedTuple):
    """A rendered conversation."""

    text: str
    words: Sequence[Word]
    """Sorted stretches that do not overlap, but for those of GENERATION; one may be empty."""
    roles: Sequence[str]
    """One per message."""
    cut: int
    """Number of messages in the prompt."""
    manner: TemplateProfile
    head: Head
    blocks: int = 0
    """How many generation blocks ran."""
    calls: Collection[int] = ()
    """Messages with tool calls. A turn whose calls the template leaves out is refused."""


def stop_pattern(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern that finds the first of some tokens; of two at the same place it takes the longer."""
    found = sorted({token for token in tokens if token.strip()}, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, found))) if found else None


header_pattern = lru_cache(maxsize=16)(stop_pattern)


def common_prefix(head: str, text: str) -> int:
    """How many first characters two texts share."""
    if text.startswith(head):
        return len(head)
    low, high = 0, min(len(head), len(text))  # the first `low` are equal, the first `high + 1` are not
    while low < high:
        middle = (low + high + 1) // 2
        if head[low:middle] == text[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def past_space(text: str, low: int, high: int) -> int:
    """The first place from `low` on that is not white space, at most `high`."""
    while low < high and text[low].isspace():
        low += 1
    return low


def turns_by_words(chat: Chat) -> list[Turn]:
    """The turns of a conversation whose template has no generation blocks.

    Raises:
        UnprovedError: a turn cannot be located with certainty.
    """
    text, words, roles, _, manner, *_ = chat
    said = [index for index, role in enumerate(roles) if role == ASSISTANT]
    if not said:
        return []
    owners = [code >> MESSAGE for _, _, code in words]
    last = {owner: place for place, owner in enumerate(owners)}
    first = {owner: place for place, owner in reversed([*enumerate(owners)])}
    # If words of every message were found, the template wrote the text between words. Else that text may contain words
    # that were not followed, and must not be searched.
    complete = len(first) == len(roles)
    for index in said:
        if index not in first:
            raise UnprovedError("the template drops its text, or rewrites all of it", index)
    if manner.before is None:
        raise UnprovedError("nothing shows how the template ends a turn", said[-1])
    known: dict[str, int] = {}
    turns: list[Turn] = []
    ended = 0
    for index in said:
        low_word, high_word = first[index], last[index]
        if index in chat.calls and not any(word[2] & CALL for word in words[low_word : high_word + 1]):
            raise UnprovedError("the template leaves its tool calls out of the text", index)
        if low_word < high_word:
            high_word = _last_word(chat, low_word, high_word)
            if owners[low_word : high_word + 1].count(index) <= high_word - low_word:
                raise UnprovedError("it contains words of other messages", index)
        low = words[low_word - 1][1] if low_word else 0
        anchor, (_, done, code) = words[low_word][0], words[high_word]
        before = text[low:anchor]
        offset = known.get(before)
        if offset is None and complete and manner.opening and before.count(manner.opening) == 1:
            offset = before.index(manner.opening) + len(manner.opening)
        if offset is None:
            offset = _begin_by_head(chat, low, low_word, done, complete=complete) - low
        if offset <= len(before):
            known[before] = offset
        high = words[high_word + 1][0] if high_word + 1 < len(words) else len(text)
        stop, end = _end(chat, index, done, high, called=code & CALL > 0)
        if low + offset < ended:
            raise UnprovedError("it begins before the previous turn ends", index)
        turns.append(Turn(index, low + offset, stop, end, end))
        ended = end
    return turns


def _last_word(chat: Chat, first: int, last: int) -> int:
    """The last word of a turn, of those from `first` to `last`, which are its message's first and last ones. A template
    may write the name of a call again in the answer's header, which comes after the turn.
    """
    words, call_stop = chat.words, chat.manner.call_stop
    index = words[first][2] >> MESSAGE
    seen: set[int] = set()
    for place in range(first, last if call_stop else first):
        _, end, code = words[place]
        seen.add(code)
        later = {word[2] for word in words[place + 1 : last + 1] if word[2] >> MESSAGE == index}
        if code & CALL and later <= seen and chat.text.find(call_stop, end, words[place + 1][0]) >= 0:
            return place
    return last


def _begin_by_head(chat: Chat, low: int, place: int, done: int, *, complete: bool) -> int:
    """Find where a turn begins, by rendering what comes before it with a generation prompt.

    Only the text after the last words before the turn is compared, because the generation prompt is there. Earlier
    messages may be rendered differently without the turn, such as tools in the last question.

    There are three cases. The text continues like that rendering to its end. Or it does so up to the turn's words, and
    the rest of the rendering belongs to the generation prompt alone (such as an empty thinking block that the template
    leaves out of earlier turns), unless the words begin with it. Or the text closes a thought that the generation
    prompt opens, with nothing in it: the turn begins after these tags, because what a model would generate there is not
    in the data. The role's token, with which the generation prompt begins, must be shared.

    Args:
        low, place, done: where the words before it end, the index of its first word, and where its last word ends.
        complete: whether all text between words is the template's.
    """
    text, words, opening = chat.text, chat.words, chat.manner.opening
    anchor, _, code = words[place]
    index = code >> MESSAGE
    if not index:
        raise UnprovedError("no text before it marks where it begins", index)
    try:
        head, said = chat.head(index)
    except RowRejectedError as error:
        raise UnprovedError("the template refuses the messages before it", index) from error
    if low <= len(head) <= anchor and text.startswith(head):
        return len(head)  # the text is the same, so it does not matter which message each word came from
    if place:
        begin, end, owner = said[-1] if said else (0, 0, -1)
        if owner != words[place - 1][2] or head[begin:end] != text[words[place - 1][0] : low]:
            raise UnprovedError("the text before it changes when the turn is left out", index)
        head = text[:low] + head[end:]
    same = common_prefix(head, text)
    if same == len(head) and low <= same <= anchor:
        return same
    opened = bool(opening) and head.endswith(opening)
    if opened and same >= anchor > len(head) - len(opening) >= low:
        return same if same == len(head) and same <= done else anchor
    stops = chat.manner.stops
    role = stops.search(opening) if stops is not None else None
    if opened and complete and stops and role and same >= max(low, len(head) - len(opening) + role.end()):
        closing = text.rfind(CLOSING, same, anchor)
        tags = closing + len(CLOSING)
        if closing >= 0 and not bare(text[same:closing]) and not stops.search(text, same, tags):
            return tags
    raise UnprovedError("the text before its words is not the generation prompt", index)


def _end(chat: Chat, index: int, done: int, high: int, *, called: bool) -> tuple[int, int]:
    """Return where the end-of-turn token begins and ends, for a turn whose words end at `done`.

    Args:
        high: where the next message's words begin.
        called: whether the turn ends with a tool call.
    """
    text, manner = chat.text, chat.manner
    before, token, headers = manner.before or "", manner.ending, header_pattern(manner.header_stops)
    if called:  # text that closes the call lies between the words and the token
        if token := manner.call_stop or token:
            stop = text.find(token, done, high)
            if stop >= 0:
                return stop, stop + len(token)
        elif headers is not None and (found := headers.search(text, done, high)) is not None:
            return found.start(), found.start()
        elif index == len(chat.roles) - 1:
            return len(text), len(text)
    elif text.startswith(before + token, done) and done + len(before) + len(token) <= high:
        stop = done + len(before)
        return stop, stop + len(token)
    elif token and not before:
        return done, done  # the template writes no such token after the words here
    raise UnprovedError("it does not end as the template ends a turn", index)
