"""Locates the assistant's turns in a rendered conversation by its words, or says why they cannot be located with
certainty.

A rendering is known by its text and its `words`: which stretches came from which message. The template wrote the rest.
For each assistant message, this gives

1. its words: from the first stretch that came from it to the last, with nothing of another message between them;
2. where it begins: where generation would begin, after the generation prompt. That is found in what the template wrote
   before the words, or by rendering the messages before it with a generation prompt, provided that the text continues
   as this rendering does after the last words before the turn. What follows is generated, also an empty thought;
3. where it ends: after the first special token that the template writes after the words. All turns must end alike.

A step that fails raises `UnprovedError`; nothing is guessed. Contents are never searched: they may contain the
template's own markers.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ...schemas.errors import RowRejectedError
from .thought_style import CLOSING, OPENING, ThoughtStyle
from .tracked_str import CALL, MESSAGE, Word

ASSISTANT = "assistant"
"""The role whose messages are trained."""
_TAG = re.compile(r"<[^<>]*>")
_EMPTY = re.compile(rf"{OPENING}\s*{CLOSING}\s*$")
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
    closing: str | None = None
    """What the template writes after the words of an assistant message that ends a conversation."""
    stops: re.Pattern[str] | None = None
    """Finds special tokens."""
    generation: bool = False
    """Whether the template has `{% generation %}` blocks; if so, they decide."""
    thoughts: ThoughtStyle = field(default_factory=ThoughtStyle)
    """How the template writes thoughts."""
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
    closing = _Closing.of(chat, last[said[-1]], said[-1])
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
        stop, end = closing.find(text, index, done, high, called=code & CALL > 0)
        if low + offset < ended:
            raise UnprovedError("it begins before the previous turn ends", index)
        turns.append(Turn(index, low + offset, stop, end, end))
        ended = end
    return turns


def _last_word(chat: Chat, first: int, last: int) -> int:
    """The last word of a turn, of those from `first` to `last`, which are its message's first and last ones.

    An empty content may stand after the answers to the turn's calls, and a template may write the name of a call again
    in the answer's header. Both come after the turn.
    """
    words, call_stop = chat.words, chat.manner.call_stop
    index = words[first][2] >> MESSAGE
    while last > first and words[last][0] == words[last][1] and words[last - 1][2] >> MESSAGE != index:
        last -= 1
        while words[last][2] >> MESSAGE != index:
            last -= 1
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

    There are four cases. The text continues like that rendering to its end. Or it does so up to the turn's words, and
    the rest of the rendering belongs to the generation prompt alone (such as an empty thinking block that the template
    leaves out of earlier turns), unless the words begin with it. Or both write the same generation prompt after
    something else, such as a line end that a template leaves out at the end of a conversation. Or they differ only in
    the tags of a thought (`_tags_of_thought`).

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
    if list(said) != list(words[:place]):
        if not (place and said) or said[-1][2] != words[place - 1][2]:
            raise UnprovedError("the text before it changes when the turn is left out", index)
        begin, end, _ = said[-1]
        if head[begin:end] != text[words[place - 1][0] : low]:
            raise UnprovedError("the words before it change when the turn is left out", index)
        head = text[:low] + head[end:]
    same = common_prefix(head, text)
    if same == len(head) and low <= same <= anchor:
        return same
    opened = bool(opening) and head.endswith(opening)
    if opened and same >= anchor > len(head) - len(opening) >= low:
        return same if same == len(head) and same <= done else anchor
    before = text[low:anchor]
    if opened and complete and before.count(opening) == 1:
        return low + before.index(opening) + len(opening)
    if opened and complete and low <= same < anchor and (tags := _tags_of_thought(chat, head, same, anchor)):
        return same + tags
    raise UnprovedError("the text before its words is not the generation prompt", index)


def _tags_of_thought(chat: Chat, head: str, same: int, anchor: int) -> int:
    """How many characters after the first `same` are the tags of a thought that a turn lacks; 0 if that is not where it
    departs from its generation prompt. Negative if the prompt's tags begin like the turn.

    The tags are the template's, and the turn begins after them: what a model would generate there is not in the data.
    The role's token, with which the generation prompt begins, must be shared.

    Args:
        head: the text with the generation prompt, of which `same` characters are shared.
        anchor: where the turn's words begin.
    """
    stops, opening = chat.manner.stops, chat.manner.opening
    role = stops.search(opening) if stops is not None else None
    if stops is None or role is None:
        return 0
    shared = len(head) - len(opening) + role.end()
    empty = _EMPTY.search(head)  # a thought that only the prompt has, before a tool call
    if empty is not None and shared <= empty.start() < same:
        return empty.start() - same
    rest = chat.text[same:anchor]
    size = rest.rfind(CLOSING) + len(CLOSING) if CLOSING in rest else 0
    if same < shared or stops.search(rest[:size]):
        return 0
    return size if not _TAG.sub("", rest[:size]).strip() else 0


class _Closing(NamedTuple):
    """What ends a turn, by the last turn of the conversation and by the profile."""

    before: str
    """What stands between the words of an answer and `token`."""
    token: str
    call_token: str
    headers: re.Pattern[str] | None
    final: int
    """The last message, if it is a turn; else -1."""

    @classmethod
    def of(cls, chat: Chat, place: int, final: int) -> "_Closing":
        """Learn it from the last turn.

        Args:
            place: its last word.
            final: its message.
        """
        words, manner = chat.words, chat.manner
        tail, called, headers = manner.closing, False, header_pattern(manner.header_stops)
        if final == len(chat.roles) - 1:
            called = bool(words[place][2] & CALL)
            tail = chat.text[words[place][1] :] if place == len(words) - 1 else None
        else:
            final = -1
        if tail is None:
            raise UnprovedError("nothing shows how the template ends a turn", max(final, words[place][2] >> MESSAGE))
        before, token = _ending(tail, manner)
        call_token = manner.call_stop or token
        if called:
            call_token = manner.call_stop if manner.call_stop in tail else token
            if manner.closing is not None:
                before, token = _ending(manner.closing, manner)
        return cls(before, token, call_token, headers, final)

    def find(self, text: str, index: int, done: int, high: int, *, called: bool) -> tuple[int, int]:
        """Return where the end-of-turn token begins and ends, for a turn whose words end at `done`.

        Args:
            high: where the next message's words begin.
            called: whether the turn ends with a tool call.
        """
        token, before = self.token, self.before
        if called:  # text that closes the call lies between the words and the token
            if self.call_token:
                stop = text.find(self.call_token, done, high)
                if stop >= 0:
                    return stop, stop + len(self.call_token)
            elif self.headers is not None and (found := self.headers.search(text, done, high)) is not None:
                return found.start(), found.start()
            elif index == self.final:
                return len(text), len(text)
        elif text.startswith(before + token, done) and done + len(before) + len(token) <= high:
            stop = done + len(before)
            return stop, stop + len(token)
        elif token and not before:
            return done, done  # the template writes no such token after the words here
        raise UnprovedError("it does not end as the last turn does", index)


def _ending(tail: str, manner: TemplateProfile) -> tuple[str, str]:
    """Return what stands before the end-of-turn token in a text after a turn, and that token, or ""."""
    found = manner.stops.search(tail) if manner.stops is not None else None
    if found is None:
        return tail, ""
    ending = manner.ending if tail.startswith(manner.ending, found.start()) else ""
    return tail[: found.start()], ending or found.group()
