"""Which examples share text with evaluation rows?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OverlapCount:
    """Examples of a source that share text with rows of an evaluation file, each by its strongest match."""

    source: str
    evaluation: str
    """Name of the evaluation file."""
    examples: int
    whole: int
    near_whole: int
    ngram: int
    rows: int
    """Evaluation rows of which something was found."""


@dataclass(frozen=True, slots=True)
class OverlapPiece:
    """A piece of a text."""

    text: str
    shared: bool


@dataclass(frozen=True, slots=True)
class ShownOverlap:
    """An example and an evaluation row that share text."""

    id: str
    """The example's."""
    source: str
    evaluation: str
    line: int
    """The row's line in the evaluation file, from 1."""
    evaluation_id: str
    kind: str
    """`prompt` or `answer` of the row."""
    match: str
    share: float
    """Of the row's n-grams, the share that the example has."""
    example: list[OverlapPiece]
    example_cut: bool
    """Whether text before or after was left out."""
    row: list[OverlapPiece]
    row_cut: bool


@dataclass(frozen=True, slots=True)
class Overlap:
    """What training data shares with evaluation data."""

    sentence: str
    action: str
    """`report` or `drop`."""
    ngram: int
    examples: int
    """Examples that share text with any evaluation row."""
    counts: list[OverlapCount]
    shown: list[ShownOverlap]
    """Some pairs, the strongest first."""
    files: list[str]
    """Names of the evaluation files."""
    ignored: dict[str, int]
    """What was not compared, in words, and how many."""
