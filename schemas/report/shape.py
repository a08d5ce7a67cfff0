"""A model, as far as its cost goes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """The model whose work is estimated, as far as its cost goes."""

    name: str
    """For people, such as `7 billion parameters` or a folder's name."""
    parameters: float
    """That a token meets: of a mixture of experts, the active ones."""
    layers: int
    hidden: int
