"""Finds, in every row, contents of the conversation that its rendered text lost, by its source spans.

Contents, tool calls and tools that are not in the text are lost. Such a row is refused unless the configuration allows
the loss. Reasoning may always be lost, because many templates drop it from earlier turns. The ledger counts all losses.

A content can also be kept without its origin, as `"%s" % content` keeps it: its source span is missing, but the text
has it elsewhere. That is no loss, but the turn it belongs to cannot be located.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from ...schemas.errors import RowRejectedError
from ..prep.sharegpt import CALLS_AND_RESULTS, nearest_role
from ..template.chat_template import ChatTemplate
from ..template.tracked_messages import ASSISTANT, TrackedMessages, is_blank, without_tags
from ..template.tracked_str import THOUGHT, TOOL_CALL, SourceSpan, call_number_of, message_of, origin_of
from ..template.tracked_template import TrackedRendering
from .rendered_chat import UnprovedError
from .written_calls import PLAIN_JSON, lost_part_of_calls, texts_in_call

LOST_CONTENT = "lost_content"
"""The ledger's reason for rows with lost content."""
LOST_REASONING = "reasoning"
"""The ledger's name for lost reasoning."""
ALLOWED_AS = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool_results",
}
"""Maps a role to the word of `tokenizer.allow_lost` for its contents."""


class LostContent:
    """Compares the contents of a row with its rendering.

    Args:
        tracked: the row's messages.
        rendering: the rendered conversation.
        template: the chat template, with the row's documents.
        is_thought_lost: whether the text stays the same with other letters in the thought of an origin.
    """

    def __init__(
        self,
        tracked: TrackedMessages,
        rendering: TrackedRendering,
        template: ChatTemplate,
        is_thought_lost: Callable[[int], bool],
    ) -> None:
        self._tracked = tracked
        self._rendering = rendering
        self._template = template
        self._is_thought_lost = is_thought_lost
        self._written = _texts_by_origin(rendering.text, rendering.source_spans)
        self._has_lost_reasoning = False
        self._lost: dict[str | None, str] = {}
        """By word of `tokenizer.allow_lost`, a description of the first loss; None for a role that has no word."""
        self._lost_role = ""
        """The first role that has no word, and of which a content is lost."""
        self.unproved: UnprovedError | None = None
        """Why the contents of a turn are not found whole and in one place, if so."""

    def check(self, tools: list[dict[str, Any]] | None, allowed: Set[str]) -> tuple[str, ...]:
        """The allowed losses of the row ("reasoning", and words of `tokenizer.allow_lost`). Sets `unproved`.

        Args:
            allowed: what may be lost, in the words of `tokenizer.allow_lost`.

        Raises:
            RowRejectedError: `lost_content`, if the template leaves anything else out.
        """
        # A template may write tool calls as it likes, so they are looked for apart from contents, part by part.
        for origin, content in self._tracked.contents.items():
            if origin & TOOL_CALL:
                self._check_call(origin, content)
            elif origin in self._written:
                self._check_written(origin, content, self._written[origin])
            else:
                self._check_unwritten(origin, content)
        self._check_parts_of_calls()
        self._check_tools(tools or ())
        refused = {kind: description for kind, description in self._lost.items() if kind not in allowed}
        if refused:
            raise _rejection(refused, allowed, self._template.name, self._lost_role)
        losses = {str(kind) for kind in self._lost}
        if self._has_lost_reasoning:
            losses.add(LOST_REASONING)
        losses.update(_lost_documents(self._template, self._rendering.text, allowed))
        return tuple(sorted(losses))

    def _check_written(self, origin: int, content: str, pieces: Sequence[str]) -> None:
        """Whether a content of which the text has some is there as a whole, and once."""
        # Quick, and true of almost all contents.
        if len(pieces) == 1 and len(pieces[0].strip()) >= len(content.strip()):
            return
        content_size = _size(content)
        written_size = sum(map(_size, pieces))
        role = self._tracked.roles[message_of(origin)]
        if written_size > content_size and role == ASSISTANT:
            self._set_unproved("the template writes its words more than once", origin)
        if written_size < content_size and not origin & THOUGHT:
            self._lose_content(origin, "all of ")

    def _check_unwritten(self, origin: int, content: str) -> None:
        """Whether a content without a source span is in the text all the same."""
        is_thought = bool(origin & THOUGHT)
        # The template may say itself what a content says. A thought could still be in the text, and would be taken for
        # the answer.
        if not self._is_between_spans(content, ignore_template=not is_thought):
            if is_thought:
                self._has_lost_reasoning = True
            else:
                self._lose_content(origin, "")
        elif is_thought and self._is_thought_lost(origin):
            self._has_lost_reasoning = True  # the template itself has the same words
        elif self._tracked.roles[message_of(origin)] == ASSISTANT:
            self._set_unproved("its words could not be followed into the text", origin)

    def _check_call(self, origin: int, call: Any) -> None:
        message = message_of(origin)
        all_calls = origin_of(message, 0, TOOL_CALL)
        if origin in self._written or all_calls in self._written:
            return  # `_check_parts_of_calls` looks for its parts
        if not self._is_between_spans(call, ignore_template=False):
            self._lost.setdefault("tool_calls", f"tool call {call_number_of(origin)} of message {message + 1}")
        elif self._tracked.roles[message] == ASSISTANT:
            self._set_unproved("its words could not be followed into the text", origin)

    def _check_parts_of_calls(self) -> None:
        for message in sorted(self._tracked.messages_with(TOOL_CALL)):
            part = "" if "tool_calls" in self._lost else lost_part_of_calls(self._tracked, message, self._rendering)
            if part:
                self._lost["tool_calls"] = f"{part!r:.80} of the tool calls of message {message + 1}"

    def _check_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        text = self._text_between_spans() if tools else ""
        lost_names = [name for name in map(_tool_name, tools) if name not in text]
        if lost_names:
            self._lost["tools"] = f"the tools {', '.join(lost_names)}"

    def _lose_content(self, origin: int, quantity: str) -> None:
        message = message_of(origin)
        role = self._tracked.roles[message]
        self._lost.setdefault(ALLOWED_AS.get(role), f"{quantity}what message {message + 1} ({role!r}) says")
        if role not in ALLOWED_AS:
            self._lost_role = self._lost_role or role

    def _set_unproved(self, reason: str, origin: int) -> None:
        self.unproved = self.unproved or UnprovedError(reason, message_of(origin))

    def _is_between_spans(self, content: Any, *, ignore_template: bool) -> bool:
        """Whether a content stands in the text outside of source spans, as it is or in JSON.

        Args:
            ignore_template: whether a content does not count that the template's source has, too.
        """
        texts = [content] if isinstance(content, str) else texts_in_call(content)
        words = [without_tags(text) for text in texts]
        if not words:
            return False
        between = self._text_between_spans()
        if not all(_is_written(text, between) for text in words):
            return False
        return not (ignore_template and all(text in self._template.source for text in words))

    def _text_between_spans(self) -> str:
        """What the text has between the source spans of messages."""
        text, source_spans = self._rendering
        pieces: list[str] = []
        end_before = 0
        # Spans 6..8 and 20..25 of 30 characters leave 0..6, 8..20 and 25..30. Of spans within one another, the end that
        # is farthest counts.
        for span in source_spans:
            if span.origin < 0:
                continue
            if end_before < span.begin:
                pieces.append(text[end_before : span.begin])
            end_before = max(end_before, span.end)
        if end_before < len(text):
            pieces.append(text[end_before:])
        # The separator is in no content, so none is found across a span.
        return "\0".join(pieces)


