"""Renders an example and records what each part of its text is. Uses a trace where that is safe, else jinja2.

There are three ways, each checked against the one above it:

1. *Exact*: jinja2 renders the conversation; a second rendering with tracked contents must give the same text and
   locates the words; renderings of prefixes locate the beginnings of turns. This is slow, and the reference.
2. *Marked*: only the second rendering.
3. *Traced*: a program for each path that rows take through the template; see `trace`.

A row's result depends only on the row and the template, never on the rows before it. Only values that do not depend on
earlier rows are kept between rows: traces, and the JSON of tools.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import xxhash

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Message, Messages
from .assistant_turns import TemplateProfile, UnprovedError, Word
from .chat_template import ChatTemplate
from .completion_start import completion_start
from .dropped_content import TemplateCapabilities
from .limits import TemplateLimitError
from .profile import ending_tokens, learn_profile
from .rendered import Rendered, locate, prompt_apart, runs_of, same, unproved_runs
from .symbolic_str import TraceAbortedError
from .trace import Trace, Tracer
from .tracking.marks import Marked, Marker
from .train_flags import PartFlag, flag_parts, flags_among, joined_words, loss_weight, part_flags, without_flags
from .turn_parts import divided, has_parts

PatternKey: TypeAlias = tuple[int, tuple[str, ...]]
"""(messages in the prompt, roles of all messages)."""

CHECK = 0xFF
"""One row in 256 is also rendered exactly, chosen by the text's length and `_LOOKED` of its characters."""
_LOOKED = 48
MAX_TRACES = 4096
"""Maximum number of traces to keep; when it is reached, all are forgotten."""
MAX_PATHS = 64
"""Maximum number of traces for one pattern."""

_FLAGS = ("train", "weight")
_NOT_FOLLOWED = "the template inspects contents in a way that cannot be followed"


