"""5. What batch size?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchRecipe:
    """A batch of unpacked examples, and how many packed rows hold as much."""

    examples: int
    """Unpacked examples of an optimizer step."""
    tokens: float
    """Average tokens of such a step."""
    labels: float
    rows: int
    """Packed rows with about as many tokens."""
    examples_then: float
    """Average examples in these rows."""
    steps: int
    """Steps of an epoch."""


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Tokens of an optimizer step."""

    sentence: str
    tokens_a_row: float
    labels_a_row: float
    examples_a_row: float
    tokens_an_example: float
    recipes: list[BatchRecipe]
