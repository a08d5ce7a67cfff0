"""Finds, in every row, contents of the conversation that its rendered text lost, by its source spans.

Contents, tool calls and tools that are not in the text are lost. Such a row is refused unless the configuration allows
the loss. Reasoning may always be lost, because many templates drop it from earlier turns. The ledger counts all losses.

A content can also be kept without its origin, as `"%s" % content` keeps it: its source span is missing, but the text
has it elsewhere. That is no loss, but the turn it belongs to cannot be located.
"""

from collections.abc import Mapping, Sequence, Set
from enum import Enum, auto
from functools import cached_property
from typing import Any, NamedTuple

from ...schemas.errors import RowRejectedError
from ..prep.sharegpt import CALLS_AND_RESULTS, nearest_role
from ..template.chat_template import ChatTemplate
from ..template.tracked_messages import ASSISTANT, TrackedMessages, is_blank, without_tags
from ..template.tracked_str import THOUGHT, TOOL_CALL, call_number_of, message_of, origin_of
from ..template.tracked_template import TrackedRendering
from .rendered_chat import UnprovedError
from .written_calls import PLAIN_JSON, lost_part_of_calls, parts_of_call

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


class Losses(NamedTuple):
    """What the text of a row, which may be used, lacks of its conversation."""

    allowed: tuple[str, ...]
    """"reasoning", and words of `tokenizer.allow_lost`; sorted."""
    unproved: UnprovedError | None
    """Why turns cannot be located in the text: a content of the assistant is there twice, or without its origin."""


class _Fate(Enum):
    """What became of a content in the rendered text."""

    KEPT = auto()
    CUT = auto()
    """Its source spans lack some of its words."""
    REPEATED = auto()
    """Its source spans have more words than it has."""
    UNTRACKED = auto()
    """It has no source span, but the text has its words."""
    LOST = auto()


def check_lost_content(
    tracked: TrackedMessages,
    rendering: TrackedRendering,
    template: ChatTemplate,
    tools: Sequence[dict[str, Any]],
    allowed: Set[str],
) -> Losses:
    """Compare the contents of a row with its rendering.

    Args:
        tracked: the row's messages.
        rendering: the rendered conversation.
        template: the chat template, with the row's documents.
        tools: the row's tool schemas.
        allowed: what may be lost, in the words of `tokenizer.allow_lost`.

    Returns:
        The losses, all of which are allowed.

    Raises:
        RowRejectedError: `lost_content`: something is lost that is not allowed. `unknown_role` or `call_role`: the
            content of a message is lost whose role is a typing error, or of another tool's data.
    """
    comparison = _Comparison(rendering, template)
    # Word of `tokenizer.allow_lost` → what was lost first, as it is said after "the template does not write".
    lost: dict[str, str] = {}
    loses_reasoning = False
    unproved: UnprovedError | None = None
    for origin, content in tracked.contents.items():
        fate = comparison.fate_of(origin, content)
        if fate is _Fate.KEPT:
            continue
        message = message_of(origin)
        role = tracked.roles[message]
        if fate in (_Fate.REPEATED, _Fate.UNTRACKED):
            # Only the assistant's turns have to be located.
            if role == ASSISTANT and unproved is None:
                unproved = UnprovedError(_DESCRIPTIONS[fate], message)
        elif origin & THOUGHT:
            # Templates cut white space and tags off a thought, so only one that is gone counts.
            loses_reasoning = loses_reasoning or fate is _Fate.LOST
        elif origin & TOOL_CALL:
            lost.setdefault("tool_calls", f"tool call {call_number_of(origin)} of message {message + 1}")
        else:
            quantity = "all of " if fate is _Fate.CUT else ""
            description = f"{quantity}what message {message + 1} ({role!r}) says"
            if role not in ALLOWED_AS:
                raise _unknown_role(role, description, template.name)
            lost.setdefault(ALLOWED_AS[role], description)
    if "tool_calls" not in lost:
        # A call whose origin is in the text may still lack some of its parts there.
        for message in sorted(tracked.messages_with(TOOL_CALL)):
            part = lost_part_of_calls(tracked, message, rendering)
            if part:
                lost.setdefault("tool_calls", f"{part!r:.80} of the tool calls of message {message + 1}")
    lost_tools = [name for name in map(_tool_name, tools) if name not in comparison.template_text]
    if lost_tools:
        lost["tools"] = f"the tools {', '.join(lost_tools)}"
    lost_document = _first_lost_document(template.documents or (), rendering.text)
    if lost_document:
        lost["documents"] = f"document {lost_document} of the row"
    _require_allowed(lost, allowed, template.name)
    losses = set(lost)
    if loses_reasoning:
        losses.add(LOST_REASONING)
    return Losses(tuple(sorted(losses)), unproved)


_DESCRIPTIONS = {
    _Fate.REPEATED: "the template writes its words more than once",
    _Fate.UNTRACKED: "its words could not be followed into the text",
}
"""Why a turn with such a content cannot be located."""


