"""A rendered conversation, as turns are located in it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ...schemas.errors import RowRejectedError
from ..template.profile import TemplateProfile
from ..template.tracked_messages import TrackedMessages
from ..template.tracked_str import SourceSpan
from ..template.tracked_template import TrackedRendering

RenderSelected: TypeAlias = Callable[[Sequence[int], bool], TrackedRendering]
"""Renders the messages of some indices, with a generation prompt if the second argument is True. Raises
RowRejectedError if the template refuses them."""


class UnprovedError(Exception):
    """The assistant's turns cannot be located with certainty. The renderer catches it.

    Args:
        reason: a stable sentence for messages.
        message: index of the message at fault, or -1.
    """

    def __init__(self, reason: str, message: int = -1) -> None:
        super().__init__(f"message {message + 1}: {reason}" if message >= 0 else reason)


class Turn(NamedTuple):
    """One turn of the assistant, in characters of the text.

    In `<|im_start|>assistant\\nHello<|im_end|>\\n`, it begins at "Hello", its stop is `<|im_end|>`, and it ends there.
    """

    message: int
    """Index of its message."""
    begin: int
    stop_begin: int
    """Where its end-of-turn token begins; equal to `stop_end` if it has none."""
    stop_end: int
    end: int
    """One past its last character. Only a generation block has characters after the end-of-turn token."""
    next_stop_end: int = 0
    """For a template that ends no turn itself: one past the first token of the next message's header, at which
    generation stops; else 0."""


class RenderedChat(NamedTuple):
    """A rendered conversation."""

    tracked: TrackedMessages
    text: str
    source_spans: Sequence[SourceSpan]
    """Sorted by where they begin. Only those of GENERATION overlap others. A span may be empty."""
    prompt_length: int
    """Number of messages in the prompt; the index of the first message of the completion."""
    profile: TemplateProfile
    render: RenderSelected
    is_row: bool = True
    """Whether its contents are a row's; False in a trace, where they stand for those of many rows."""

    def rendered_before(self, index: int) -> TrackedRendering:
        """The messages before one, rendered with a generation prompt.

        Args:
            index: of the message that is not rendered.

        Raises:
            RowRejectedError: the template refuses them.
        """
        return self.render(range(index), True)  # True: with a generation prompt

    def gap(self, messages: Sequence[int], before: int, after: int | None) -> str | None:
        """What stands between two messages where only some messages are rendered; None if the template refuses these,
        or drops the contents of one of the two.

        Args:
            messages: their indices.
            before, after: indices; None is the text's end.
        """
        try:
            rendering = self.render(messages, False)  # False: without a generation prompt
        except RowRejectedError:
            # Templates may insist on an order of roles, which is broken where messages are left out.
            return None
        return rendering.text_between(before, after)
