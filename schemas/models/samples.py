"""Samples: what a model answers to the prompts of a data set, and what draws them."""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: one line of a samples file."""

    id: str
    """The problem's id, as the data gives it, as text; for a row without one, a digest of its question or its row
    number."""
    row: int
    """The problem's row in the data, from 0. Blank lines count, so that row 0 is line 1."""
    sample: int
    """Which answer to this row it is, from 0."""
    text: str
    """The answer as text, without the token that ends the turn."""
    finish_reason: str | None = None
    """`stop`: the model ended its turn; `length`: the limit on new tokens did; None if the engine does not say."""
    tokens: int | None = None
    """New tokens, including the one that ended the turn; None if the engine does not say."""

    @property
    def key(self) -> tuple[int, int]:
        """(row, sample): stands once in a samples file."""
        return self.row, self.sample


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """How answers are drawn."""

    temperature: float = 1.0
    """0 takes the most probable token every time."""
    top_p: float = 1.0
    """Draw from the most probable tokens that together have this probability; 1 draws from all."""
    max_new_tokens: int = 1024
    stop_ids: tuple[int, ...] = ()
    """Tokens that end an answer."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One answer to draw."""

    token_ids: tuple[int, ...]
    """(T,) the prompt's tokens, with those that the tokenizer puts before a text."""
    seed: int
    """A number of 64 bits that depends on the prompt's row and the number of the sample alone."""


@dataclass(frozen=True, slots=True)
class SampleAnswer:
    """What an engine answers to a request: tokens, or text from a server."""

    finish_reason: str | None
    """As of `Sample`."""
    token_ids: tuple[int, ...] | None = None
    """New tokens, with the one that ended the answer; None if a server answers with text."""
    text: str | None = None
    """The answer of a server; None if there are `token_ids`."""
    tokens: int | None = None
    """How many new tokens a server says that it made; None if it does not, or if there are `token_ids`."""


class SampleEngine(Protocol):
    """Draws answers. An answer depends on its request and the settings alone, up to rounding in the last bits."""

    def answers(self, groups: Iterable[Sequence[SampleRequest]]) -> Generator[SampleAnswer, None, None]:
        """Answer all requests, in their order.

        Args:
            groups: the requests of a group are computed together, so that two runs with the same groups round alike.
        """
        ...
