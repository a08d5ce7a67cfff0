"""Renders an example and records what each part of its text is. Uses a trace where that is safe, else jinja2.

A conversation is rendered once, with tracked contents: that gives its text and where its words stand. The messages
before a turn are rendered alone only where the template's generation prompt is not found in the text before the turn's
words. A trace is a program for one path that rows take through the template; see `trace`.

A row's result depends only on the row and the template, never on the rows before it. Only values that do not depend on
earlier rows are kept between rows: traces, and the JSON of tools.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import xxhash

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Messages
from .assistant_turns import Chat, TemplateProfile, UnprovedError
from .chat_template import ChatTemplate
from .locate import completion_start, locate
from .losses import Losses
from .marked import Marker
from .owned import own
from .paint import painted, painted_unproved
from .profile import ending_tokens, learn_profile
from .rendered import Rendered, same
from .trace import Traces
from .tracked_str import CALL, MESSAGE, Word

CHECK = 0xFF
"""One row in 256 is also rendered by plain jinja2, chosen by the text's length and `_LOOKED` of its characters."""
_LOOKED = 48


class Renderer:
    """Renders prompt and completion as one text, with its runs.

    Rows chosen by their text are compared with plain jinja2, and traces with the rendering by jinja2. `mismatches`
    counts those that differ: if it is not 0, the results must not be used.

    Args:
        template: the chat template.
        trace: False renders every row with jinja2.
        stops: the tokenizer's special tokens: one of these ends a turn.
        others: its other added tokens, in case the template ends turns with one of them.
        allow_lost: what the text may leave out, in the words of `tokenizer.allow_lost`.
    """

    def __init__(
        self,
        template: ChatTemplate,
        trace: bool = True,
        stops: Iterable[str] = (),
        others: Iterable[str] = (),
        allow_lost: Iterable[str] = (),
    ) -> None:
        self.template = template
        self.traced = 0
        """Rows rendered by a trace, including compared ones."""
        self.mismatches = 0
        """Compared rows on which a trace or the tracking was wrong."""
        self._trace = trace
        self._stops = tuple(stops)
        self._others = tuple(others)
        self._allow_lost = tuple(allow_lost)
        self._losses = Losses(template, self._allow_lost)
        self._marker = Marker(template)
        self._manner: TemplateProfile | None = None
        self._traces: Traces | None = None

    def __reduce__(self) -> tuple[type["Renderer"], tuple[Any, ...]]:
        return type(self), (self.template, self._trace, self._stops, self._others, self._allow_lost)

    def __call__(
        self,
        prompt: Messages,
        completion: Messages,
        tools: list[dict[str, Any]] | None = None,
    ) -> Rendered:
        """The text of prompt and completion, the character at which the completion begins, and the runs.

        Args:
            prompt: messages; may be empty if the completion is not.
            completion: messages; may be empty if the prompt is not.
            tools: tool schemas.

        Raises:
            RowRejectedError: the template refused the row (`template_error`);
                part of the row is not in the text (`lost_content`); `train` flags of the completion differ and its
                turns could not be located (`train_flags`).
            TemplateError: the template needs a date and none is pinned, or was stopped.
        """
        traced = None
        if self._trace and tools is None:
            if self._traces is None:
                self._traces = Traces(self.template, self.manner)
            traced = self._traces.rendered(prompt + completion, len(prompt))
        if traced is None:
            return self.untraced(prompt, completion, tools)
        self.traced += 1
        if not _chosen(traced.text):
            return traced
        try:
            made = self.untraced(prompt, completion, tools)
        except RowRejectedError:
            self.mismatches += 1
            raise
        self.mismatches += not same(made, traced)
        return made

    def untraced(self, prompt: Messages, completion: Messages, tools: list[dict[str, Any]] | None = None) -> Rendered:
        """As a call, without a trace."""
        cut, manner, marker = len(prompt), self.manner, self._marker
        messages = prompt + completion
        seen, tools_seen = own(messages), marker.tools(tools)
        try:
            made = marker.render(seen.chat, tools_seen)
        except RowRejectedError:
            self.template.render(messages, tools)  # raises, too, and knows nothing of tracked strings
            self.mismatches += 1
            raise
        text, words, blocks = made
        if _chosen(text):
            self._compare(text, messages, tools)
        dropped, torn = self._losses.check(seen, tools, made)

        @cache
        def head(index: int) -> tuple[str, list[Word]]:
            return marker.render(seen.chat[:index], tools_seen, add_generation_prompt=True)[:2]

        calls = {code >> MESSAGE for code in seen.said if code & CALL}
        chat = Chat(text, words, seen.roles, cut, manner, head, blocks, calls)
        try:
            if torn is not None:
                raise torn
            if seen.tangled >= 0:
                raise UnprovedError("its content has more thoughts than one at its beginning", seen.tangled)
            turns, begin = locate(chat)
            return Rendered(text, begin, painted(chat, turns, begin, seen), "", dropped)
        except UnprovedError as error:
            begin = completion_start(chat)
            where = f"message {error.message + 1}: " if error.message >= 0 else ""
            runs = painted_unproved(chat, begin, seen.flags, error.reason)
            return Rendered(text, begin, runs, where + error.reason, dropped)

    def prompt(self, messages: Messages, tools: list[dict[str, Any]] | None = None) -> str:
        """The text that a model continues: the messages, and the template's opening of an assistant's turn.

        Raises:
            RowRejectedError, TemplateError: see `__call__`.
        """
        seen = own(messages)
        made = self._marker.render(seen.chat, self._marker.tools(tools), add_generation_prompt=True)
        self._losses.check(seen, tools, made)
        return made.text

    def before(
        self, messages: Messages, indices: Sequence[int], tools: list[dict[str, Any]] | None = None
    ) -> list[str | None]:
        """The texts that a model continues at some messages: the messages before each, and the template's opening of an
        assistant's turn; None where the template refuses them. Unlike `prompt`, it does not ask whether the text holds
        all of them.

        Raises:
            TemplateError: see `ChatTemplate.render`.
        """
        texts: list[str | None] = [None] * len(indices)
        for number, index in enumerate(indices):
            with suppress(RowRejectedError):
                texts[number] = self.template.render(messages[:index], tools, add_generation_prompt=True)
        return texts

    @property
    def stop_tokens(self) -> tuple[str, ...]:
        """The tokens with which the template's own rendering ends the assistant's turns, wherever they stand."""
        return ending_tokens(self.manner)

    @property
    def stop(self) -> str | None:
        """The special token that ends an assistant's turn; None if the template writes none."""
        stops = self.manner.stops
        found = stops.match(self.manner.ending) if stops is not None else None
        return found[0] if found is not None else None

    @property
    def manner(self) -> TemplateProfile:
        """What the template does with fixed sample conversations."""
        if self._manner is None:
            self._manner = learn_profile(self._marker, self._stops, self._others)
        return self._manner

    def _compare(self, text: str, messages: Messages, tools: list[dict[str, Any]] | None) -> None:
        """Count a text that plain jinja2 does not give."""
        plain = None
        with suppress(RowRejectedError):
            plain = self.template.render(messages, tools)
        self.mismatches += plain != text


def _chosen(text: str) -> bool:
    """Whether to compare a row. Decided from part of the text, because hashing all of it takes longer than a trace."""
    size = len(text)
    looked = text[size >> 1 : (size >> 1) + _LOOKED].encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_intdigest(looked, seed=size) & CHECK == 0