class Renderer:
    """Renders prompt and completion as one text, with its runs.

    The fast ways are checked against the exact one on rows chosen by their text. `mismatches` counts those that differ:
    if it is not 0, the caller must render all rows again with `trace=False`.

    Args:
        template: the chat template.
        trace: False renders everything exactly.
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
        """Compared rows on which a fast way was wrong. They got the exact result."""
        self._trace = trace
        self._stops = tuple(stops)
        self._others = tuple(others)
        self._allow_lost = tuple(allow_lost)
        self._keeper = TemplateCapabilities(template, self._allow_lost)
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

        The completion begins where its first assistant turn begins. If that place is not known, or the completion
        begins with another role, see `completion_start`. Without a prompt it begins at 0; without a completion, at the
        text's end.

        Args:
            prompt: messages; may be empty if the completion is not.
            completion: messages; may be empty if the prompt is not.
            tools: tool schemas.

        Raises:
            RowRejectedError: the template refused the row (`template_error`) or was stopped on it (`template_limit`);
                part of the row is not in the text (`lost_content`); `train` flags of the completion differ and its
                turns could not be located (`train_flags`).
            TemplateError: the template needs a date and none is pinned, or was stopped.
        """
        if not self._trace:
            self.rendered += 1
            return self.exact(prompt, completion, tools)
        result = self._traced(prompt + completion, len(prompt)) if tools is None else None
        if result is not None:
            self.traced += 1
        else:
            self.rendered += 1
            try:
                result = self._marked(prompt, completion, tools, exact=False)
            except RowRejectedError:
                return self.exact(prompt, completion, tools)  # the exact way decides which rows are refused
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
        """Render exactly, without counting."""
        return self._marked(prompt, completion, tools, exact=True)

    def prompt(self, messages: Messages, tools: list[dict[str, Any]] | None = None) -> str:
        """The text that a model continues: the messages, and the template's opening of an assistant's turn.

        It is the text before the completion of the same conversation, unless the template renders a prompt differently
        alone (`Rendered.rewritten`).

        Raises:
            RowRejectedError, TemplateError: see `__call__`.
        """
        marker, joined = self._marker, without_flags(self._keeper.joined(messages))
        text = self.template.render(joined, tools, add_generation_prompt=True)
        marked = marker.render(marker.own(joined), marker.tools(tools), add_generation_prompt=True)
        followed = marked.text == text
        self._keeper.check(joined, tools, text, marked.words if followed else (), marked.tools if followed else ())
        return text

    def before(
        self, messages: Messages, indices: Sequence[int], tools: list[dict[str, Any]] | None = None
    ) -> list[str | None]:
        """The texts that a model continues at some messages, ascending: the messages before each, and the template's
        opening of an assistant's turn; None where the template refuses them. Unlike `prompt`, it does not ask whether
        the text holds all of them.

        Raises:
            TemplateError: see `ChatTemplate.render`.
        """
        marker = self._marker
        try:
            given = self._keeper.joined(messages)
            texts: list[str | None] = []
            for index in indices:
                found = self._followed(given[: index + 1], index) if tools is None and index else None
                texts.append(found[0].prompt(found[1]) if found is not None else None)
            if self._trace and None in texts:
                rest = [index for index, text in zip(indices, texts, strict=True) if text is None]
                made = iter(marker.texts_before(given, rest, marker.tools(tools)))
                texts = [next(made) if text is None else text for text in texts]
        except RowRejectedError:
            return [None] * len(indices)
        for number, (index, text) in enumerate(zip(indices, texts, strict=True)):
            if text is None or _chosen(text):  # the exact way decides which are refused
                truth = None
                with suppress(RowRejectedError):
                    truth = self.template.render(given[:index], tools, add_generation_prompt=True)
                self.mismatches += text is not None and truth != text
                texts[number] = truth
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

    def _only_flags(self, message: Message) -> bool:
        """Whether a message has, besides role and content, only flags that have no effect."""
        extra = len(message) - 2
        for key in self._unseen:
            if key in message:
                extra -= 1
        return extra == 0 and loss_weight(message) == 1

    def _marked(
        self, prompt: Messages, completion: Messages, tools: list[dict[str, Any]] | None, *, exact: bool
    ) -> Rendered:
        marker, manner = self._marker, self.manner
        given = messages = prompt + completion
        flagged: dict[int, PartFlag] = {}
        if list in [type(message.get("content")) for message in given]:
            flagged = part_flags(given)
            messages = without_flags(self._keeper.joined(given))
        truth = self.template.render(messages, tools) if exact else ""
        chat = marker.own(messages, joined_words(given, messages, flagged) if flagged else None)
        own_tools = marker.tools(tools)
        marked = marker.render(chat, own_tools, cuts=() if exact else (len(prompt),))
        text, words = truth if exact else marked.text, marked.words
        if marked.text == text:
            dropped = self._keeper.check(messages, tools, text, words, marked.tools)
        else:
            dropped = self._keeper.check(messages, tools, text, (), ())
        roles: list[Any] = [message.get("role") for message in messages]
        flags: list[float] = [True] * len(messages)
        calls = []
        for index, message in enumerate(messages):
            if len(message) > 2 or "content" not in message or "role" not in message:
                flags[index] = loss_weight(message)
                if message.get("tool_calls") or message.get("function_call"):
                    calls.append(index)
        cut, count = len(prompt), len(messages)
        heads: dict[int, str] = {}
        marked_heads: dict[int, Marked] = {}

        def head(index: int) -> str:
            if index not in heads and exact:
                heads[index] = self.template.render(messages[:index], tools, add_generation_prompt=True)
            elif index not in heads:
                heads[index] = marker.prompt(chat[:index], own_tools) or followed(index).text
            return heads[index]

        def followed(index: int) -> Marked:
            if index not in marked_heads:
                marked_heads[index] = marker.render(chat[:index], own_tools, add_generation_prompt=True)
            return marked_heads[index]

        def head_words(index: int) -> list[Word] | None:
            with suppress(RowRejectedError):
                made = followed(index)
                return made.words if made.text == head(index) else None
            return None

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
            turns, begin, rewritten = locate(
                text, words, roles, cut, manner, marked.blocks, checked_head, own_text, calls=calls
            )
        except UnprovedError as error:
            begin, rewritten = len(text) if cut else 0, False
            if 0 < cut < count:
                begin, rewritten = completion_start(text, words, cut, count, [], *own_text(), manner)
            after = flags_among(flags[cut:], flagged, range(cut, count))
            if len(after) > 1:
                raise RowRejectedError(
                    "train_flags",
                    "messages of the completion, or parts of them, have different `train` flags or weights, and the "
                    f"template does not show where each of them lies ({error.reason}); split the row",
                ) from None
            where = f"message {error.message + 1}: " if error.message >= 0 else ""
            before = min(flags_among(flags[:cut], flagged, range(cut)), default=True)
            runs = unproved_runs(begin, len(text), min(cut, count - 1), before, min(after, default=True))
            return Rendered(
                text, begin, prompt_apart(runs, begin, cut, words), where + error.reason, dropped, rewritten
            )
        runs, mixed = runs_of(turns, begin, len(text), cut, roles, flags, words), ""
        if has_parts(messages, manner.thoughts) or manner.thoughts.in_any([text]):
            runs, mixed = divided(
                text, runs, words, messages, manner.thoughts, self.template.source,
                lambda index, kind: self._keeper.writes(messages, tools, text, index, kind),
            )  # fmt: skip
        if flagged:
            runs = flag_parts(text, runs, words, flags, flagged, self.template.name)
        return Rendered(text, begin, prompt_apart(runs, begin, cut, words), "", dropped, rewritten, mixed)

    def _followed(self, messages: Messages, cut: int) -> tuple[Trace, list[str]] | None:
        """The trace of a conversation with a prompt of `cut` messages, and its values; None if it cannot be traced."""
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
        except TemplateLimitError:
            return None
        return (trace, values) if trace is not None and values is not None and not trace.why_not else None

    def _traced(self, messages: Messages, cut: int) -> Rendered | None:
        """The rendering by a trace, or None if the row cannot be traced."""
        found = self._followed(messages, cut)
        if found is None:
            return None
        trace, values = found
        try:
            rendered = trace.rendered(values)
            parts = trace.parts or self.manner.thoughts.in_any(values)
            if trace.complete and not parts:
                return rendered
            words = trace.words(values)
            if not trace.complete:
                dropped = self._keeper.check(messages, None, rendered.text, words, ())
                rendered = rendered._replace(dropped=dropped)
            if parts:
                runs, mixed = divided(
                    rendered.text, rendered.runs, words, messages, self.manner.thoughts, self.template.source,
                    lambda *_: False,
                )  # fmt: skip
                rendered = rendered._replace(runs=runs, mixed=mixed)
            return rendered
        except (TemplateLimitError, RowRejectedError):
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
    """Whether to render a row exactly too. Decided from part of the text, because hashing all of it takes longer than a
    trace.
    """
    size = len(text)
    looked = text[size >> 1 : (size >> 1) + _LOOKED].encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_intdigest(looked, seed=size) & CHECK == 0
