"""What a template writes around messages, learnt from the gaps of small conversations.

After the last source span of a message the template writes a *gap*, up to the next message's first span or the end of
the text: the end of the one message and the header of the next. Under ChatML, for example:

    <|im_start|>user
    Hi<|im_end|>                  the gap after "Hi" is "<|im_end|>\\n<|im_start|>assistant\\n":
    <|im_start|>assistant         its end is "<|im_end|>\\n", the next header "<|im_start|>assistant\\n",
    Hello<|im_end|>               and `header_openers` finds "<|im_start|>"

Headers are learnt where they follow something whose end is known: the beginning of the text, or a user's or a system
message, which a rendering of its own ends. The samples are those of `sample_conversations`: "a" is what the user says,
"b" what the assistant answers.
"""

import re
from collections.abc import Iterator
from functools import cached_property

from ...schemas.rows import Message
from .sample_conversations import ANSWER, SYSTEM, USER, GapsAfter, SampleGaps, sample_of
from .special_tokens import SpecialTokens, token_pattern
from .tracked_messages import ASSISTANT, is_blank

_MAX_HEADER_WORDS = 2
"""The beginning of a text with more words than these holds some of the template's own, such as a default system
message, and is not only a header."""


class TemplateGaps:
    """The gaps of a template. Its properties are learnt when they are first asked for.

    Args:
        samples: the gaps of its sample conversations.
        tokens: its special tokens.
        bos: the text of the token with which every text begins; "" if there is none.
    """

    def __init__(self, samples: SampleGaps, tokens: SpecialTokens, bos: str) -> None:
        self.samples = samples
        self.tokens = tokens
        self.special_tokens = tokens.pattern
        """Finds special tokens."""
        # Headers are looked for behind this token: only the first message of a text has it before its header.
        self._bos = bos
        self._headers: dict[str, tuple[str, ...]] = {}  # role → the headers that its messages are known to have

    # How turns end

    @cached_property
    def answer_ends(self) -> tuple[str, ...]:
        """The ends of answers that end a conversation: ("<|im_end|>",) under ChatML. Several, if they differ with
        tools; none, if the template leaves last answers open.
        """
        return self._ends(self.samples.after_answers)

    @cached_property
    def call_ends(self) -> tuple[str, ...]:
        """The ends of calls that end a conversation; as `answer_ends`."""
        return self._ends(self.samples.after_calls)

    def _ends(self, gaps: tuple[str, ...]) -> tuple[str, ...]:
        """The ends of turns in what follows them at the text's end, each once."""
        # Templates may write a line break after an earlier turn, and none at the text's end.
        ends = [(self.end_of_text(gap) or "").rstrip() for gap in gaps]
        return tuple(dict.fromkeys(end for end in ends if end))

    def end_of_text(self, gap: str) -> str | None:
        """The end of a turn with which the text ends. A header that the template opens there unasked, and what it
        writes there after every message, are no part of the turn. None if nothing shows which is which.

            "<|im_end|>\\n"                          "<|im_end|>\\n"
            "<|im_end|>\\n<|im_start|>assistant"     "<|im_end|>\\n", because the second token opens headers
            "<|end|><|endoftext|>"                  "<|end|>", if every text ends with the second token

        Args:
            gap: what follows the turn's last source span.
        """
        opener = self.header_openers.search(gap)
        end = gap[: opener.start()] if opener is not None else gap
        if self.text_tail and end.rstrip().endswith(self.text_tail):
            without_tail = end.rstrip().removesuffix(self.text_tail)
            # A tail whose token is the only one also ends the turn.
            if self.special_tokens.search(without_tail):
                end = without_tail
        if is_blank(end) or self.special_tokens.search(end):
            return end
        # Words without a special token: they end the turn if earlier turns have them, too; else they may be a header.
        if opener is None and self._last_answer_ends_as_earlier:
            return end
        return None

    @cached_property
    def _last_answer_ends_as_earlier(self) -> bool:
        """Whether all that follows an answer at the text's end also follows one before a question. Then it belongs to
        the answer, and opens nothing.
        """
        gap = self.samples.between([USER, ANSWER, USER], before=1, after=2)
        return gap is not None and all(gap.startswith(last_gap.rstrip()) for last_gap in self.samples.after_answers)

    @cached_property
    def _closing_tokens(self) -> frozenset[str]:
        """The special tokens that follow an answer at a conversation's end, and those at which a generation stops."""
        ends = [self._without_opened_turn(gap) for gap in self.samples.after_answers]
        return self.tokens.generation_stops.union(*(self.special_tokens.findall(end) for end in ends))

    # How messages begin

    def headers(self, role: str) -> tuple[str, ...]:
        """What the template writes before a message of a role, without the end of what was before it: for "user" under
        ChatML, ("<|im_start|>user\\n",). Several, if the first message of a text has another one.
        """
        if role == ASSISTANT and self.opened_turn:
            return ()  # the template writes it after the question, whatever follows
        if role not in self._headers:
            headers = list(self._headers_at_beginning(role))
            # How messages of these roles end is known from a text that ends with one.
            for previous_role in ("user", "system"):
                after = self.samples.after(previous_role, role)
                if after is not None:
                    headers.append(self.header_after(end=after.at_end, gap=after.before_next, role=role))
            self._headers[role] = tuple(dict.fromkeys(header for header in headers if header))
        return self._headers[role]

    def header_after(self, end: str, gap: str, role: str) -> str:
        """The header in a gap: "<|im_end|>\\n<|im_start|>user\\n" has behind the end "<|im_end|>\\n" the header
        "<|im_start|>user\\n". "" if the gap does not begin with the end, or what is left may also close the message
        before.

        Args:
            end: what follows the message before it where that ends the text.
            gap: what stands between that message and the next.
            role: of the next message.
        """
        end = end.rstrip()
        if not gap.startswith(end):
            return ""
        header = gap.removeprefix(end).lstrip()
        # If nothing ends a last message, something may still close an earlier one, and stand here before the header.
        # That is not so if a text can begin with all that is left.
        if end or self._begins_texts(header, role):
            return header
        return ""

    def _begins_texts(self, header: str, role: str) -> bool:
        """Whether a text may also begin with a header, where no message before it is to be closed.

        A text that begins with a system message has `<bos>[SYS]` before its content, and one that begins with a
        question `<bos>[USER]`. Without the header `[SYS]`, the first is `<bos>`, with which the other begins, too: so
        `[SYS]` is all that the role adds.
        """
        opening = self.samples.opening(sample_of(role))
        opening_of_other = self.samples.opening(USER if role == "system" else SYSTEM)
        return opening.endswith(header) and opening_of_other.startswith(opening.removesuffix(header))

    def _headers_at_beginning(self, role: str) -> Iterator[str]:
        """What the template writes before a first message, if it has no more words than a header. Nothing shows which
        of its first tokens begin the text and not the header, so it is given with them, and without.
        """
        for tools in (False, True):
            header = self._without_bos(self.samples.opening(sample_of(role), tools=tools))
            # Some templates begin texts with the token that also closes answers, such as `<|endoftext|>`: it is no part
            # of a header.
            first = self.special_tokens.match(header)
            if first is not None and first.group() in self._closing_tokens:
                header = header[first.end() :].lstrip()
            if len(self.special_tokens.sub("", header).split()) > _MAX_HEADER_WORDS:
                continue
            # "[gMASK]<sop><|user|>" yields itself, "<sop><|user|>" and "<|user|>".
            while header:
                yield header
                first = self.special_tokens.match(header)
                if first is None or not self.special_tokens.match(header, first.end()):
                    break
                header = header[first.end() :]

    def _without_bos(self, text: str) -> str:
        """A text without the token with which every text begins, and without white space behind it."""
        return text.removeprefix(self._bos).lstrip() if self._bos else text

    @cached_property
    def header_openers(self) -> re.Pattern[str]:
        """Finds the special tokens with which headers begin: `<|im_start|>` under ChatML. Those with which an answer
        closes are left out.
        """
        tokens: set[str] = set()
        # Of what begins a text and comes again before later messages, the first token. With tools, too: a template may
        # write them before the first header.
        for tools in (False, True):
            for message in (USER, SYSTEM):
                tokens.update(self._repeated_opening_tokens(message, tools=tools)[:1])
        # The first token of each known header, as of "<|tool|>", which begins no text.
        for role in ("system", "user", "tool"):
            headers = self.headers(role)
            for header in headers:
                token = self.special_tokens.match(header)
                # A header that is also known without its first token, as `<s><|user|>` and `<|user|>` are, begins the
                # text: that token is the text's own.
                if token is not None and header[token.end() :] not in headers:
                    tokens.add(token.group())
        # The first token of the turn that a template opens at the end of every text.
        if self.opened_turn:
            tokens.update(self.special_tokens.findall(self.text_tail)[:1])
        return token_pattern(tokens - self._closing_tokens)

    @cached_property
    def ambiguous_tokens(self) -> re.Pattern[str]:
        """Finds special tokens that stand at the beginning of headers, and also at the text's end after an answer,
        unless a generation is known to stop there. In `<|x|>user: a<|x|>assistant: b<|x|>`, nothing shows whether the
        token closes turns or opens headers.
        """
        # A header that the template opens at the text's end does not end the answer.
        ends = [gap.removesuffix(self.opened_header) for gap in self.samples.after_answers]
        tokens_after_answers = {token for end in ends for token in self.special_tokens.findall(end)}
        header_tokens: set[str] = set()
        for message in (USER, SYSTEM):
            header_tokens.update(self._repeated_opening_tokens(message, tools=False))
        return token_pattern((header_tokens & tokens_after_answers) - self.tokens.generation_stops)

    def _repeated_opening_tokens(self, message: Message, *, tools: bool) -> list[str]:
        """The special tokens with which a text begins, side by side, if they come again between messages and the text
        goes on behind them in the same way there: with the same kind of thing, a word or another token, and with white
        space before it or without. Most begin headers; one may also end the message before.

            text begins with    "[gMASK]<|im_start|>user\\n"
            between messages    "<|im_end|>\\n<|im_start|>assistant\\n"     `<|im_start|>`, with a word right behind it,
                                                                        comes again; `[gMASK]` does not

        Args:
            message: the first one of the text.
        """
        gaps = (
            self.samples.between([USER, ANSWER], before=0, after=1, tools=tools),
            self.samples.between([USER, ANSWER, USER], before=1, after=2, tools=tools),
            self.samples.between([USER, USER], before=0, after=1, tools=tools),
        )
        # Each special token of the gaps, with how the gap goes on behind it: what comes next, and whether white space
        # is before that.
        continued_in_gaps: set[tuple[str, tuple[str, bool]]] = set()
        for gap in gaps:
            # None if the template refuses such a conversation.
            for match in self.special_tokens.finditer(gap or ""):
                continued_in_gaps.add((match.group(), self.tokens.continuation(match.string, match.end())))
        opening = self._without_bos(self.samples.opening(message, tools=tools))
        repeated: list[str] = []
        token = self.special_tokens.match(opening)
        while token is not None:
            if (token.group(), self.tokens.continuation(opening, token.end())) in continued_in_gaps:
                repeated.append(token.group())
            token = self.special_tokens.match(opening, token.end())
        return repeated

    # Templates that open an answer, or write something else, at the end of every text

    @cached_property
    def opened_turn(self) -> str:
        """What the template writes after a question that ends a text, if that opens an answer unasked; else "". Three
        samples must show it:

            a question alone            "<|user|>a<|assistant|>"     is `<|assistant|>` what opens an answer?
            1. before an answer         "<|user|>a<|assistant|>b"    the text goes on behind it
            2. before a question        "<|user|>a<|user|>a"         it is not there
            3. after a last answer      "…b<|assistant|>"            it is there, too
        """
        after_question = self.samples.after("user", ASSISTANT)
        if after_question is None or not after_question.at_end:
            return ""
        opened = after_question.at_end
        # 1.
        if not after_question.before_next.startswith(opened):
            return ""
        # 2. Behind a question that another question follows, and behind a system message that a question follows. The
        # template may refuse one of these, but then the other must show it.
        gaps_before_questions: list[GapsAfter] = []
        for role in ("user", "system"):
            gaps = self.samples.after(role, "user")
            if gaps is not None and gaps.at_end and gaps.before_next:
                gaps_before_questions.append(gaps)
        if not gaps_before_questions:
            return ""
        if any(gaps.before_next.startswith(gaps.at_end) for gaps in gaps_before_questions):
            return ""
        # 3. By the last character alone: the ends of a question and of an answer may differ before what is opened.
        follows_answers = all(gap.rstrip()[-1:] == opened[-1] for gap in self.samples.after_answers)
        return opened if follows_answers else ""

    @cached_property
    def opened_header(self) -> str:
        """What a template that always opens a turn writes at the text's end, from the token that opens the header; ""
        for other templates.
        """
        if not self.opened_turn:
            return ""
        end = self.samples.between([USER], before=0, after=None) or ""
        opener = self.header_openers.search(end)
        return end[opener.start() :] if opener is not None else ""

    def _without_opened_turn(self, gap: str) -> str:
        """The end of an answer, without the turn that the template opens behind every last message.

        What it opens is known from a question, and may begin with the question's own end. So segments are taken off
        from behind as long as both have the same:

            gap after a question    "<|eoq|><|assistant|>"
            gap after an answer     "<|end|><|assistant|>"     the end is "<|end|>"
        """
        segments = self.tokens.segments(gap.rstrip())
        for segment in reversed(self.tokens.segments(self.opened_turn)):
            if not segments or segments[-1] != segment:
                break
            segments.pop()
        return "".join(segments)

    @cached_property
    def text_tail(self) -> str:
        """What the template writes at the text's end and nowhere else, whatever the last message is; it begins with a
        special token. "" if there is none. For `<|user|>a<|end|><|assistant|>b<|end|><|endoftext|>`, it is
        `<|endoftext|>`: `<|end|>` also stands before another message.
        """
        tails = [
            self._tail_after(role, next_role)
            for role, next_role in (("user", ASSISTANT), ("user", "user"), ("system", "user"))
        ]
        # The others are parts of the longest, or the template writes no such tail, and the answers below show it.
        longest_tail = max(tails, key=len)
        follows_answers = all(gap.rstrip().endswith(longest_tail) for gap in self.samples.after_answers)
        return longest_tail if follows_answers else ""

    def _tail_after(self, role: str, next_role: str) -> str:
        """The end of what follows a last message of a role: it begins with the first special token that does not stand
        there before another message. "" if there is none:

            at the text's end         "<|end|><|endoftext|>"
            before another message    "<|end|><|assistant|>"     the tail is "<|endoftext|>"

        Args:
            next_role: of the other message.
        """
        gaps = self.samples.after(role, next_role)
        if gaps is None or not gaps.before_next:
            return ""
        for token in self.special_tokens.finditer(gaps.at_end):
            if not gaps.before_next.startswith(gaps.at_end[: token.end()]):
                return gaps.at_end[token.start() :]
        return ""
