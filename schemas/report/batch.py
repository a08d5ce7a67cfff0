"""5. What batch size?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recipe:
    """A batch of unpacked examples, and how many packed rows hold as much."""

    examples: int
    """Of an optimizer step, unpacked."""
    tokens: float
    """Of it, on average."""
    labels: float
    rows: int
    """Packed rows with about as many tokens."""
    examples_then: float
    """That such rows hold, on average."""
    steps: int
    """Of an epoch."""


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Tokens of an optimizer step."""

    sentence: str
    tokens_a_row: float
    labels_a_row: float
    examples_a_row: float
    tokens_an_example: float
    recipes: list[Recipe]
