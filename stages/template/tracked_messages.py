"""The messages of a row whose every text knows where it came from.

Contents, thoughts and tool calls enter the template as `TrackedStr` (see there), so one rendering gives the text and
its source spans. For the message

    {"role": "assistant", "content": "<think>Easy.</think>4", "tool_calls": [{"function": {"name": "add"}}]}

at index 1, `track_messages` keeps beside the tracked message what the rendered text has to show:

    origin_of(1, kind=TAGGED_THOUGHT)    "<think>Easy."
    origin_of(1)                         "</think>4"
    origin_of(1, 1, kind=TOOL_CALL)      {"function": {"name": "add"}}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...schemas.rows import Message, Messages
from .chat_template import REASONING_KEYS, plain, with_reasoning
from .tracked_str import (
    REASONING_FIELD,
    TAGGED_THOUGHT,
    TOOL_CALL,
    SourceSpan,
    TrackedStr,
    message_of,
    origin_of,
    sole_origin,
    tracked,
)

ASSISTANT = "assistant"
"""The role whose messages are trained."""
OPENING_TAG = "<think>"
"""The tag before a thought in a content, whatever the template."""
CLOSING_TAG = "</think>"
"""The tag after a thought in a content, whatever the template."""
TAG_END = "think>"
"""What both tags contain. A content without it, as most are, has no tags."""
CALL_KEYS = ("name", "arguments", "parameters", "input")
"""Keys of a tool call under which its name and arguments are."""
_TAG = re.compile("</?think>")
_SEVERAL_THOUGHTS = -1


@dataclass(slots=True)
class TrackedMessages:
    """The messages of a row as the template sees them, and what the rendered text has to show of them."""

    for_template: Messages = field(default_factory=list)
    """With tracked contents."""
    roles: list[str] = field(default_factory=list)
    """One per message."""
    loss_weights: list[float] = field(default_factory=list)
    """How much each message counts in the loss; see `loss_weight`."""
    contents: dict[int, Any] = field(default_factory=dict)
    """What the rendered text has to show, by origin: contents without their thoughts, thoughts, and whole tool calls.
    Texts of white space alone are not among them."""
    with_several_thoughts: int = -1
    """Index of the last message whose content may have more thoughts than one at its beginning; -1 if none has."""

    def messages_with(self, kinds: int) -> set[int]:
        """Indices of the messages that have contents of some kinds.

        Args:
            kinds: TOOL_CALL, REASONING_FIELD and TAGGED_THOUGHT, joined by `|`.
        """
        return {message_of(origin) for origin in self.contents if origin & kinds}

    def add(self, message: Message) -> None:
        """Append a message, with tracked content, reasoning and tool calls."""
        index = len(self.for_template)
        role = message["role"]
        tracked_message: Message = {}
        for key, value in message.items():
            if value is None:
                continue  # as in `ChatTemplate.render`, so that `is defined` says whether a message has the key
            if key == "content" and type(value) is str:
                tracked_message[key] = self._track_content(value, index, role)
            elif key in REASONING_KEYS and type(value) is str:
                tracked_message[key] = self._track_text(value, origin_of(index, kind=REASONING_FIELD))
            elif key == "tool_calls" and type(value) is list:
                tracked_message[key] = self._track_calls(value, index)
            else:
                tracked_message[key] = plain(value)
        self.for_template.append(with_reasoning(tracked_message))
        self.roles.append(role)
        self.loss_weights.append(loss_weight(message))

    def _track_text(self, text: str, origin: int) -> TrackedStr:
        """A text that came from one place, which the rendered text has to show."""
        self._require_shown(text, origin)
        return tracked(text, origin)

    def _track_calls(self, calls: list[Any], index: int) -> list[Any]:
        """The tool calls of a message, each with an origin of its own. What the text has to show is a whole call, whose
        parts a template may write in any order.
        """
        tracked_calls = []
        for number, call in enumerate(calls, 1):
            # Numbers begin at 1, because 0 stands for all calls of a message.
            origin = origin_of(index, call_number=number, kind=TOOL_CALL)
            tracked_calls.append(_track_call(call, origin))
            if call:  # an empty one has nothing to show
                self.contents[origin] = call
        return tracked_calls

    def _track_content(self, text: str, index: int, role: str) -> TrackedStr:
        """A content. If the assistant's begins with a thought, the thought has an origin of its own."""
        content_origin = origin_of(index)
        if role != ASSISTANT or TAG_END not in text:
            return self._track_text(text, content_origin)
        end = thought_end(text)
        if end == _SEVERAL_THOUGHTS:
            # Nothing shows which of them the template takes for a thought, so turns are not located. All of the content
            # counts as answer, which the text has to show.
            self.with_several_thoughts = index
            end = 0
        thought_origin = origin_of(index, kind=TAGGED_THOUGHT)
        self._require_shown(text[:end], thought_origin)
        # A content that is only a thought leaves its closing tag, which no text has to show.
        if without_tags(text[end:]):
            self._require_shown(text[end:], content_origin)
        spans = (SourceSpan(0, end, thought_origin), SourceSpan(end, len(text), content_origin))
        return TrackedStr(text, tuple([span for span in spans if span.begin < span.end]))

    def _require_shown(self, text: str, origin: int) -> None:
        """Note what the rendered text has to show, unless it is only white space."""
        if not is_blank(text):
            # The first counts: reasoning under two keys has one origin.
            self.contents.setdefault(origin, text)


