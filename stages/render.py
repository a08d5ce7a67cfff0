"""Renders an example and says what each part of its text is: by tracing where that is proved, or by jinja2.

Three ways, each held against the one above it:

1. *Exactly*: jinja2 renders the conversation; a second rendering, whose contents remember where they came from, must
   give the same text and says where the words lie; renderings of prefixes say where turns begin. Slow, and the truth.
2. *Marked*: the second rendering alone.
3. *Traced*: a program for each path through the template that rows take; see `trace`.

A row's result is a pure function of the row: which way it goes depends on the row and the template, never on the rows
before it. What is kept between rows is what would be made again: traces, and the JSON of tools.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import xxhash

from ..schemas.errors import PacktrainError, RowRejectedError
from ..schemas.rows import Message, Messages
from .bounded import TemplateLimitError
from .compiled import Trace
from .kept import Keeper
from .marks import Marker, is_plain
from .rendered import Rendered, prompt_apart, runs_of, solid, unproved_runs
from .symbol import TraceAbortedError
from .template import ChatTemplate
from .trace import Tracer
from .turns import Manner, UnprovedError, Word, completion_start, find_turns, generated_turns, stop_pattern

PatternKey: TypeAlias = tuple[int, tuple[str, ...]]
"""(messages in the prompt, roles of all messages)."""

CHECK = 0xFF
"""One row in 256 is rendered exactly as well. The row's text decides which: its length, and `_LOOKED` characters."""
_LOOKED = 48
MAX_TRACES = 4096
"""That are kept; then all are forgotten."""
MAX_PATHS = 64
"""The same for one pattern."""

_FLAGS = ("train", "weight")
_NOT_FOLLOWED = "the template looks at its contents in a way that cannot be followed"


