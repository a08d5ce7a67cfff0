"""Renders an example and records what each part of its text is. Uses a trace where that is safe, else jinja2.

A conversation is rendered once, with tracked contents: that gives its text and where its words stand. The messages
before a turn are rendered alone only where the template's generation prompt is not found in the text before the turn's
words. A trace is a program for one path that rows take through the template; see `trace`.

A row's result depends only on the row and the template, never on the rows before it: of what rows show, only traces are
kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from typing import Any

import msgspec
import xxhash
from jinja2 import nodes

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Messages
from .chat import Chat, UnprovedError
from .chat_template import ChatTemplate
from .losses import check_documents, check_losses
from .marked import Marked, Marker, Owned, TrackingEnvironment, own, with_other_thought
from .paint import painted, painted_unproved
from .profile import TemplateProfile, learn_profile
from .rendered import Rendered
from .trace import Traces
from .turns import completion_start, locate

CHECK = 0xFF
"""One row in 256 is also rendered by plain jinja2, chosen by the text's length and `_LOOKED` of its characters."""
_LOOKED = 48
MAX_VARIANTS = 64
"""Maximum number of sets of variables of rows whose renderers are kept; when it is reached, all are forgotten."""


class _Tally:
    """Counts that a renderer shares with its variants."""

    def __init__(self) -> None:
        self.traced = 0
        self.mismatches = 0


