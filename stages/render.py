"""Renders an example and says what each part of its text is: by tracing where that is proved, or by jinja2.

Three ways, each held against the one above it:

1. *Exactly*: jinja2 renders the conversation; a second rendering, whose contents remember where they came from, must
   give the same text and says where the words lie; renderings of prefixes say where turns begin. Slow, and the truth.
2. *Marked*: the second rendering alone, and openings that were proved often enough are not proved again.
3. *Traced*: a pattern is the number of prompt messages and all the roles. From its second row on, rows are answered by
   traces, one for each path through the template that rows have taken.

The first rows and a sample of the others are answered exactly as well. On a difference the way is given up.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from ..schemas.errors import PacktrainError, RowRejectedError
from ..schemas.rows import Message, Messages
from .compiled import Trace
from .kept import Keeper
from .marks import Marked, Marker
from .rendered import Rendered, runs_of, solid, unproved_runs
from .symbol import TraceAbortedError
from .template import ChatTemplate
from .trace import Tracer
from .turns import MESSAGE, Manner, Turn, UnprovedError, Word, common_prefix, find_turns, generated_turns, stop_pattern

PatternKey: TypeAlias = tuple[int, tuple[str, ...]]
"""(messages in the prompt, roles of all messages)."""

CHECKED_ROWS = 4
"""So many first rows of every trace, and of the marked way, are compared with the exact one."""
MAX_ATTEMPTS = 16
"""So many traces of one pattern are tried."""
MAX_FAILURES = 2
"""So many attempts may fail before the first trace of a pattern is made."""
MAX_PATTERNS = 4096
"""So many patterns are told apart; rows of others are rendered by jinja2."""

_FLAGS = ("train", "weight")
_NOT_FOLLOWED = "the template looks at its contents in a way that cannot be followed"


class _Pattern:
    """The traces of one pattern of roles."""

    __slots__ = ("attempts", "traces")

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.attempts = 0


class Renderer:
    """Renders prompt and completion as one text, with its runs.

    What differs from the exact way on a compared row is never used again, nor is its pattern traced again; such a row
    gets the exact answer. `suspects` then counts the rows that had been answered unchecked: where it is not 0, a
    caller must render them again with `trace=False`.

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
        """Compared rows on which a quick way was wrong."""
        self.suspects = 0
        """Rows that went out unchecked and may be wrong, as was found out later."""
        self.untraced: dict[PatternKey, str] = {}
        """Why patterns were given up."""
        self._trace = trace
        self._stops = tuple(stops)
        self._others = tuple(others)
        self._allow_lost = tuple(allow_lost)
        self._keeper = Keeper(template, self._allow_lost)
        self._quick = trace
        self._checked = 0
        self._unchecked = 0
        self._marker = Marker(template)
        self._unseen = tuple(key for key in _FLAGS if key not in template.source)
        self._manner: Manner | None = None
        self._patterns: dict[PatternKey, _Pattern] = {}
        self._tracer: Tracer | None = None
        self._traceable = trace

    def __reduce__(self) -> tuple[type["Renderer"], tuple[Any, ...]]:
        return type(self), (self.template, self._trace, self._stops, self._others, self._allow_lost)

    def __call__(
        self,
        prompt: Messages,
        completion: Messages,
        tools: list[dict[str, Any]] | None = None,
        check: bool = False,
    ) -> Rendered:
        """The text of prompt and completion, the character at which the completion begins, and the runs.

        The completion begins where the assistant's first turn in it does. Where that is not known, or it is not the
        assistant who begins it, it begins behind the longest common prefix of the whole text and the prompt's own
        text with its generation prompt; at 0 without a prompt, at the text's end without a completion.

        Args:
            prompt: messages; may be empty if the completion is not.
            completion: messages; may be empty if the prompt is not.
            tools: tool schemas.
            check: compare with the exact way.

        Raises:
            RowRejectedError: the template refused the row (`template_error`) or was stopped on it (`template_limit`);
                something that the row says is not in the text (`lost_content`); `train` flags of the completion
                differ and its turns are not known (`train_flags`).
            TemplateError: the template needs a date and none is pinned, or was stopped.
        """
        if self._traceable and tools is None:
            roles: list[str] = []
            contents: list[str] = []
            try:
                for message in prompt + completion:
                    role = message["role"]
                    content = message["content"]
                    if type(content) is not str or type(role) is not str:
                        break
                    if len(message) != 2 and not self._only_flags(message):
                        break
                    roles.append(role)
                    contents.append(content)
                else:
                    if roles:
                        return self._traced((len(prompt), tuple(roles)), contents, prompt, completion, check)
            except (KeyError, TypeError):
                pass  # not the plain kind of message: jinja2 says what is wrong with it
        return self._by_jinja(prompt, completion, tools, check)

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

    def _by_jinja(
        self, prompt: Messages, completion: Messages, tools: list[dict[str, Any]] | None, check: bool
    ) -> Rendered:
        self.rendered += 1
        if not self._quick:
            return self._marked(prompt, completion, tools, exact=True)
        result = self._marked(prompt, completion, tools, exact=False)
        if not check and self._checked >= CHECKED_ROWS:
            self._unchecked += 1
            return result
        truth = self._marked(prompt, completion, tools, exact=True)
        if same(truth, result):
            self._checked += 1
            return result
        self.mismatches += 1
        self.suspects += self._unchecked
        self._quick = False
        return truth

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
        heads: dict[int, Marked] = {}

        def head(index: int) -> Marked:
            if index not in heads:
                made = marker.render(chat[:index], own_tools, add_generation_prompt=True)
                if exact:
                    whole = self.template.render(messages[:index], tools, add_generation_prompt=True)
                    made = made if made.text == whole else Marked(whole, [], -1)
                heads[index] = made
            return heads[index]

        def checked_head(index: int) -> tuple[str, list[Word]]:
            try:
                made = head(index)
            except RowRejectedError as error:
                if index == cut:
                    raise
                raise UnprovedError("the template refuses the messages before it", index) from error
            if made.blocks < 0:
                raise UnprovedError(_NOT_FOLLOWED, index)
            return made.text, made.words

        try:
            if exact and marked.text != text:
                raise UnprovedError(_NOT_FOLLOWED)
            if manner.generation:
                if sum(code < 0 for _, _, code in words) != marked.blocks:
                    raise UnprovedError("what a generation block wrote was changed by the template")
                turns = generated_turns(text, words, roles, manner)
            else:
                turns = find_turns(text, words, roles, cut, manner, checked_head, calls=calls, trust=not exact)
            begin = len(text) if cut else 0
            if 0 < cut < count:
                begin = self._begin(text, words, roles, cut, turns, head, trust=not exact)
            if any(turn.begin < begin < turn.end for turn in turns):
                raise UnprovedError("the completion begins within a turn")
        except UnprovedError as error:
            begin = len(text) if cut else 0
            if 0 < cut < count:
                begin = common_prefix(head(cut).text, text)
            if len(set(flags[cut:])) > 1:
                raise RowRejectedError(
                    "train_flags",
                    "some messages of the completion say `train: false` and others do not, and the template does not "
                    f"show where each of them lies ({error.reason}); split the row",
                ) from None
            where = f"message {error.message + 1}: " if error.message >= 0 else ""
            runs = unproved_runs(begin, len(text), min(cut, count - 1), all(flags[:cut]), all(flags[cut:]))
            return Rendered(text, begin, runs, where + error.reason, dropped)
        return Rendered(text, begin, runs_of(turns, begin, len(text), cut, roles, flags, words), "", dropped)

    def _begin(
        self,
        text: str,
        words: Sequence[Word],
        roles: Sequence[Any],
        cut: int,
        turns: list[Turn],
        head: Callable[[int], Marked],
        *,
        trust: bool,
    ) -> int:
        """Where the completion begins."""
        turn = next((turn for turn in turns if turn.message == cut), None)
        if turn is None:
            return common_prefix(head(cut).text, text)
        if not self.manner.generation:
            return turn.begin
        low = max(
            *(end for _, end, code in words if code >= 0 and code >> MESSAGE < cut and end <= turn.begin),
            *(earlier.end for earlier in turns if earlier.message < cut),
            0,
            0,
        )
        before = text[low : turn.begin]
        offset = self.manner.trusted(roles[cut - 1], before) if trust else None
        if offset is None:
            # Alone the prompt may be rendered otherwise; but what is marked as an earlier turn is no completion.
            shared = common_prefix(head(cut).text, text)
            offset = max(min(shared, turn.begin), low) - low
            if trust and shared >= low:
                self.manner.saw(roles[cut - 1], before, offset)
        return low + offset

    def _traced(
        self, key: PatternKey, contents: list[str], prompt: Messages, completion: Messages, check: bool
    ) -> Rendered:
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
                made = self._attempt(key, pattern, contents)
                result = made.run(contents) if made is not None else None
                if made is not None and result is not None:
                    return self._compared(key, pattern, made, result, prompt, completion)
        return self._by_jinja(prompt, completion, None, check)

    def _attempt(self, key: PatternKey, pattern: _Pattern, contents: list[str]) -> Trace | None:
        pattern.attempts += 1
        try:
            if self._tracer is None:
                try:
                    self._tracer = Tracer(self.template, self.manner, self._allow_lost)
                except TraceAbortedError:
                    self._traceable = False
                    raise
            trace = self._tracer.trace(key[1], contents, key[0])
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
        result: Rendered,
        prompt: Messages,
        completion: Messages,
    ) -> Rendered:
        refusal: RowRejectedError | None = None
        truth: Rendered | None = None
        try:
            truth = self.exact(prompt, completion)
        except RowRejectedError as error:
            refusal = error
        if truth is not None and same(truth, result):
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

    def _probe(self) -> Manner:
        special = [v for k, v in self.template.variables.items() if k.endswith("_token") and isinstance(v, str)]
        manner = Manner(stops=stop_pattern((*self._stops, *special)), generation=self.template.marks_generation)
        asked: Messages = [{"role": "user", "content": "a"}]
        said: Messages = [*asked, {"role": "assistant", "content": "b"}]
        try:
            alone = self.template.render(asked)
            opened = self.template.render(asked, add_generation_prompt=True)
            if opened.startswith(alone):
                manner.opening = opened[len(alone) :]
            marked = self._marker.render(self._marker.own(said), None)
        except PacktrainError:
            return manner  # it refuses so plain a conversation: rows must show by themselves
        if marked.words and marked.words[-1][2] >= 0:
            manner.closing = marked.text[max(end for _, end, code in marked.words if code >= 0) :]
            if manner.stops is None or not manner.stops.search(manner.closing):
                others = stop_pattern((*self._others, *self._stops, *special))
                if others is not None and others.search(manner.closing):
                    manner.stops = others
        return manner


def trained(message: Message) -> bool:
    """What a message's own flag says: false with `train: false` or a `weight` of 0."""
    return message.get("train") is not False and message.get("weight") != 0


def same(first: Rendered, second: Rendered) -> bool:
    """Whether two renderings say the same. Why nothing is proved may be said otherwise."""
    if first.text != second.text or first.begin != second.begin or first.dropped != second.dropped:
        return False
    return solid(first.runs) == solid(second.runs)
