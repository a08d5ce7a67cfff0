"""A rendered conversation, as turns are located in it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ...schemas.errors import RowRejectedError
from .marked import Owned
from .profile import TemplateProfile
from .tracked_str import MESSAGE, Word

Render: TypeAlias = Callable[[Sequence[int], bool], tuple[str, Sequence[Word]]]
"""Renders the messages of some indices, with a generation prompt if asked for; returns the text and its words. Raises
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
    """One turn of the assistant, in characters of the text."""

    message: int
    """Index of its message."""
    begin: int
    stop: int
    """Where its end-of-turn token begins; equal to `stop_end` if it has none."""
    stop_end: int
    end: int
    """One past its last character. Only a generation block has characters after the end-of-turn token."""
    next_stop: int = 0
    """One past the token of the next message's header that ends it; 0 if there is none."""


class Chat(NamedTuple):
    """A rendered conversation."""

    own: Owned
    text: str
    words: Sequence[Word]
    """Sorted stretches that do not overlap, but for those of GENERATION; one may be empty."""
    cut: int
    """Number of messages in the prompt."""
    manner: TemplateProfile
    render: Render
    known: bool = True
    """Whether its contents are a row's; False in a trace, where they stand for those of many rows."""

    def head(self, index: int) -> tuple[str, Sequence[Word]]:
        """The messages before an index with a generation prompt: the text and its words.

        Raises:
            RowRejectedError: the template refuses them.
        """
        return self.render(range(index), True)

    def gap(self, messages: Sequence[int], before: int, after: int | None) -> str | None:
        """What stands between the words of two messages where only some messages are rendered; None if the template
        refuses them, or drops the words.

        Args:
            messages: their indices.
            before, after: indices; None is the text's end.
        """
        try:
            text, words = self.render(messages, False)
        except RowRejectedError:
            return None
        low = max((end for _, end, code in words if code >> MESSAGE == before), default=None)
        begins = (begin for begin, _, code in words if code >> MESSAGE == after)
        high = len(text) if after is None else min(begins, default=None)
        return None if low is None or high is None or low > high else text[low:high]