class Renderer:
    """Renders prompt and completion as one text, with its spans.

    Rows chosen by their text are compared with plain jinja2, and traces with the rendering by jinja2. `mismatches`
    counts those that differ: if it is not 0, the results must not be used.

    Args:
        template: the chat template.
        trace: False renders every row with jinja2.
        stops: the tokenizer's special tokens: one of these ends a turn.
        others: its other added tokens, in case the template ends turns with one of them.
        allow_lost: what the text may leave out, in the words of `tokenizer.allow_lost`.
        generation_stops: the tokens at which a generation with this model stops, as far as that is known.
    """

    def __init__(
        self,
        template: ChatTemplate,
        trace: bool = True,
        stops: Iterable[str] = (),
        others: Iterable[str] = (),
        allow_lost: Iterable[str] = (),
        generation_stops: Iterable[str] = (),
    ) -> None:
        self.template = template
        self._tally = _Tally()
        self._trace = trace
        self._stops, self._others = tuple(stops), tuple(others)
        self._allowed = frozenset(allow_lost)
        self._generation_stops = tuple(generation_stops)
        self._marker = Marker(template, TrackingEnvironment(template.name, template.date))
        self._variants: dict[str, Renderer] = {}

    @property
    def traced(self) -> int:
        """Rows rendered by a trace, including compared ones."""
        return self._tally.traced

    @property
    def mismatches(self) -> int:
        """Compared rows on which a trace or the tracking was wrong."""
        return self._tally.mismatches

    def for_row(
        self, variables: Mapping[str, Any] | None = None, documents: list[dict[str, Any]] | None = None
    ) -> "Renderer":
        """The renderer of rows with these variables and documents.

        What a template does is learnt for each set of variables that it reads, because they may change how its turns
        begin and end; documents do not.
        """
        read = {name: value for name, value in (variables or {}).items() if name in self.variable_names}
        renderer = self
        if read:
            key = msgspec.json.encode(read, order="sorted").decode()
            if key not in self._variants:
                if len(self._variants) >= MAX_VARIANTS:
                    self._variants.clear()
                self._variants[key] = self._copy(self.template.for_row(read))
            renderer = self._variants[key]
        if not documents:
            return renderer
        profile = renderer.manner
        renderer = renderer._copy(renderer.template.for_row(documents=documents))
        renderer.__dict__["manner"] = profile
        renderer._trace = False
        return renderer

    def _copy(self, template: ChatTemplate) -> "Renderer":
        renderer = copy(self)
        renderer.template = template
        renderer._marker = self._marker.for_template(template)
        renderer._variants = {}
        for learnt in ("manner", "_traces"):
            renderer.__dict__.pop(learnt, None)
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
                part of the row is not in the text (`lost_content`); `train` flags of the completion differ and its
                turns could not be located (`train_flags`).
            TemplateError: the template needs a date and none is pinned, or was stopped.
        """
        traced = None
        if self._trace and tools is None:
            traced = self._traces.rendered(prompt + completion, len(prompt))
        if traced is None:
            return self.untraced(prompt, completion, tools)
        self._tally.traced += 1
        if not _chosen(traced.text):
            return traced
        try:
            made = self.untraced(prompt, completion, tools)
        except RowRejectedError:
            self._tally.mismatches += 1
            raise
        self._tally.mismatches += made != traced
        return made

    def untraced(self, prompt: Messages, completion: Messages, tools: list[dict[str, Any]] | None = None) -> Rendered:
        """As a call, without a trace."""
        messages, marker = prompt + completion, self._marker
        seen = own(self.template.handed(messages))
        try:
            made = marker.render(seen.chat, tools)
        except RowRejectedError:
            self.template.render(messages, tools)  # raises, too, and knows nothing of tracked strings
            self._tally.mismatches += 1
            raise
        if _chosen(made.text):
            plain = None
            with suppress(RowRejectedError):
                plain = self.template.render(messages, tools)
            self._tally.mismatches += plain != made.text
        dropped, torn = self._losses(self.template.handed(messages), seen, tools, made)

        def some(indices: Sequence[int], prompted: bool) -> Marked:
            return marker.render([seen.chat[index] for index in indices], tools, add_generation_prompt=prompted)

        chat = Chat(seen, *made, len(prompt), self.manner, some)
        try:
            if torn is not None:
                raise torn
            turns, begin = locate(chat)
            return Rendered(made.text, begin, painted(chat, turns, begin), "", dropped)
        except UnprovedError as error:
            begin = completion_start(chat)
            return Rendered(made.text, begin, painted_unproved(chat, begin, str(error)), str(error), dropped)

    def prompt(self, messages: Messages, tools: list[dict[str, Any]] | None = None) -> str:
        """The text that a model continues: the messages, and the template's opening of an assistant's turn.

        Raises:
            RowRejectedError, TemplateError: see `__call__`.
        """
        seen = own(self.template.handed(messages))
        made = self._marker.render(seen.chat, tools, add_generation_prompt=True)
        self._losses(self.template.handed(messages), seen, tools, made)
        return made.text

    def _losses(
        self, messages: Messages, seen: Owned, tools: list[dict[str, Any]] | None, made: Marked
    ) -> tuple[tuple[str, ...], UnprovedError | None]:
        """See `check_losses` and `check_documents`.

        Args:
            messages: those of the row, as they are handed to the template.
        """

        def is_dropped(code: int) -> bool:
            changed = with_other_thought(messages, code)
            if changed is None:
                return False
            with suppress(RowRejectedError):
                return self._marker.render(own(changed).chat, tools).text == made.text
            return False

        dropped, torn = check_losses(seen, tools, made, self.template, self._allowed, is_dropped)
        lost = check_documents(self.template, made.text, self._allowed)
        return tuple(sorted({*dropped, *lost})), torn

    @cached_property
    def variable_names(self) -> frozenset[str]:
        """The names of variables in the template; other variables do not change its text."""
        return frozenset(node.name for node in self._marker.tree.find_all(nodes.Name))

    @cached_property
    def read_names(self) -> frozenset[str]:
        """The names and literals of the template: other keys of a message are not read."""
        attributes = (node.attr for node in self._marker.tree.find_all(nodes.Getattr))
        literals = (node.value for node in self._marker.tree.find_all(nodes.Const) if isinstance(node.value, str))
        return frozenset((*attributes, *literals))

    @cached_property
    def manner(self) -> TemplateProfile:
        """What the template does with fixed sample conversations."""
        return learn_profile(self._marker, self._stops, self._others, self._generation_stops)

    @cached_property
    def _traces(self) -> Traces:
        return Traces(self.template, self.manner)


def _chosen(text: str) -> bool:
    """Whether to compare a row. Decided from part of the text, because hashing all of it takes longer than a trace."""
    size = len(text)
    looked = text[size >> 1 : (size >> 1) + _LOOKED].encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_intdigest(looked, seed=size) & CHECK == 0
