"""What a model answers to the prompts of an evaluation: one sample for each prompt and number."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: one line of a samples file."""

    id: str
    """The problem's id, as the data gives it; for a row without one, a digest of its question or its row number."""
    row: int
    """The problem's row in the data, from 0. Blank lines count, so that row 0 is line 1."""
    sample: int
    """Which answer to this row it is, from 0."""
    text: str
    """The answer as text, without the token that ends the turn."""
    finish_reason: str | None = None
    """`stop`: the model ended its turn; `length`: the limit on new tokens did."""
    tokens: int | None = None
    """New tokens, including the one that ended the turn; None if the engine does not say."""

    @property
    def key(self) -> tuple[int, int]:
        """(row, sample): stands once in a samples file."""
        return self.row, self.sample