class Renderer:
    """Renders prompt and completion as one text, with its runs.

    The quick ways are held against the exact one on rows that their own text chooses. `mismatches` counts those on
    which they differ: where it is not 0, a caller must render all rows again with `trace=False`.

    Args:
        template: the chat template.
        trace: False renders everything exactly.
        stops: the tokenizer's special tokens: one of them ends a turn.
        others: its other added tokens, for a template that ends turns with one of these.
        allow_lost: what of a conversation may be missing in its text, in the words of `tokenizer.allow_lost`.
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
        """Rows answered by a trace, compared ones included."""
        self.rendered = 0
        """Rows answered by jinja2."""
        self.mismatches = 0
        """Compared rows on which a quick way was wrong. They got the exact answer."""
        self._trace = trace
        self._stops = tuple(stops)
        self._others = tuple(others)
        self._allow_lost = tuple(allow_lost)
        self._keeper = Keeper(template, self._allow_lost)
        self._marker = Marker(template)
        self._unseen = tuple(key for key in _FLAGS if key not in template.source)
        self._manner: Manner | None = None
        self._patterns: dict[PatternKey, list[Trace]] = {}
        self._traces = 0
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

        The completion begins where the assistant's first turn in it does. Where that is not known, or it is not the
        assistant who begins it, see `completion_start`. It begins at 0 without a prompt, at the text's end without a
        completion.

        Args:
            prompt: messages; may be empty if the completion is not.
            completion: messages; may be empty if the prompt is not.
            tools: tool schemas.

        Raises:
            RowRejectedError: the template refused the row (`template_error`) or was stopped on it (`template_limit`);
                something that the row says is not in the text (`lost_content`); `train` flags of the completion
                differ and its turns are not known (`train_flags`).
            TemplateError: the template needs a date and none is pinned, or was stopped.
        """
        if not self._trace:
            self.rendered += 1
            return self.exact(prompt, completion, tools)
        result = self._traced(prompt, completion) if self._traceable and tools is None else None
        if result is not None:
            self.traced += 1
        else:
            self.rendered += 1
            try:
                result = self._marked(prompt, completion, tools, exact=False)
            except RowRejectedError:
                return self.exact(prompt, completion, tools)  # it has the last word on who is refused
        if not _chosen(result.text):
            return result
        try:
            truth = self.exact(prompt, completion, tools)
        except RowRejectedError:
            self.mismatches += 1
            raise
        self.mismatches += truth != result and not same(truth, result)
        return truth

    def exact(self, prompt: Messages, completion: Messages, tools: list[dict[str, Any]] | None = None) -> Rendered:
        """The same by the exact way. Counts nothing."""
        return self._marked(prompt, completion, tools, exact=True)

    @property
    def manner(self) -> Manner:
        """What the template does with a conversation of two messages."""
        if self._manner is None:
            self._manner = self._probe()
        return self._manner

    def _only_flags(self, message: Message) -> bool:
        """Whether a message has, besides role and content, only flags that say nothing and the template never sees."""
        extra = len(message) - 2
        for key in self._unseen:
            if key in message:
                extra -= 1
        return extra == 0 and trained(message)

    def _marked(
        self, prompt: Messages, completion: Messages, tools: list[dict[str, Any]] | None, *, exact: bool
    ) -> Rendered:
        marker, manner = self._marker, self.manner
        messages = self._keeper.joined(prompt + completion)
        truth = self.template.render(messages, tools) if exact else ""
        chat, own_tools = marker.own(messages), marker.tools(tools)
        marked = marker.render(chat, own_tools)
        text, words = truth if exact else marked.text, marked.words
        if marked.text == text:
            dropped = self._keeper.check(messages, tools, text, words, marked.tools)
        else:
            dropped = self._keeper.check(messages, tools, text, (), ())
        roles: list[Any] = [message.get("role") for message in messages]
        flags = [trained(message) for message in messages]
        calls = [index for index, one in enumerate(messages) if one.get("tool_calls") or one.get("function_call")]
        cut, count = len(prompt), len(messages)
        heads: dict[int, str] = {}

        def head(index: int) -> str:
            if index not in heads:
                if exact:
                    heads[index] = self.template.render(messages[:index], tools, add_generation_prompt=True)
                else:
                    heads[index] = marker.render(bare(index), own_tools, add_generation_prompt=True).text
            return heads[index]

        def bare(index: int) -> Messages:
            """Messages without the memory of ropes, where they are texts alone: they render in half the time."""
            return [one if is_plain(one) else owned for one, owned in zip(messages[:index], chat, strict=False)]

        def head_words(index: int) -> list[Word] | None:
            try:
                made = marker.render(chat[:index], own_tools, add_generation_prompt=True)
            except RowRejectedError:
                return None
            return made.words if made.text == head(index) else None

        def checked_head(index: int) -> tuple[str, Callable[[], list[Word]]]:
            try:
                own = head(index)
            except RowRejectedError as error:
                if index == cut:
                    raise
                raise UnprovedError("the template refuses the messages before it", index) from error

            def find_words() -> list[Word]:
                found = head_words(index)
                if found is None:
                    raise UnprovedError(_NOT_FOLLOWED, index)
                return found

            return own, find_words

        def own_text() -> tuple[str, int]:
            own = head(cut)
            if text.startswith(own):
                return own, 0
            return own, max((end for _, end, _ in head_words(cut) or ()), default=0)

        try:
            if marked.text != text:
                words = []
                raise UnprovedError(_NOT_FOLLOWED)
            if manner.generation:
                if sum(code < 0 for _, _, code in words) != marked.blocks:
                    raise UnprovedError("what a generation block wrote was changed by the template")
                turns = generated_turns(text, words, roles, manner)
            else:
                turns = find_turns(text, words, roles, cut, manner, checked_head, calls=calls)
            begin, rewritten = len(text) if cut else 0, False
            if 0 < cut < count:
                begin, rewritten = completion_start(text, words, cut, count, turns, *own_text(), manner)
            if any(turn.begin < begin < turn.end for turn in turns):
                raise UnprovedError("the completion begins within a turn")
        except UnprovedError as error:
            begin, rewritten = len(text) if cut else 0, False
            if 0 < cut < count:
                begin, rewritten = completion_start(text, words, cut, count, [], *own_text(), manner)
            if len(set(flags[cut:])) > 1:
                raise RowRejectedError(
                    "train_flags",
                    "some messages of the completion say `train: false` and others do not, and the template does not "
                    f"show where each of them lies ({error.reason}); split the row",
                ) from None
            where = f"message {error.message + 1}: " if error.message >= 0 else ""
            runs = unproved_runs(begin, len(text), min(cut, count - 1), all(flags[:cut]), all(flags[cut:]))
            return Rendered(
                text, begin, prompt_apart(runs, begin, cut, words), where + error.reason, dropped, rewritten
            )
        runs = runs_of(turns, begin, len(text), cut, roles, flags, words)
        return Rendered(text, begin, prompt_apart(runs, begin, cut, words), "", dropped, rewritten)

    def _traced(self, prompt: Messages, completion: Messages) -> Rendered | None:
        """What a trace gives, or None for a row that cannot be traced."""
        roles: list[str] = []
        contents: list[str] = []
        for message in prompt + completion:
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
            return self._by_path((len(prompt), tuple(roles)), contents) if roles else None
        except TemplateLimitError:
            return None

    def _by_path(self, key: PatternKey, contents: list[str]) -> Rendered | None:
        traces = self._patterns.setdefault(key, [])
        for index, trace in enumerate(traces):
            values = trace.values(contents)
            if values is not None:
                if index:  # at most one trace is a row's: their order is a matter of speed
                    traces[index - 1 : index + 1] = trace, traces[index - 1]
                return trace.rendered(contents, values)
        try:
            if self._tracer is None:
                self._tracer = Tracer(self.template, self.manner, self._allow_lost)
        except TraceAbortedError:
            self._traceable = False  # whatever the row
            return None
        trace = self._tracer.trace(key[1], contents, key[0])
        if self._traces >= MAX_TRACES:
            self._patterns = {key: (traces := [])}
            self._traces = 0
        elif len(traces) >= MAX_PATHS:
            self._traces -= len(traces)
            traces.clear()
        traces.append(trace)
        self._traces += 1
        values = trace.values(contents)
        return trace.rendered(contents, values) if values is not None else None

    def _probe(self) -> Manner:
        special = [v for k, v in self.template.variables.items() if k.endswith("_token") and isinstance(v, str)]
        opening, closing = "", None
        stops = stop_pattern((*self._stops, *special))
        asked: Messages = [{"role": "user", "content": "a"}]
        said: Messages = [*asked, {"role": "assistant", "content": "b"}]
        try:
            alone = self.template.render(asked)
            opened = self.template.render(asked, add_generation_prompt=True)
            if opened.startswith(alone):
                opening = opened[len(alone) :]
            marked = self._marker.render(self._marker.own(said), None)
            if marked.words and marked.words[-1][2] >= 0:
                closing = marked.text[max(end for _, end, code in marked.words if code >= 0) :]
                if stops is None or not stops.search(closing):
                    others = stop_pattern((*self._others, *self._stops, *special))
                    if others is not None and others.search(closing):
                        stops = others
        except PacktrainError:
            pass  # it refuses so plain a conversation: rows must show by themselves
        return Manner(opening, closing, stops, self.template.marks_generation)


def _chosen(text: str) -> bool:
    """Whether a row is rendered exactly as well. A hash of the whole text would take longer than a trace."""
    size = len(text)
    looked = text[size >> 1 : (size >> 1) + _LOOKED].encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_intdigest(looked, seed=size) & CHECK == 0


def trained(message: Message) -> bool:
    """What a message's own flag says: false with `train: false` or a `weight` of 0."""
    return message.get("train") is not False and message.get("weight") != 0


def same(first: Rendered, second: Rendered) -> bool:
    """Whether two renderings say the same."""
    if first._replace(runs=second.runs) != second:
        return False
    return solid(first.runs) == solid(second.runs)
