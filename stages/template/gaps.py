"""What a template writes around messages, learnt from small conversations, each rendered once and only if it is needed.

After the words of a message the template writes a *gap*, up to the next message's words or the end of the text: the end
of the one message and the header of the next. Headers are learnt where they follow something whose end is known: the
beginning of the text, or a user's or a system message, which a rendering of its own ends.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

from ...schemas.errors import PacktrainError, StoppedTemplateError
from ...schemas.rows import Message, Messages
from .marked import ASSISTANT, Marker, is_blank, own
from .tracked_str import MESSAGE

CALL_ID = "abcdefghi"
"""Some templates ask for ids of nine letters."""
USER: Message = {"role": "user", "content": "a"}
ANSWER: Message = {"role": ASSISTANT, "content": "b"}
RESULT: Message = {"role": "tool", "content": "c", "tool_call_id": CALL_ID, "name": "f"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "g",
            "parameters": {"type": "object", "properties": {"h": {"type": "string", "description": "i"}}},
        },
    }
]
_SYSTEM: Message = {"role": "system", "content": "d"}
_NEVER = "(?!)"
"""A pattern that finds nothing."""
_HEADER_WORDS = 2
"""The beginning of a text with more words than these holds some of the template's own, such as a default system
message, and is not only a header."""


def stop_pattern(tokens: Collection[str]) -> re.Pattern[str]:
    """Return a pattern that finds the first of some tokens; of two at the same place it takes the longer."""
    ordered = sorted({token for token in tokens if token.strip()}, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, ordered)) if ordered else _NEVER)


def calls() -> Iterator[Message]:
    """An assistant's message with a call, in the forms that templates ask for."""
    for arguments in ({"h": "b"}, '{"h": "b"}'):
        call = {"id": CALL_ID, "type": "function", "function": {"name": "f", "arguments": arguments}}
        yield {"role": ASSISTANT, "content": "", "tool_calls": [call]}
        yield {"role": ASSISTANT, "tool_calls": [call]}


