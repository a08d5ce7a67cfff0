"""What a template writes around messages, learnt from small conversations, each rendered once and only if it is needed.

After the last source span of a message the template writes a *gap*, up to the next message's first span or the end of
the text: the end of the one message and the header of the next. Under ChatML, for example:

    <|im_start|>user
    Hi<|im_end|>                  the gap after "Hi" is "<|im_end|>\\n<|im_start|>assistant\\n":
    <|im_start|>assistant         its end is "<|im_end|>\\n", the next header "<|im_start|>assistant\\n",
    Hello<|im_end|>               and `header_openers` finds "<|im_start|>"

Headers are learnt where they follow something whose end is known: the beginning of the text, or a user's or a system
message, which a rendering of its own ends.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from ...schemas.errors import PacktrainError, StoppedTemplateError
from ...schemas.rows import Message, Messages
from .samples import ANSWER, SYSTEM, TOOLS, USER, sample_calls, sample_of
from .tracked_messages import ASSISTANT, is_blank, track_messages
from .tracked_template import TrackedTemplate

_MATCHES_NOTHING = "(?!)"
_MAX_HEADER_WORDS = 2
"""The beginning of a text with more words than these holds some of the template's own, such as a default system
message, and is not only a header."""


def token_pattern(tokens: Collection[str]) -> re.Pattern[str]:
    """Return a pattern that finds the first of some tokens; of two at the same place it takes the longer."""
    longest_first = sorted({token for token in tokens if token.strip()}, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first)) if longest_first else _MATCHES_NOTHING)


class _AfterMessage(NamedTuple):
    """What a template writes after a message: at the text's end, without white space there, and before another."""

    at_end: str
    before_next: str