def _lost_documents(template: ChatTemplate, text: str, allowed: Set[str]) -> tuple[str, ...]:
    """The loss of a row's documents, if it is allowed: each must have one of its texts in the rendering.

    Raises:
        RowRejectedError: `lost_content`.
    """
    for number, document in enumerate(template.documents or (), 1):
        values = [value for value in document.values() if isinstance(value, str) and not is_blank(value)]
        words = [without_tags(value) for value in values]
        if not words or any(_is_written(value, text) for value in words):
            continue
        if "documents" in allowed:
            return ("documents",)
        raise _rejection({"documents": f"document {number} of the row"}, allowed, template.name)
    return ()


def _is_written(words: str, text: str) -> bool:
    """Whether a text has some words, as they are or as JSON writes them."""
    return words in text or PLAIN_JSON.encode(words)[1:-1] in text  # without the quotes of JSON


def _rejection(
    refused: Mapping[str | None, str], allowed: Set[str], template_name: str, role: str = ""
) -> RowRejectedError:
    """The error for lost contents. It describes the first one, and its remedy allows all of them.

    Args:
        refused: word of `tokenizer.allow_lost` → what is lost. Under None stands the content of a role that no word
            allows.
        role: that role.
    """
    if None not in refused:
        description = next(iter(refused.values()))
        # With those that are allowed already, because this replaces them.
        remedy = f"allow it with tokenizer.allow_lost: [{', '.join(sorted({*map(str, refused), *allowed}))}]"
        reason = LOST_CONTENT
    else:
        description = refused[None]
        if role.strip().lower() in CALLS_AND_RESULTS:
            reason = "call_role"
            remedy = "read the rows with format: sharegpt, keys: {conversations: messages}, which knows such roles"
        else:
            reason = "unknown_role"
            near = nearest_role(role)
            remedy = f"correct the role{f', perhaps to {near!r}' if near else ''}: usual are {', '.join(ALLOWED_AS)}"
    return RowRejectedError(
        reason,
        f"the chat template '{template_name}' does not write {description}; take a template that does, or {remedy}",
    )


def _texts_by_origin(text: str, source_spans: Sequence[SourceSpan]) -> Mapping[int, list[str]]:
    """The texts of the source spans of each origin, without those of white space."""
    texts: dict[int, list[str]] = {}
    for begin, end, origin in source_spans:
        if begin < end and not (text[begin].isspace() and text[begin:end].isspace()):
            texts.setdefault(origin, []).append(text[begin:end])
    return texts


def _size(text: str) -> int:
    """How many characters a text has, without white space and the tags of thoughts."""
    return sum(map(len, without_tags(text).split()))


def _tool_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool.get("function"), dict) else tool
    return str(function.get("name", ""))
