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
from typing import Any, TypeAlias

import xxhash

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Message, Messages
from .assistant_turns import TemplateProfile, UnprovedError, Word
from .chat_template import ChatTemplate
from .completion_start import completion_start
from .environment import TemplateLimitError
from .losses import Losses
from .marked import Marker
from .profile import ending_tokens, learn_profile
from .rendered import Rendered, locate, prompt_apart, runs_of, same, unproved_runs
from .symbolic_str import TraceAbortedError
from .trace import Trace, Tracer
from .train_flags import PartFlag, flag_parts, flags_among, joined_words, loss_weight, part_flags, without_flags
from .turn_parts import divided, has_parts

PatternKey: TypeAlias = tuple[int, tuple[str, ...]]
"""(messages in the prompt, roles of all messages)."""

CHECK = 0xFF
"""One row in 256 is also rendered by plain jinja2, chosen by the text's length and `_LOOKED` of its characters."""
_LOOKED = 48
MAX_TRACES = 4096
"""Maximum number of traces to keep; when it is reached, all are forgotten."""
MAX_PATHS = 64
"""Maximum number of traces for one pattern."""

_FLAGS = ("train", "weight")


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
        self.rendered = 0
        """Rows rendered by jinja2."""
        self.mismatches = 0
        """Compared rows on which a trace or the tracking was wrong."""
        self._trace = trace
        self._stops = tuple(stops)
        self._others = tuple(others)
        self._allow_lost = tuple(allow_lost)
        self._losses = Losses(template, self._allow_lost)
        self._marker = Marker(template)
        self._unseen = tuple(key for key in _FLAGS if key not in template.source)
        self._manner: TemplateProfile | None = None
        self._patterns: dict[PatternKey, list[Trace]] = {}
        self._tracer: Tracer | None = None
        self._traceable = trace

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
        traced = self._traced(prompt + completion, len(prompt)) if tools is None else None
        if traced is None:
            self.rendered += 1
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
        """As a call, without a trace; not counted in `rendered`."""
        given = messages = prompt + completion
        flagged: dict[int, PartFlag] = {}
        if list in [type(message.get("content")) for message in given]:
            flagged = part_flags(given)
            messages = without_flags(self._losses.joined(given))
        chat = self._marker.own(messages, joined_words(given, messages, flagged) if flagged else None)
        own_tools = self._marker.tools(tools)
        try:
            text, words, blocks, tool_words = self._marker.render(chat, own_tools)
        except RowRejectedError:
            self.template.render(messages, tools)  # raises, too, and knows nothing of tracked strings
            self.mismatches += 1
            raise
        if _chosen(text):
            self._compare(text, messages, tools)
        cut, manner = len(prompt), self.manner
        dropped = self._losses.check(messages, tools, text, words, tool_words, manner.thoughts)

        @cache
        def head(index: int) -> tuple[str, list[Word]]:
            return self._marker.render(chat[:index], own_tools, add_generation_prompt=True)[:2]

        roles: list[Any] = [message.get("role") for message in messages]
        flags: list[float] = [True] * len(messages)
        calls = []
        for index, message in enumerate(messages):
            if len(message) > 2 or "content" not in message or "role" not in message:
                flags[index] = loss_weight(message)
                if message.get("tool_calls") or message.get("function_call"):
                    calls.append(index)
        try:
            self._losses.require_whole(messages, text, words, manner.thoughts)
            turns, begin = locate(text, words, roles, cut, manner, blocks, head, calls=calls)
        except UnprovedError as error:
            begin = completion_start(text, words, cut, roles, [], head, manner)
            after = flags_among(flags[cut:], flagged, range(cut, len(roles)))
            if len(after) > 1:
                raise RowRejectedError(
                    "train_flags",
                    "messages of the completion, or parts of them, have different `train` flags or weights, and the "
                    f"template does not show where each of them lies ({error.reason}); split the row",
                ) from None
            where = f"message {error.message + 1}: " if error.message >= 0 else ""
            before = min(flags_among(flags[:cut], flagged, range(cut)), default=True)
            runs = unproved_runs(begin, len(text), min(cut, len(roles) - 1), before, min(after, default=True))
            return Rendered(text, begin, prompt_apart(runs, begin, cut, words), where + error.reason, dropped)
        runs, mixed = runs_of(turns, begin, len(text), cut, roles, flags, words), ""
        if has_parts(messages, manner.thoughts) or manner.thoughts.in_any([text]):
            runs, mixed = divided(text, runs, words, messages, manner.thoughts)
        if flagged:
            runs = flag_parts(text, runs, words, flags, flagged, self.template.name)
        return Rendered(text, begin, prompt_apart(runs, begin, cut, words), "", dropped, mixed)

    def prompt(self, messages: Messages, tools: list[dict[str, Any]] | None = None) -> str:
        """The text that a model continues: the messages, and the template's opening of an assistant's turn.

        Raises:
            RowRejectedError, TemplateError: see `__call__`.
        """
        joined = without_flags(self._losses.joined(messages))
        made = self._marker.render(self._marker.own(joined), self._marker.tools(tools), add_generation_prompt=True)
        self._losses.check(joined, tools, made.text, made.words, made.tools, self.manner.thoughts)
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
        with suppress(RowRejectedError):
            given = self._losses.joined(messages)
            for number, index in enumerate(indices):
                with suppress(RowRejectedError):
                    texts[number] = self.template.render(given[:index], tools, add_generation_prompt=True)
        return texts

    @property
    def stop_tokens(self) -> tuple[str, ...]:
        """The tokens with which the template's own rendering ends the assistant's turns, wherever they stand."""
        return ending_tokens(self.manner)

    @property
    def stop(self) -> str | None:
        """The special token that ends an assistant's turn; None if the template writes none."""
        closing, stops = self.manner.closing, self.manner.stops
        found = stops.search(closing) if closing and stops else None
        return found[0] if found else None

    @property
    def manner(self) -> TemplateProfile:
        """What the template does with fixed sample conversations."""
        if self._manner is None:
            self._manner = learn_profile(self.template, self._marker, self._stops, self._others)
        return self._manner

    def _compare(self, text: str, messages: Messages, tools: list[dict[str, Any]] | None) -> None:
        """Count a text that plain jinja2 does not give."""
        plain = None
        with suppress(RowRejectedError):
            plain = self.template.render(messages, tools)
        self.mismatches += plain != text

    def _only_flags(self, message: Message) -> bool:
        """Whether a message has, besides role and content, only flags that have no effect."""
        extra = len(message) - 2
        for key in self._unseen:
            if key in message:
                extra -= 1
        return extra == 0 and loss_weight(message) == 1

    def _traced(self, messages: Messages, cut: int) -> Rendered | None:
        """The rendering by a trace, or None if the row cannot be traced."""
        if not self._traceable or not messages:
            return None
        roles: list[str] = []
        contents: list[str] = []
        for message in messages:
            if type(message) is not dict:
                return None
            role, content = message.get("role"), message.get("content")
            if type(content) is not str or type(role) is not str:
                return None
            if len(message) != 2 and not self._only_flags(message):
                return None
            roles.append(role)
            contents.append(content)
        try:
            trace, values = self._path((cut, tuple(roles)), contents)
            if trace is None or values is None or trace.why_not:
                return None
            rendered = trace.rendered(values)
            style = self.manner.thoughts
            parts = trace.parts or style.in_any(values)
            if trace.complete and not parts:
                return rendered
            words = trace.words(values)
            if not trace.complete:
                dropped = self._losses.check(messages, None, rendered.text, words, (), style)
                self._losses.require_whole(messages, rendered.text, words, style)
                rendered = rendered._replace(dropped=dropped)
            if parts:
                runs, mixed = divided(rendered.text, rendered.runs, words, messages, style)
                rendered = rendered._replace(runs=runs, mixed=mixed)
            return rendered
        except (TemplateLimitError, RowRejectedError, UnprovedError):
            return None

    def _path(self, key: PatternKey, contents: list[str]) -> tuple[Trace | None, list[str] | None]:
        """The trace for a row, and its values."""
        traces = self._patterns.get(key)
        if traces is None:
            traces = self._patterns[key] = []
        for trace in traces:
            values = trace.values(contents)
            if values is not None:
                return trace, values
        if self._tracer is None:
            try:
                self._tracer = Tracer(self.template, self.manner)
            except TraceAbortedError:
                self._traceable = False  # for every row
                return None, None
        trace = self._tracer.trace(key[1], contents, key[0])
        if sum(map(len, self._patterns.values())) >= MAX_TRACES:
            self._patterns = {key: (traces := [])}
        elif len(traces) >= MAX_PATHS:
            traces.clear()
        traces.append(trace)
        return trace, trace.values(contents)


def _chosen(text: str) -> bool:
    """Whether to compare a row. Decided from part of the text, because hashing all of it takes longer than a trace."""
    size = len(text)
    looked = text[size >> 1 : (size >> 1) + _LOOKED].encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_intdigest(looked, seed=size) & CHECK == 0
