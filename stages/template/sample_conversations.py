"""Small conversations by which `profile` and `gaps` learn what a template does, and what it writes between their
messages. Each content is one letter, so that it is short, and no template looks for it.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from ...schemas.errors import PacktrainError, StoppedTemplateError
from ...schemas.rows import Message, Messages
from .tracked_messages import ASSISTANT, track_messages
from .tracked_template import TrackedRendering, TrackedTemplate

_CALL_ID = "abcdefghi"
"""Some templates ask for ids of nine letters."""
USER: Message = {"role": "user", "content": "a"}
ANSWER: Message = {"role": ASSISTANT, "content": "b"}
TOOL_RESULT: Message = {"role": "tool", "content": "c", "tool_call_id": _CALL_ID, "name": "f"}
SYSTEM: Message = {"role": "system", "content": "d"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "g",
            "parameters": {"type": "object", "properties": {"h": {"type": "string", "description": "i"}}},
        },
    }
]
_BY_ROLE = {"user": USER, "system": SYSTEM, ASSISTANT: ANSWER, "tool": TOOL_RESULT}


def sample_of(role: str) -> Message:
    """A short message of a role."""
    return _BY_ROLE.get(role) or {"role": role, "content": "c"}


def sample_calls() -> Iterator[Message]:
    """An assistant's message with a call, in each of the forms that templates ask for: arguments as an object or as
    JSON text, and an empty content or none.
    """
    for arguments in ({"h": "b"}, '{"h": "b"}'):
        call = {"id": _CALL_ID, "type": "function", "function": {"name": "f", "arguments": arguments}}
        yield {"role": ASSISTANT, "content": "", "tool_calls": [call]}
        yield {"role": ASSISTANT, "tool_calls": [call]}


class GapsAfter(NamedTuple):
    """What a template writes after a message."""

    at_end: str
    """If the text ends with the message; without white space at its end."""
    before_next: str
    """If another message follows; with the header of that message."""


class SampleGaps:
    """What a template writes between two messages of a conversation, or after its last one. A conversation is rendered
    only if its gap is asked for.

    Args:
        template: renders them.
    """

    def __init__(self, template: TrackedTemplate) -> None:
        self._template = template
        self._after: dict[tuple[str, str], GapsAfter | None] = {}

    def rendering(
        self, messages: Messages, *, tools: bool = False, add_generation_prompt: bool = False
    ) -> TrackedRendering | None:
        """The rendering of a conversation; None if the template refuses it.

        Args:
            tools: whether the conversation has some.
        """
        tracked_messages = track_messages(messages).for_template
        sample_tools = TOOLS if tools else None
        try:
            return self._template.render(tracked_messages, sample_tools, add_generation_prompt=add_generation_prompt)
        except StoppedTemplateError:
            raise  # which depends on the machine: taken for a refusal, it would change what is learnt
        except PacktrainError:
            return None

    def between(self, messages: Messages, before: int, after: int | None, *, tools: bool = False) -> str | None:
        """What stands between two messages; None if the template refuses the messages, or drops their contents. Under
        ChatML, between the messages 0 and 1 of USER and ANSWER: "<|im_end|>\\n<|im_start|>assistant\\n".

        Args:
            before, after: indices; -1 is the text's beginning, None its end.
            tools: whether the conversation has some.
        """
        rendering = self.rendering(messages, tools=tools)
        return rendering.text_between(before, after) if rendering is not None else None

    def opening(self, message: Message, *, tools: bool = False) -> str:
        """What stands before a first message; "" if the template refuses it."""
        return self.between([message], before=-1, after=0, tools=tools) or ""

    def after(self, role: str, next_role: str) -> GapsAfter | None:
        """What follows a first message of a role, at the text's end and before a message of another role. None if the
        template refuses one of these two conversations, or drops a content.
        """
        key = (role, next_role)
        if key not in self._after:
            at_end = self.between([sample_of(role)], before=0, after=None)
            before_next = self.between([sample_of(role), sample_of(next_role)], before=0, after=1)
            if at_end is None or before_next is None:
                self._after[key] = None
            else:
                self._after[key] = GapsAfter(at_end.rstrip(), before_next)
        return self._after[key]

    @cached_property
    def after_answers(self) -> tuple[str, ...]:
        """What follows an answer that ends a conversation, with and without tools."""
        return self._after_last([ANSWER])

    @cached_property
    def after_calls(self) -> tuple[str, ...]:
        """What follows a call that ends a conversation."""
        return self._after_last(sample_calls())

    def _after_last(self, messages: Iterable[Message]) -> tuple[str, ...]:
        """What follows each of some answers or calls to a question, with and without tools; equal texts once."""
        gaps = [
            self.between([USER, message], before=1, after=None, tools=tools)
            for message in messages
            for tools in (False, True)
        ]
        return tuple(dict.fromkeys(gap for gap in gaps if gap is not None))