class TemplateGaps:
    """The gaps of a template.

    Args:
        template: renders the sample conversations.
        special_tokens: finds special tokens.
        generation_stops: the tokens at which a generation with this model stops, as far as that is known.
    """

    def __init__(
        self, template: TrackedTemplate, special_tokens: re.Pattern[str], generation_stops: Collection[str] = ()
    ) -> None:
        self.special_tokens = special_tokens
        self._template = template
        self._generation_stops = frozenset(generation_stops)
        self._bos = str(template.template.variables.get("bos_token") or "")
        self._headers: dict[str, tuple[str, ...]] = {}
        self._after_message: dict[tuple[str, str], _AfterMessage | None] = {}

    def between(self, messages: Messages, before: int, after: int | None, *, tools: bool = False) -> str | None:
        """What stands between two messages; None if the template refuses the messages, or drops their contents.

        Args:
            before, after: indices; -1 is the text's beginning, None its end.
        """
        try:
            rendering = self._template.render(track_messages(messages).for_template, TOOLS if tools else None)
        except StoppedTemplateError:
            raise
        except PacktrainError:
            return None
        return rendering.text_between(before, after)

    # How turns end

    def closing_span(self, end: str) -> tuple[int, int]:
        """Where the closing tokens within the end of a turn begin and end; twice where its text ends, if it has none.

        A turn closes at the first token at which a generation would stop, else at its last special token. Tokens right
        before that one close it with it.

            "<|im_end|>\\n"                (0, 10)
            "\\n</answer><|eot|><|eom|>"   (10, 24): both tokens
            "\\n"                          (0, 0)
        """
        tokens = list(self.special_tokens.finditer(end))
        if not tokens:
            length = len(end.rstrip())
            return length, length
        generation_ends = (index for index, token in enumerate(tokens) if token.group() in self._generation_stops)
        last = next(generation_ends, len(tokens) - 1)
        first = last
        while first and tokens[first - 1].end() == tokens[first].start():
            first -= 1
        return tokens[first].start(), tokens[last].end()

    def ends_generation(self, closing: str) -> bool:
        """Whether a generation would stop at one of the tokens in a text."""
        return not self._generation_stops.isdisjoint(self.special_tokens.findall(closing))

    def is_only_end(self, end: str, last_ends: Collection[str]) -> bool:
        """Whether a text that is taken for the end of a turn can contain nothing else: a generation would stop there,
        all special tokens stand side by side, or the last of them, and no other, closes a turn at a text's end, too.
        """
        tokens = list(self.special_tokens.finditer(end))
        are_side_by_side = all(left.end() == right.start() for left, right in pairwise(tokens))
        if self.ends_generation(end) or are_side_by_side:
            return True
        texts = [token.group() for token in tokens]
        closing_tokens = {token for last_end in last_ends for token in self.special_tokens.findall(last_end)[-1:]}
        return texts[-1] in closing_tokens and texts.count(texts[-1]) == 1

    @cached_property
    def after_answers(self) -> tuple[str, ...]:
        """What follows an answer that ends a conversation, with and without tools."""
        return self._after_last([ANSWER])

    @cached_property
    def after_calls(self) -> tuple[str, ...]:
        """What follows a call that ends a conversation."""
        return self._after_last(sample_calls())

    def _after_last(self, messages: Iterable[Message]) -> tuple[str, ...]:
        gaps = [self.between([USER, message], 1, None, tools=tools) for message in messages for tools in (False, True)]
        return tuple(dict.fromkeys(gap for gap in gaps if gap is not None))

    @cached_property
    def answer_ends(self) -> tuple[str, ...]:
        """The ends of answers that end a conversation."""
        return self._ends(self.after_answers)

    @cached_property
    def call_ends(self) -> tuple[str, ...]:
        """The ends of calls that end a conversation."""
        return self._ends(self.after_calls)

    def _ends(self, gaps: tuple[str, ...]) -> tuple[str, ...]:
        # Templates may write a line break after an earlier turn, and none at the text's end.
        ends = [(self.end_of_text(gap) or "").rstrip() for gap in gaps]
        return tuple(dict.fromkeys(end for end in ends if end))

    def end_of_text(self, gap: str) -> str | None:
        """The end of a turn with which the text ends. A header that the template opens there unasked, and what it
        writes there after every message, are no part of the turn. None if nothing shows which is which.

        Args:
            gap: what follows the turn's last source span.
        """
        opener = self.header_openers.search(gap)
        end = gap[: opener.start()] if opener else gap
        if self.text_tail and end.rstrip().endswith(self.text_tail):
            without_tail = end.rstrip().removesuffix(self.text_tail)
            # A tail whose token is the only one also ends the turn.
            end = without_tail if self.special_tokens.search(without_tail) else end
        if self.special_tokens.search(end) or (is_blank(end) and opener):
            return end
        return end if not opener and (is_blank(end) or self._last_answer_ends_as_earlier) else None

    @cached_property
    def _last_answer_ends_as_earlier(self) -> bool:
        """Whether an answer at the text's end is followed by nothing that it is not followed by before a question."""
        gap = self.between([USER, ANSWER, USER], 1, 2)
        return gap is not None and all(gap.startswith(last_gap.rstrip()) for last_gap in self.after_answers)

    @cached_property
    def _closing_tokens(self) -> frozenset[str]:
        """The special tokens that follow an answer that ends a conversation."""
        ends = [self._without_opened_turn(gap) for gap in self.after_answers]
        return self._generation_stops.union(*(self.special_tokens.findall(end) for end in ends))

    # How messages begin

    def headers(self, role: str) -> tuple[str, ...]:
        """What the template writes before a message of a role, without the end of what was before it."""
        if role not in self._headers:
            self._headers[role] = tuple(dict.fromkeys(self._learn_headers(role)))
        return self._headers[role]

    def _learn_headers(self, role: str) -> Iterator[str]:
        if role == ASSISTANT and self.opened_turn:
            return  # the template writes it after the question, whatever follows
        yield from self._headers_at_beginning(role)
        for previous_role in ("user", "system"):
            after = self._after(previous_role, role)
            header = self.header_after(after.at_end, after.before_next, role) if after else ""
            if header:
                yield header

    def header_after(self, end: str, gap: str, role: str) -> str:
        """The header in a gap whose beginning is known; "" if that is not sure.

        Args:
            end: what follows the message before it where that ends the text.
            gap: what stands between that message and the next.
            role: of the next message.
        """
        end = end.rstrip()
        if not gap.startswith(end):
            return ""
        header = gap.removeprefix(end).lstrip()
        if end:
            return header
        # A last message ends with nothing, but an earlier one may still be closed before the next header: then the
        # whole gap is no header. It is one if a text begins with it, too, behind what every text begins with.
        opening = self.between([sample_of(role)], -1, 0) or ""
        opening_of_other = self.between([USER if role == "system" else SYSTEM], -1, 0) or ""
        text_beginning = opening.removesuffix(header)
        return header if opening.endswith(header) and opening_of_other.startswith(text_beginning) else ""

    def _headers_at_beginning(self, role: str) -> Iterator[str]:
        """What the template writes before a first message, if that is only a header; also without tokens with which
        every text begins."""
        for tools in (False, True):
            header = self._text_beginning(sample_of(role), tools=tools)
            if len(self.special_tokens.sub("", header).split()) > _MAX_HEADER_WORDS:
                continue
            # "[gMASK]<sop><|user|>" yields itself, "<sop><|user|>" and "<|user|>".
            while header:
                yield header
                first = self.special_tokens.match(header)
                if first is None or not self.special_tokens.match(header, first.end()):
                    break
                header = header[first.end() :]

    def _text_beginning(self, message: Message, *, tools: bool) -> str:
        """What the template writes before a first message, without the text's own first token."""
        text = self.between([message], -1, 0, tools=tools) or ""
        if self._bos:
            text = text.removeprefix(self._bos).lstrip()
        first = self.special_tokens.match(text)
        if first is not None and first.group() in self._closing_tokens:
            text = text[first.end() :].lstrip()
        return text

    def _after(self, role: str, next_role: str) -> _AfterMessage | None:
        """What follows a first message of a role; None if the template refuses one of the conversations."""
        key = (role, next_role)
        if key not in self._after_message:
            at_end = self.between([sample_of(role)], 0, None)
            before_next = self.between([sample_of(role), sample_of(next_role)], 0, 1)
            if at_end is None or before_next is None:
                self._after_message[key] = None
            else:
                self._after_message[key] = _AfterMessage(at_end.rstrip(), before_next)
        return self._after_message[key]

    @cached_property
    def header_openers(self) -> re.Pattern[str]:
        """Finds the special tokens with which headers begin: a text begins with one, and it comes again between
        messages. Those with which an answer closes are left out.
        """
        tokens: set[str] = set()
        for tools in (False, True):
            for message in (USER, SYSTEM):
                tokens.update(self._header_tokens(message, tools=tools)[:1])
        for role in ("system", "user", "tool"):
            headers = self.headers(role)
            for header in headers:
                token = self.special_tokens.match(header)
                # A header that is also known without its first token begins the text: the token is the text's own.
                if token and header[token.end() :] not in headers:
                    tokens.add(token.group())
        if self.opened_turn:
            tokens.update(self.special_tokens.findall(self.text_tail)[:1])
        return token_pattern(tokens - self._closing_tokens)

    @cached_property
    def ambiguous_tokens(self) -> re.Pattern[str]:
        """Finds special tokens that stand at the beginning of headers, and also at the text's end after an answer,
        unless a generation is known to stop there. In `<|x|>user: a<|x|>assistant: b<|x|>`, nothing shows whether the
        token closes turns or opens headers.
        """
        ends = [gap.removesuffix(self.opened_header) for gap in self.after_answers]
        segments_after_answers = {segment for end in ends for segment in self._segments(end)}
        tokens = {token for message in (USER, SYSTEM) for token in self._header_tokens(message, tools=False)}
        return token_pattern((tokens & segments_after_answers) - self._generation_stops)

    def _header_tokens(self, message: Message, *, tools: bool) -> list[str]:
        """The special tokens with which a text begins, side by side, and which go on in the same way before later
        messages: those with which headers begin, unless they end the message before."""
        gaps = [
            self.between([USER, ANSWER], 0, 1, tools=tools) or "",
            self.between([USER, ANSWER, USER], 1, 2, tools=tools) or "",
            self.between([USER, USER], 0, 1, tools=tools) or "",
        ]
        opening = self.between([message], -1, 0, tools=tools) or ""
        if self._bos:
            opening = opening.removeprefix(self._bos).lstrip()
        # `<|im_start|>user` begins a text, and the gap before a later message has `<|im_start|>` with a word behind it.
        tokens: list[str] = []
        token = self.special_tokens.match(opening)
        while token is not None:
            if self._comes_again(token, gaps):
                tokens.append(token.group())
            token = self.special_tokens.match(opening, token.end())
        return tokens

    def _comes_again(self, token: re.Match[str], gaps: Iterable[str]) -> bool:
        """Whether a token of a text's beginning also stands in one of the gaps, and goes on there in the same way."""
        continuation = self._continuation(token.string, token.end())
        for gap in gaps:
            for later_token in self.special_tokens.finditer(gap):
                is_same = later_token.group() == token.group()
                if is_same and self._continuation(gap, later_token.end()) == continuation:
                    return True
        return False

    def _continuation(self, text: str, place: int) -> tuple[str, bool]:
        """How a text goes on: the white space, and whether a special token is behind it."""
        rest_of_text = text[place:]
        space = rest_of_text[: len(rest_of_text) - len(rest_of_text.lstrip())]
        return space, self.special_tokens.match(rest_of_text, len(space)) is not None

    # Templates that open an answer, or write something else, at the end of every text

    @cached_property
    def opened_turn(self) -> str:
        """What the template writes after a question that ends a text, if that opens an answer unasked; else "". It does
        if an answer continues that text, another question never does, and it also follows a last answer.
        """
        after = self._after("user", ASSISTANT)
        if after is None or not after.at_end or not after.before_next.startswith(after.at_end):
            return ""
        before_questions = [self._after(role, "user") for role in ("user", "system")]
        before_question = [pair for pair in before_questions if pair and all(pair)]
        is_opened_by_question = any(pair.before_next.startswith(pair.at_end) for pair in before_question)
        follows_answers = all(gap.rstrip()[-1:] == after.at_end[-1] for gap in self.after_answers)
        return after.at_end if before_question and follows_answers and not is_opened_by_question else ""

    @cached_property
    def opened_header(self) -> str:
        """What a template that always opens a turn writes at the text's end, from the token that opens the header."""
        end = self.between([USER], 0, None) if self.opened_turn else None
        opener = self.header_openers.search(end or "")
        return opener.string[opener.start() :] if opener else ""

    def _without_opened_turn(self, gap: str) -> str:
        """The end of an answer without what a template that always opens a turn writes after every last message."""
        segments = self._segments(gap.rstrip())
        for segment in reversed(self._segments(self.opened_turn)):
            if not segments or segments[-1] != segment:
                break
            segments.pop()
        return "".join(segments)

    def _segments(self, text: str) -> list[str]:
        """The special tokens of a text, and what stands between them."""
        segments: list[str] = []
        end_of_last = 0
        # "a<|end|>b" gives "a", "<|end|>" and "b".
        for token in self.special_tokens.finditer(text):
            segments += [text[end_of_last : token.start()], token.group()]
            end_of_last = token.end()
        segments.append(text[end_of_last:])
        return [segment for segment in segments if segment]

    @cached_property
    def text_tail(self) -> str:
        """What the template writes at the text's end whatever the last message is, from its first special token on."""
        tail = ""
        for role, next_role in (("user", ASSISTANT), ("user", "user"), ("system", "user")):
            after = self._after(role, next_role)
            if after is None or not after.before_next:
                continue
            for token in self.special_tokens.finditer(after.at_end):
                # The first token that the gap before another message does not have is the text's end's own.
                if not after.before_next.startswith(after.at_end[: token.end()]):
                    tail = max(tail, after.at_end[token.start() :], key=len)
                    break
        return tail if all(gap.rstrip().endswith(tail) for gap in self.after_answers) else ""
