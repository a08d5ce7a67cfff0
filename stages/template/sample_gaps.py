"""Gaps of small conversations: what a template writes between two messages, or after the last one.

A conversation is rendered only if its gap is asked for.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from ...schemas.errors import PacktrainError, StoppedTemplateError
from ...schemas.rows import Message, Messages
from .samples import ANSWER, TOOLS, USER, sample_calls, sample_of
from .tracked_messages import track_messages
from .tracked_template import TrackedTemplate


class GapsAfter(NamedTuple):
    """What a template writes after a message: at the text's end, without white space there, and before another."""

    at_end: str
    before_next: str


class SampleGaps:
    """The gaps of a template's sample conversations.

    Args:
        template: renders them.
    """

    def __init__(self, template: TrackedTemplate) -> None:
        self._template = template
        self._after: dict[tuple[str, str], GapsAfter | None] = {}

    def between(self, messages: Messages, before: int, after: int | None, *, tools: bool = False) -> str | None:
        """What stands between two messages; None if the template refuses the messages, or drops their contents.

        Args:
            before, after: indices; -1 is the text's beginning, None its end.
            tools: whether the conversation has some.
        """
        try:
            rendering = self._template.render(track_messages(messages).for_template, TOOLS if tools else None)
        except StoppedTemplateError:
            raise  # which depends on the machine: taken for a refusal, it would change what is learnt
        except PacktrainError:
            return None
        return rendering.text_between(before, after)

    def opening(self, message: Message, *, tools: bool = False) -> str:
        """What stands before a first message; "" if the template refuses it."""
        return self.between([message], -1, 0, tools=tools) or ""

    def after(self, role: str, next_role: str) -> GapsAfter | None:
        """What follows a first message of a role; None if the template refuses one of the conversations."""
        key = (role, next_role)
        if key not in self._after:
            at_end = self.between([sample_of(role)], 0, None)
            before_next = self.between([sample_of(role), sample_of(next_role)], 0, 1)
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
        gaps = [self.between([USER, message], 1, None, tools=tools) for message in messages for tools in (False, True)]
        return tuple(dict.fromkeys(gap for gap in gaps if gap is not None))
