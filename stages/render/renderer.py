"""Renders an example and records what each part of its text is. Uses a trace where that is safe, else jinja2.

A conversation is rendered once, with tracked contents: that gives its text and its source spans. The messages before a
turn are rendered alone only where the template's generation prompt is not found in the text before the turn's contents.
A trace is a program for one path that rows take through the template; see `trace`.

    "Hi" | "Hello"  ->  Rendered(
                            text="<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nHello<|im_end|>\\n",
                            completion_begin=52,
                            spans=(PROMPT to 52, ASSISTANT to 57, END to 67, COMPLETION to 68), ...)

A row's result depends only on the row and the template, never on the rows before it: of what rows show, only traces are
kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property, partial
from typing import Any

import msgspec
from jinja2 import nodes

from ...schemas.digests import text_number
from ...schemas.errors import RowRejectedError
from ...schemas.rows import Messages
from ..template.chat_template import ChatTemplate
from ..template.profile import TemplateProfile, learn_profile
from ..template.tracked_messages import TrackedMessages, track_messages
from ..template.tracked_template import TrackedRendering, TrackedTemplate, TrackingEnvironment
from .lost_content import check_lost_content
from .rendered import Rendered
from .rendered_chat import RenderedChat, UnprovedError
from .span_labels import label_spans, label_unproved_spans
from .trace import Traces
from .turns import completion_start, locate_turns

CHECK_MASK = 0xFF
"""One row in 256 is also rendered by plain jinja2: one whose hash has 0 in these bits. See `_is_compared`."""
_HASHED_CHARACTERS = 48
"""Characters in the middle of a text that are hashed, with the text's length."""
MAX_VARIANTS = 64
"""Maximum number of sets of variables of rows whose renderers are kept; when it is reached, all are forgotten."""


class _Counts:
    """What a renderer counts. Its variants, which are copies of it, have the same object and so add to it."""

    def __init__(self) -> None:
        self.traced = 0
        self.mismatches = 0