def track_messages(messages: Messages) -> TrackedMessages:
    """Messages as the template sees them."""
    tracked_messages = TrackedMessages()
    for message in messages:
        tracked_messages.add(message)
    return tracked_messages


def loss_weight(message: Mapping[str, Any]) -> float:
    """How much a message counts in the loss: False (not at all) if it says `train: false` or has a `weight` of 0, its
    `weight` if that is another number than 1, else True.
    """
    weight = message.get("weight")
    if message.get("train") is False or weight == 0:
        return False
    if weight is None or weight == 1:
        return True
    return float(weight)


# Thoughts in contents


def is_blank(text: str) -> bool:
    """Whether a text is empty, or only white space."""
    return not text or text.isspace()


def without_tags(text: str) -> str:
    """A text without the tags of thoughts, and without white space around it."""
    return _TAG.sub("", text).strip()


def thought_end(content: str) -> int:
    """Where the thought at the beginning of a content ends, before its closing tag; 0 if there is none, -1 if there may
    be more than one: the content has words before its opening tag, or several closing tags.

    Everything before the closing tag is the thought, with an opening tag or without: templates and servers read it so.
    A content that begins with an opening tag which nothing closes is a thought as a whole. An empty block, or one of
    white space, is no thought: a model generates it instead of one.

        "<think>Easy.</think>4"   12, before "</think>"
        "Easy.</think>4"           5
        "<think>\\n</think>4"       0
        "4 <think>Easy.</think>"  -1
    """
    before_closing, closing_tag, after_closing = content.partition(CLOSING_TAG)
    before_opening, opening_tag, _ = before_closing.partition(OPENING_TAG)
    if not closing_tag:
        is_unclosed_thought = content.lstrip().startswith(OPENING_TAG)
        return len(content) if is_unclosed_thought and without_tags(content) else 0
    if CLOSING_TAG in after_closing or (opening_tag and not is_blank(before_opening)):
        return _SEVERAL_THOUGHTS
    return len(before_closing) if without_tags(before_closing) else 0


# Tool calls


class TrackedDict(dict[Any, Any]):
    """A tool call, its function or its arguments: a dictionary that remembers its origin."""

    __slots__ = ("_origin",)  # jinja2's sandbox hides names with an underscore from templates

    def __init__(self, origin: int) -> None:
        self._origin = origin


def _track_call(value: Any, origin: int) -> Any:
    """A tool call, or a part of one, with tracked texts."""
    if type(value) is str:
        return tracked(value, origin)
    if type(value) is list:
        return [_track_call(item, origin) for item in value]
    if type(value) is dict:
        tracked_dict = TrackedDict(origin)
        for key, item in value.items():
            # Keys, too, because templates write the names of arguments. A tracked key is found by the plain one.
            tracked_dict[_track_call(key, origin)] = _track_call(item, origin)
        return tracked_dict
    return plain(value)


def common_origin(value: Any) -> int | None:
    """The origin of a value that came from one place: a tracked text, a call, or a part of one. For a list of several
    calls, the origin of all calls of their message. None for anything else.
    """
    if type(value) is TrackedDict:
        return value._origin
    is_list_of_calls = type(value) is list and bool(value) and type(value[0]) is TrackedDict
    if not is_list_of_calls:
        return sole_origin(value)
    first_origin: int = value[0]._origin
    if all(type(item) is TrackedDict and item._origin == first_origin for item in value):
        return first_origin  # a single call, or a list of objects in the arguments of one
    # `{{ message.tool_calls | tojson }}`: one text of all calls.
    return origin_of(message_of(first_origin), call_number=0, kind=TOOL_CALL)