class _Comparison:
    """Compares single contents of a row with its rendering."""

    def __init__(self, rendering: TrackedRendering, template: ChatTemplate) -> None:
        self._rendering = rendering
        self._template_source = template.source
        self._written = _texts_by_origin(rendering)

    @cached_property
    def template_text(self) -> str:
        """What the template itself wrote: the text between the source spans of messages, joined by a separator that no
        content has, so that no words are found across a span. Of `<user>Hi</>`, this is `<user>\\0</>`.
        """
        text, source_spans = self._rendering
        pieces: list[str] = []
        piece_begin = 0
        for span in source_spans:
            if span.origin < 0:
                continue  # of a generation block, in which the template writes, too
            pieces.append(text[piece_begin : span.begin])
            piece_begin = max(piece_begin, span.end)
        pieces.append(text[piece_begin:])
        return "\0".join(piece for piece in pieces if piece)

    def fate_of(self, origin: int, content: Any) -> _Fate:
        """What became of a content, a thought or a tool call.

        Args:
            origin: of the content: its message, and whether it is a thought or a call.
            content: a text, or a whole call, whose parts are compared by `lost_part_of_calls`.
        """
        if origin & TOOL_CALL:
            # `message.tool_calls | tojson` is one text of all calls, with the number 0.
            all_calls = origin_of(message_of(origin), call_number=0, kind=TOOL_CALL)
            if origin in self._written or all_calls in self._written:
                return _Fate.KEPT
            texts = [part for part in parts_of_call(content) if isinstance(part, str)]
            if texts and all(map(self._is_in_template_text, texts)):
                return _Fate.UNTRACKED
            return _Fate.LOST
        written_texts = self._written.get(origin)
        if written_texts is None:
            if not self._is_in_template_text(content):
                return _Fate.LOST
            # The text has the words, but nothing shows that they are the content's. If the template's source has the
            # same words, they are the template's own, and the content is lost. That is not assumed of a thought: if it
            # was in the text after all, it would be trained as the answer.
            is_thought = bool(origin & THOUGHT)
            if not is_thought and without_tags(content) in self._template_source:
                return _Fate.LOST
            return _Fate.UNTRACKED
        # A single span can have no more of a content than all of it. This is quick, and true of almost all contents,
        # whereas `_size` goes through all characters.
        if len(written_texts) == 1 and len(written_texts[0].strip()) >= len(content.strip()):
            return _Fate.KEPT
        size = _size(content)
        written_size = sum(map(_size, written_texts))
        if written_size == size:
            return _Fate.KEPT
        return _Fate.CUT if written_size < size else _Fate.REPEATED

    def _is_in_template_text(self, words: str) -> bool:
        """Whether words stand in what the template itself wrote, outside of all source spans."""
        return _is_written(without_tags(words), self.template_text)


def _texts_by_origin(rendering: TrackedRendering) -> Mapping[int, list[str]]:
    """Origin → the texts of its source spans, without texts of white space alone."""
    text, source_spans = rendering
    texts: dict[int, list[str]] = {}
    for begin, end, origin in source_spans:
        if begin < end and not (text[begin].isspace() and text[begin:end].isspace()):
            texts.setdefault(origin, []).append(text[begin:end])
    return texts


def _size(text: str) -> int:
    """How many characters a text has, without white space and the tags of thoughts, which templates change."""
    return sum(map(len, without_tags(text).split()))


def _is_written(words: str, text: str) -> bool:
    """Whether a text has some words, as they are or as JSON writes them."""
    return words in text or PLAIN_JSON.encode(words)[1:-1] in text  # without the quotes of JSON


def _tool_name(tool: Any) -> str:
    """The name of a tool's schema, with or without `function` around it."""
    function = tool.get("function")
    if not isinstance(function, dict):
        function = tool
    return str(function.get("name", ""))


def _first_lost_document(documents: Sequence[dict[str, Any]], text: str) -> int:
    """The number, from 1, of the first document that has texts, none of which is in a rendering; 0 if there is none.
    One of its texts is enough, because templates write the title of a document, or its body, or both.
    """
    for number, document in enumerate(documents, 1):
        words = [without_tags(value) for value in document.values() if isinstance(value, str) and not is_blank(value)]
        if words and not any(_is_written(value, text) for value in words):
            return number
    return 0


def _require_allowed(lost: Mapping[str, str], allowed: Set[str], template_name: str) -> None:
    """Raise for the first loss that is not allowed; the remedy allows all losses of the row.

    Args:
        lost: word of `tokenizer.allow_lost` → what was lost first.
        allowed: the words that are allowed.
    """
    refused = [word for word in lost if word not in allowed]
    if refused:
        # With the words that are allowed already, because the list that the user writes replaces the one there was.
        words = ", ".join(sorted({*refused, *allowed}))
        remedy = f"allow it with tokenizer.allow_lost: [{words}]"
        raise _rejection(LOST_CONTENT, lost[refused[0]], remedy, template_name)


def _unknown_role(role: str, description: str, template_name: str) -> RowRejectedError:
    """The error for a lost content of a role that no word of `tokenizer.allow_lost` allows: it is a typing error, or a
    role of another tool's data.
    """
    # Such as `function_call` or `observation`: roles of calls and results in other tools' data.
    if role.strip().lower() in CALLS_AND_RESULTS:
        remedy = "read the rows with format: sharegpt, keys: {conversations: messages}, which knows such roles"
        return _rejection("call_role", description, remedy, template_name)
    near = nearest_role(role)
    guess = f", perhaps to {near!r}" if near else ""
    remedy = f"correct the role{guess}: usual are {', '.join(ALLOWED_AS)}"
    return _rejection("unknown_role", description, remedy, template_name)


def _rejection(reason: str, description: str, remedy: str, template_name: str) -> RowRejectedError:
    """The error for a loss.

    Args:
        reason: the ledger's name for it.
        description: what is lost.
        remedy: what to do, if not to take another template.
    """
    return RowRejectedError(
        reason,
        f"the chat template '{template_name}' does not write {description}; take a template that does, or {remedy}",
    )