class TemplateGaps:
    """The gaps of a template.

    Args:
        marker: renders the template.
        stops: finds special tokens.
        generation_stops: the tokens at which a generation with this model stops, as far as that is known.
    """

    def __init__(self, marker: Marker, stops: re.Pattern[str], generation_stops: Collection[str] = ()) -> None:
        self.stops = stops
        self._marker = marker
        self._generation_stops = frozenset(generation_stops)
        self._bos = str(marker.template.variables.get("bos_token") or "")
        self._headers: dict[str, tuple[str, ...]] = {}
        self._gaps: dict[tuple[str, str], tuple[str, str] | None] = {}

    def between(self, messages: Messages, before: int, after: int | None, *, tools: bool = False) -> str | None:
        """What stands between the words of two messages; None if the template refuses them, or drops their words.

        Args:
            before, after: indices; -1 is the text's beginning, None its end.
        """
        try:
            text, words = self._marker.render(own(messages).chat, TOOLS if tools else None)
        except StoppedTemplateError:
            raise
        except PacktrainError:
            return None
        low = 0 if before == -1 else max((end for _, end, code in words if code >> MESSAGE == before), default=None)
        begins = (begin for begin, _, code in words if code >> MESSAGE == after)
        high = len(text) if after is None else min(begins, default=None)
        return None if low is None or high is None or low > high else text[low:high]

    def closing_span(self, end: str) -> tuple[int, int]:
        """Where the closing tokens within the end of a turn begin and end; twice where its text ends, if it has none.

        A turn closes at the first token at which a generation would stop, else at its last special token. Tokens right
        before that one close it with it.
        """
        tokens = list(self.stops.finditer(end))
        if not tokens:
            length = len(end.rstrip())
            return length, length
        ending = (number for number, token in enumerate(tokens) if token.group() in self._generation_stops)
        last = next(ending, len(tokens) - 1)
        first = last
        while first and tokens[first - 1].end() == tokens[first].start():
            first -= 1
        return tokens[first].start(), tokens[last].end()

    def ends_generation(self, closing: str) -> bool:
        """Whether a generation would stop at one of the tokens in a text."""
        return not self._generation_stops.isdisjoint(self.stops.findall(closing))

    def is_plain(self, end: str, last_ends: Collection[str]) -> bool:
        """Whether nothing but the end of a turn can be in a text that is taken for it: a generation would stop there,
        all special tokens stand side by side, or the last of them, and no other, closes a turn at a text's end, too.
        """
        tokens = list(self.stops.finditer(end))
        texts = [token.group() for token in tokens]
        if self.ends_generation(end) or all(left.end() == right.start() for left, right in pairwise(tokens)):
            return True
        closing = {token for last_end in last_ends for token in self.stops.findall(last_end)[-1:]}
        return texts[-1] in closing and texts.count(texts[-1]) == 1

    @cached_property
    def answer_closings(self) -> tuple[str, ...]:
        """What follows the words of an answer that ends a conversation, with and without tools."""
        return self._closings([ANSWER])

    @cached_property
    def call_closings(self) -> tuple[str, ...]:
        """What follows the words of a call that ends a conversation."""
        return self._closings(calls())

    def _closings(self, messages: Iterable[Message]) -> tuple[str, ...]:
        closings = [
            self.between([USER, message], 1, None, tools=tools) for message in messages for tools in (False, True)
        ]
        return tuple(dict.fromkeys(closing for closing in closings if closing is not None))

    @cached_property
    def answer_ends(self) -> tuple[str, ...]:
        """The ends of answers that end a conversation."""
        return self._ends(self.answer_closings)

    @cached_property
    def call_ends(self) -> tuple[str, ...]:
        """The ends of calls that end a conversation."""
        return self._ends(self.call_closings)

    def _ends(self, closings: tuple[str, ...]) -> tuple[str, ...]:
        ends = [(self.end_of_text(closing) or "").rstrip() for closing in closings]
        return tuple(dict.fromkeys(end for end in ends if end))

    def headers(self, role: str) -> tuple[str, ...]:
        """What the template writes before a message of a role, without the end of what was before it."""
        if role not in self._headers:
            self._headers[role] = tuple(dict.fromkeys(self._found_headers(role)))
        return self._headers[role]

    def _found_headers(self, role: str) -> Iterator[str]:
        if role == ASSISTANT and self.opened_always:
            return
        yield from self._openings(role)
        for first in ("user", "system"):
            pair = self._followed(first, role)
            if pair is not None and (header := self.header_after(*pair, role)):
                yield header

    def header_after(self, end: str, gap: str, role: str) -> str:
        """The header in a gap whose beginning is known; "" if that is not sure.

        Args:
            end: what follows the message before it where that ends the text.
            gap: what stands between it and the next message's words.
            role: of the next message.
        """
        end = end.rstrip()
        if not gap.startswith(end):
            return ""
        header = gap.removeprefix(end).lstrip()
        if end:
            return header
        # Nothing ends a last message. Earlier ones may be closed all the same, unless this begins a text, too: behind
        # nothing but what every text begins with.
        opening = self.between([_sample(role)], -1, 0) or ""
        other = self.between([USER if role == "system" else _SYSTEM], -1, 0) or ""
        return header if opening.endswith(header) and other.startswith(opening.removesuffix(header)) else ""

    def _openings(self, role: str) -> Iterator[str]:
        """What the template writes before a first message's words, if that is only a header; also without tokens with
        which every text begins."""
        for tools in (False, True):
            opening = self._opening(_sample(role), tools=tools)
            if len(self.stops.sub("", opening).split()) > _HEADER_WORDS:
                continue
            while opening:
                yield opening
                first = self.stops.match(opening)
                if first is None or not self.stops.match(opening, first.end()):
                    break
                opening = opening[first.end() :]

    def _opening(self, message: Message, *, tools: bool) -> str:
        """What the template writes before a first message's words, without the text's own first token."""
        text = self.between([message], -1, 0, tools=tools) or ""
        if self._bos:
            text = text.removeprefix(self._bos).lstrip()
        first = self.stops.match(text)
        if first is not None and first.group() in self._closing_tokens:
            text = text[first.end() :].lstrip()
        return text

    def _followed(self, first: str, then: str) -> tuple[str, str] | None:
        """What follows a message of a role at the text's end, and before a message of another; None if refused."""
        if (first, then) not in self._gaps:
            end = self.between([_sample(first)], 0, None)
            gap = self.between([_sample(first), _sample(then)], 0, 1)
            self._gaps[first, then] = None if end is None or gap is None else (end.rstrip(), gap)
        return self._gaps[first, then]

    @cached_property
    def _closing_tokens(self) -> frozenset[str]:
        """The special tokens that follow an answer that ends a conversation."""
        ends = [self.without_opening(closing) for closing in self.answer_closings]
        return self._generation_stops.union(*(self.stops.findall(end) for end in ends))

    @cached_property
    def double_faced(self) -> re.Pattern[str]:
        """Finds special tokens that stand at the beginning of headers, and also at the text's end after an answer,
        unless a generation is known to stop there. In `<|x|>user: a<|x|>assistant: b<|x|>`, nothing shows whether the
        token closes turns or opens headers.
        """
        closings = [closing.removesuffix(self.opening) for closing in self.answer_closings]
        after_answers = {segment for closing in closings for segment in self._segments(closing)}
        tokens = {token for message in (USER, _SYSTEM) for token in self._leading_tokens(message, tools=False)}
        return stop_pattern((tokens & after_answers) - self._generation_stops)

    def _leading_tokens(self, message: Message, *, tools: bool) -> list[str]:
        """The special tokens with which a text begins, side by side, and which go on in the same way before later
        messages: those with which headers begin, unless they end the message before."""
        chats = (([USER, ANSWER], 0), ([USER, ANSWER, USER], 1), ([USER, USER], 0))
        gaps = [self.between(chat, low, low + 1, tools=tools) or "" for chat, low in chats]
        opening = self.between([message], -1, 0, tools=tools) or ""
        opening = opening.removeprefix(self._bos).lstrip() if self._bos else opening
        tokens: list[str] = []
        done = 0
        while (token := self.stops.match(opening, done)) is not None:
            done = token.end()
            places = (place for gap in gaps for place in self.stops.finditer(gap) if place.group() == token.group())
            if any(self._goes_on(place.string, place.end()) == self._goes_on(opening, done) for place in places):
                tokens.append(token.group())
        return tokens

    def _goes_on(self, text: str, place: int) -> tuple[str, bool]:
        """How a text goes on: the white space, and whether a special token is behind it."""
        rest = text[place:]
        space = rest[: len(rest) - len(rest.lstrip())]
        return space, self.stops.match(rest, len(space)) is not None

    @cached_property
    def openers(self) -> re.Pattern[str]:
        """Finds the special tokens with which headers begin: a text begins with one, and it comes again between
        messages. What an answer closes with is none of them.
        """
        tokens: set[str] = set()
        for tools in (False, True):
            for message in (USER, _SYSTEM):
                tokens.update(self._leading_tokens(message, tools=tools)[:1])
        for role in ("system", "user", "tool"):
            headers = self.headers(role)
            matches = [match for match in map(self.stops.match, headers) if match]
            # One with which only a text begins is in a header of `_openings`, which has it without that token, too.
            tokens.update(match.group() for match in matches if match.string[match.end() :] not in headers)
        if self.opened_always:
            tokens.update(self.stops.findall(self.tail)[:1])
        return stop_pattern(tokens - self._closing_tokens)

    @cached_property
    def opened_always(self) -> str:
        """What the template writes after a question that ends a text, if that opens an answer unasked; else "". It does
        if an answer continues that text, another question never does, and it also follows a last answer.
        """
        end, gap = self._followed("user", ASSISTANT) or ("", "")
        if not end or not gap.startswith(end):
            return ""
        asked = [pair for pair in (self._followed(first, "user") for first in ("user", "system")) if pair and all(pair)]
        after_all = all(closing.rstrip()[-1:] == end[-1] for closing in self.answer_closings)
        return end if asked and after_all and not any(gap.startswith(end) for end, gap in asked) else ""

    def without_opening(self, closing: str) -> str:
        """The end of an answer without what a template that always opens a turn writes after every last message."""
        segments = self._segments(closing.rstrip())
        for segment in reversed(self._segments(self.opened_always)):
            if not segments or segments[-1] != segment:
                break
            segments.pop()
        return "".join(segments)

    def _segments(self, text: str) -> list[str]:
        """The special tokens of a text, and what stands between them."""
        segments, done = [], 0
        for token in self.stops.finditer(text):
            segments += [text[done : token.start()], token.group()]
            done = token.end()
        return [segment for segment in (*segments, text[done:]) if segment]

    def end_of_text(self, gap: str) -> str | None:
        """The end of a turn with which the text ends: a header that the template opens there unasked, and what it
        writes there after every message, are no part of the turn. None if nothing shows which is which.

        Args:
            gap: what follows the turn's words.
        """
        opened = self.openers.search(gap)
        end = gap[: opened.start()] if opened else gap
        if self.tail and end.rstrip().endswith(self.tail):
            rest = end.rstrip().removesuffix(self.tail)
            end = rest if self.stops.search(rest) else end
        if self.stops.search(end) or (is_blank(end) and opened):
            return end
        return end if not opened and (is_blank(end) or self._ends_alike) else None

    @cached_property
    def _ends_alike(self) -> bool:
        """Whether an answer at the text's end is followed by nothing that it is not followed by before a question."""
        gap = self.between([USER, ANSWER, USER], 1, 2)
        return gap is not None and all(gap.startswith(closing.rstrip()) for closing in self.answer_closings)

    @cached_property
    def opening(self) -> str:
        """What a template that always opens a turn writes at the text's end, from the token that opens the header."""
        end = self.between([USER], 0, None) if self.opened_always else None
        opener = self.openers.search(end or "")
        return opener.string[opener.start() :] if opener else ""

    @cached_property
    def tail(self) -> str:
        """What the template writes at the text's end whatever the last message is, from its first special token on."""
        tail = ""
        for first, then in (("user", ASSISTANT), ("user", "user"), ("system", "user")):
            end, gap = self._followed(first, then) or ("", "")
            tokens = (token for token in self.stops.finditer(end) if not gap.startswith(end[: token.end()]))
            token = next(tokens, None)
            if token is not None and gap:
                tail = max(tail, end[token.start() :], key=len)
        return tail if all(closing.rstrip().endswith(tail) for closing in self.answer_closings) else ""


def _sample(role: str) -> Message:
    """A short message of a role."""
    known = {"user": USER, "system": _SYSTEM, ASSISTANT: ANSWER, "tool": RESULT}
    return known.get(role) or {"role": role, "content": "c"}