class Renderer:
    """Renders prompt and completion as one text, with its spans.

    One row in 256, chosen by its text, is rendered twice and compared: a trace with the tracked rendering, and that
    with plain jinja2. `mismatches` counts rows that differ: if it is not 0, the results must not be used.

    Args:
        template: the chat template.
        trace: False renders every row with jinja2.
        special_tokens: the tokenizer's special tokens: one of these ends a turn.
        added_tokens: its other added tokens, in case the template ends turns with one of them.
        allow_lost: what the text may leave out, in the words of `tokenizer.allow_lost`.
        generation_stops: the tokens at which a generation with this model stops, as far as that is known.
    """

    def __init__(
        self,
        template: ChatTemplate,
        trace: bool = True,
        special_tokens: Iterable[str] = (),
        added_tokens: Iterable[str] = (),
        allow_lost: Iterable[str] = (),
        generation_stops: Iterable[str] = (),
    ) -> None:
        self.template = template
        self._counts = _Counts()
        self._trace = trace
        self._special_tokens = tuple(special_tokens)
        self._added_tokens = tuple(added_tokens)
        self._allow_lost = frozenset(allow_lost)
        self._generation_stops = tuple(generation_stops)
        self._tracked_template = TrackedTemplate(template, TrackingEnvironment(template.name, template.date))
        self._variants: dict[str, Renderer] = {}

    @property
    def traced(self) -> int:
        """Rows rendered by a trace, including compared ones."""
        return self._counts.traced

    @property
    def mismatches(self) -> int:
        """Compared rows on which a trace or the tracking was wrong."""
        return self._counts.mismatches

    def for_row(
        self, variables: Mapping[str, Any] | None = None, documents: list[dict[str, Any]] | None = None
    ) -> "Renderer":
        """The renderer of rows with these variables and documents.

        A profile is learnt for each set of variables that the template reads, because they may change how its turns
        begin and end; documents do not.
        """
        renderer = self._with_variables(variables or {})
        if not documents:
            return renderer
        # Not kept as a variant, and not traced: both would hold the documents of one row.
        copy_for_row = renderer._copy_for(renderer.template.for_row(documents=documents))
        copy_for_row._trace = False
        # `profile` is a cached property: set here, it is not learnt for each row. Its samples have no documents.
        copy_for_row.__dict__["profile"] = renderer.profile
        return copy_for_row

    def _with_variables(self, variables: Mapping[str, Any]) -> "Renderer":
        """The renderer of rows with some variables: this one, if the template reads none of them."""
        read_variables = {name: value for name, value in variables.items() if name in self.variable_names}
        if not read_variables:
            return self
        key = msgspec.json.encode(read_variables, order="sorted").decode()
        if key not in self._variants:
            if len(self._variants) >= MAX_VARIANTS:
                self._variants.clear()
            self._variants[key] = self._copy_for(self.template.for_row(read_variables))
        return self._variants[key]

    def _copy_for(self, template: ChatTemplate) -> "Renderer":
        """A renderer of the same source with other variables or documents, which is counted with this one."""
        renderer = copy(self)
        renderer.template = template
        # Compiled once: templates of one source differ only in what they are rendered with.
        renderer._tracked_template = self._tracked_template.with_template(template)
        renderer._variants = {}
        # Cached properties that were learnt with other variables. `variable_names` and `read_names` stay,
        # because they depend on the source alone.
        for name in ("profile", "_traces"):
            renderer.__dict__.pop(name, None)
        return renderer

    def __call__(
        self,
        prompt: Messages,
        completion: Messages,
        tools: list[dict[str, Any]] | None = None,
    ) -> Rendered:
        """The text of prompt and completion, the character at which the completion begins, and the spans.

        Args:
            prompt: messages; may be empty if the completion is not.
            completion: messages; may be empty if the prompt is not.
            tools: tool schemas.

        Raises:
            RowRejectedError: the template refused the row (`template_error`);
                part of the row is not in the text (`lost_content`), or what a message of an unusual role says
                (`unknown_role`, `call_role`); words of the prompt stand in the completion (`unproved`); `train` flags
                of the completion differ and its turns could not be located (`train_flags`).
            TemplateError: the template needs a date and none is pinned, or was stopped.
        """
        traced = None
        # A trace knows roles and contents only: it is made without tools.
        if self._trace and tools is None:
            traced = self._traces.rendered(prompt + completion, len(prompt))
        if traced is None:
            return self.untraced(prompt, completion, tools)
        self._counts.traced += 1
        if not _is_compared(traced.text):
            return traced
        try:
            untraced = self.untraced(prompt, completion, tools)
        except RowRejectedError:
            # A row that has a trace is never refused by jinja2: one of the two is wrong.
            self._counts.mismatches += 1
            raise
        self._counts.mismatches += untraced != traced  # True adds 1
        return untraced

    def untraced(self, prompt: Messages, completion: Messages, tools: list[dict[str, Any]] | None = None) -> Rendered:
        """The rendering of a row by jinja2, without a trace. Arguments are those of `__call__`.

        Raises:
            RowRejectedError, TemplateError: for the same reasons as `__call__`.
        """
        messages = prompt + completion
        tracked = self._track(messages)
        rendering = self._render_checked(messages, tracked, tools)
        losses = check_lost_content(tracked, rendering, self.template, tools=tools or (), allowed=self._allow_lost)

        # Called with the other two arguments: indices of messages, and whether there is a generation prompt.
        render = partial(self._render_selected, tracked, tools)
        chat = RenderedChat(
            tracked=tracked,
            text=rendering.text,
            source_spans=rendering.source_spans,
            prompt_length=len(prompt),
            profile=self.profile,
            render=render,
        )
        try:
            # Raised here, because such a row is treated like one in which `locate_turns` fails.
            if losses.unproved is not None:
                raise losses.unproved
            turns, completion_begin = locate_turns(chat)
            spans = label_spans(chat, turns, completion_begin)
            return Rendered(rendering.text, completion_begin, spans, unproved="", lost=losses.allowed)
        except UnprovedError as error:
            # The masks `completion` and `all` need no turns, so the row may still be trained.
            completion_begin = completion_start(chat)
            spans = label_unproved_spans(chat, completion_begin, reason=str(error))
            return Rendered(rendering.text, completion_begin, spans, unproved=str(error), lost=losses.allowed)

    def _render_selected(
        self,
        tracked: TrackedMessages,
        tools: list[dict[str, Any]] | None,
        indices: Sequence[int],
        add_generation_prompt: bool,
    ) -> TrackedRendering:
        """Some messages of a row, rendered without the others.

        Args:
            tracked: all messages of the row.
            tools: the row's tool schemas.
            indices: of the messages to render.

        Raises:
            RowRejectedError: the template refuses these messages alone.
        """
        messages = [tracked.for_template[index] for index in indices]
        return self._tracked_template.render(messages, tools, add_generation_prompt=add_generation_prompt)

    def prompt(self, messages: Messages, tools: list[dict[str, Any]] | None = None) -> str:
        """The text that a model continues: the messages, and the template's opening of an assistant's turn.

        Raises:
            RowRejectedError: the template refused the messages (`template_error`), or part of them is not in the text
                (`lost_content`).
            TemplateError: the template needs a date and none is pinned, or was stopped.
        """
        tracked = self._track(messages)
        rendering = self._tracked_template.render(tracked.for_template, tools, add_generation_prompt=True)
        # Called only for what it raises.
        check_lost_content(tracked, rendering, self.template, tools=tools or (), allowed=self._allow_lost)
        return rendering.text

    def _track(self, messages: Messages) -> TrackedMessages:
        # Arguments of calls get their form before they are tracked: JSON would lose where they came from.
        return track_messages(self.template.with_call_arguments(messages))

    def _render_checked(
        self, messages: Messages, tracked: TrackedMessages, tools: list[dict[str, Any]] | None
    ) -> TrackedRendering:
        """Render tracked messages, and compare some rows with plain jinja2.

        Args:
            messages: the same without tracking.
        """
        try:
            rendering = self._tracked_template.render(tracked.for_template, tools)
        except RowRejectedError:
            # Plain jinja2 should refuse the row here, too, with an error that does not speak of tracked strings. If it
            # renders the row, the tracking is wrong.
            self.template.render(messages, tools)
            self._counts.mismatches += 1
            raise
        if _is_compared(rendering.text):
            plain_text = None  # stays None if plain jinja2 refuses the row: a mismatch
            with suppress(RowRejectedError):
                plain_text = self.template.render(messages, tools)
            self._counts.mismatches += plain_text != rendering.text  # True adds 1
        return rendering

    @cached_property
    def variable_names(self) -> frozenset[str]:
        """The names of variables in the template; other variables do not change its text."""
        return frozenset(node.name for node in self._tracked_template.tree.find_all(nodes.Name))

    @cached_property
    def read_names(self) -> frozenset[str]:
        """The names and literals of the template: other keys of a message are not read."""
        tree = self._tracked_template.tree
        attributes = (node.attr for node in tree.find_all(nodes.Getattr))
        literals = (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
        return frozenset((*attributes, *literals))

    @cached_property
    def profile(self) -> TemplateProfile:
        """What the template does with fixed sample conversations."""
        return learn_profile(self._tracked_template, self._special_tokens, self._added_tokens, self._generation_stops)

    @cached_property
    def _traces(self) -> Traces:
        """The traces of the template with its variables, made as rows need them."""
        return Traces(self.template, self.profile)


def _is_compared(text: str) -> bool:
    """Whether to compare a row. Decided from part of the text, because hashing all of it takes longer than a trace."""
    length = len(text)
    middle = length // 2
    hashed = text[middle : middle + _HASHED_CHARACTERS].encode("utf-8", "surrogatepass")
    return text_number(hashed, seed=length) & CHECK_MASK == 0
