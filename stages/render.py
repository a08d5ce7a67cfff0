"""Renders an example and says where its completion begins: by tracing where that is proved, or by jinja2.

A pattern is the number of prompt messages and all the roles. Its first row is rendered by jinja2 alone; from
the second on, rows are answered by traces, one for each path through the template that rows have taken.
"""

from typing import Any, TypeAlias

from ..schemas.errors import RowRejectedError
from ..schemas.rows import Messages
from .symbol import TraceAbortedError
from .template import ChatTemplate
from .trace import Trace, Tracer, common_prefix

PatternKey: TypeAlias = tuple[int, tuple[str, ...]]
"""(messages in the prompt, roles of all messages)."""

CHECKED_ROWS = 4
"""So many first rows of every trace are compared with jinja2."""
MAX_ATTEMPTS = 16
"""So many traces of one pattern are tried."""
MAX_FAILURES = 2
"""So many attempts may fail before the first trace of a pattern is made."""
MAX_PATTERNS = 4096
"""So many patterns are told apart; rows of others are rendered by jinja2."""


class _Pattern:
    """The traces of one pattern of roles."""

    __slots__ = ("attempts", "traces")

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.attempts = 0


class Renderer:
    """Renders prompt and completion as one text.

    A trace that differs from jinja2 on a compared row is never used again, nor is its pattern traced again;
    such a row gets jinja2's text. `suspects` then counts the rows that the pattern had answered unchecked:
    where it is not 0, a caller must render them again with `trace=False`.

    Args:
        template: the chat template.
        trace: False renders everything by jinja2.
    """

    def __init__(self, template: ChatTemplate, trace: bool = True) -> None:
        self.template = template
        self.traced = 0
        """Rows answered by a trace, compared ones included."""
        self.rendered = 0
        """Rows answered by jinja2."""
        self.mismatches = 0
        """Compared rows on which a trace was wrong."""
        self.suspects = 0
        """Rows that went out unchecked from patterns that turned out wrong later."""
        self.untraced: dict[PatternKey, str] = {}
        """Why patterns were given up."""
        self._trace = trace
        self._patterns: dict[PatternKey, _Pattern] = {}
        self._tracer: Tracer | None = None
        if trace:
            try:
                self._tracer = Tracer(template)
            except TraceAbortedError:
                self._tracer = None

    def __reduce__(self) -> tuple[type["Renderer"], tuple[ChatTemplate, bool]]:
        return type(self), (self.template, self._trace)

    def __call__(
        self,
        prompt: Messages,
        completion: Messages,
        tools: list[dict[str, Any]] | None = None,
        check: bool = False,
    ) -> tuple[str, int]:
        """The text of prompt and completion, and the character at which the completion begins.

        That is the length of the longest common prefix of the whole text and the prompt's own text with its
        generation prompt; 0 without a prompt, the text's length without a completion.

        Args:
            prompt: messages; may be empty if the completion is not.
            completion: messages; may be empty if the prompt is not.
            tools: tool schemas. Rows with tools are always rendered by jinja2.
            check: compare with jinja2 if a trace answers.

        Raises:
            RowRejectedError: the template refused the row (`template_error`).
            TemplateError: the template needs a date and none is pinned.
        """
        if self._tracer is not None and tools is None:
            roles: list[str] = []
            contents: list[str] = []
            try:
                for message in prompt + completion:
                    role = message["role"]
                    content = message["content"]
                    if type(content) is not str or type(role) is not str or len(message) != 2:
                        roles.clear()
                        break
                    roles.append(role)
                    contents.append(content)
            except (KeyError, TypeError):
                roles.clear()  # not the plain kind of message: jinja2 says what is wrong with it
            if roles:
                return self._traced(self._tracer, (len(prompt), tuple(roles)), contents, prompt, completion, check)
        self.rendered += 1
        return self.by_jinja(prompt, completion, tools)

    def by_jinja(
        self, prompt: Messages, completion: Messages, tools: list[dict[str, Any]] | None = None
    ) -> tuple[str, int]:
        """The same by jinja2 alone: the truth that traces are compared with. Counts nothing."""
        text = self.template.render(prompt + completion, tools)
        if not completion:
            return text, len(text)
        if not prompt:
            return text, 0
        return text, common_prefix(self.template.render(prompt, tools, add_generation_prompt=True), text)

    def _traced(
        self,
        tracer: Tracer,
        key: PatternKey,
        contents: list[str],
        prompt: Messages,
        completion: Messages,
        check: bool,
    ) -> tuple[str, int]:
        pattern = self._patterns.get(key)
        if pattern is None:
            if len(self._patterns) < MAX_PATTERNS:
                self._patterns[key] = _Pattern()
        else:
            traces = pattern.traces
            for index, trace in enumerate(traces):
                result = trace.run(contents)
                if result is not None:
                    if check or trace.checked < CHECKED_ROWS:
                        return self._compared(key, pattern, trace, result, prompt, completion)
                    trace.unchecked += 1
                    self.traced += 1
                    if index and traces[index - 1].unchecked < trace.unchecked:
                        traces[index - 1], traces[index] = trace, traces[index - 1]
                    return result
            if pattern.attempts < MAX_ATTEMPTS:
                made = self._attempt(tracer, key, pattern, contents)
                result = made.run(contents) if made is not None else None
                if made is not None and result is not None:
                    return self._compared(key, pattern, made, result, prompt, completion)
        self.rendered += 1
        return self.by_jinja(prompt, completion)

    def _attempt(self, tracer: Tracer, key: PatternKey, pattern: _Pattern, contents: list[str]) -> Trace | None:
        pattern.attempts += 1
        try:
            trace = tracer.trace(key[1], contents, key[0])
        except TraceAbortedError as error:
            # Other paths of the pattern may be traceable, or the row may be one that the template refuses.
            if not pattern.traces and pattern.attempts >= MAX_FAILURES:
                self._give_up(key, pattern, str(error))
            return None
        pattern.traces.append(trace)
        return trace

    def _compared(
        self,
        key: PatternKey,
        pattern: _Pattern,
        trace: Trace,
        result: tuple[str, int],
        prompt: Messages,
        completion: Messages,
    ) -> tuple[str, int]:
        refusal: RowRejectedError | None = None
        truth: tuple[str, int] | None = None
        try:
            truth = self.by_jinja(prompt, completion)
        except RowRejectedError as error:
            refusal = error
        if truth == result:
            trace.checked += 1
            self.traced += 1
            return result
        self.mismatches += 1
        self.suspects += sum(made.unchecked for made in pattern.traces)
        self._give_up(key, pattern, "a trace differed from jinja2")
        self.rendered += 1
        if truth is None:
            assert refusal is not None
            raise refusal
        return truth

    def _give_up(self, key: PatternKey, pattern: _Pattern, why: str) -> None:
        pattern.traces = []
        pattern.attempts = MAX_ATTEMPTS
        self.untraced[key] = why
