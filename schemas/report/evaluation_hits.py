"""The section on contamination: examples that share text with evaluation rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ..notebook import Shown, Table
from ..units import share


@dataclass(frozen=True, slots=True)
class ContaminationCount:
    """Examples of a source that share text with rows of an evaluation file."""

    source: str
    evaluation: str
    """Name of the evaluation file."""
    examples: int
    most: int
    """Examples that have at least 80 % of an evaluation text's n-grams."""
    # Beside the examples: one evaluation row in a thousand examples matters less than a thousand rows, once each.
    rows: int
    """Evaluation rows that share text with any of these examples."""


class Hit(msgspec.Struct, frozen=True):
    """A line of contamination.jsonl: an example and an evaluation row that share text."""

    id: str
    """The example's id, as in documents.parquet."""
    source: str
    evaluation: str
    """Name of the evaluation file."""
    evaluation_line: int
    """The row's line in it, from 1."""
    kind: str
    """Which text of the evaluation row is shared: its `prompt` or its `answer`."""
    share: float
    """The share of the evaluation text's n-grams that the example has; 1 if all of it is there."""
    shared: str
    """The longest run of words that both share, without case and punctuation; at most 60 words."""


@dataclass(frozen=True, slots=True, repr=False)
class Contamination(Shown):
    """Is the evaluation data in it?"""

    sentence: str
    """The answer, for the page and the terminal."""
    action: str
    """What becomes of the examples, by `contamination.action`: `report` keeps them, `drop` leaves them out; "" if
    examples were only compared, and nothing is packed."""
    examples: int
    """Examples that share text with any evaluation row."""
    counts: list[ContaminationCount]
    """By source and evaluation file."""
    shown: list[Hit]
    """Some hits, the largest share first."""

    def summary(self) -> str:
        return self.sentence

    def tables(self) -> Iterator[Table]:
        counts = ((count.source, count.evaluation, count.examples, count.most, count.rows) for count in self.counts)
        head = ("source", "evaluation file", "examples", "most or all of it", "evaluation rows")
        yield Table("Examples that share text", head, counts)
        hits = [
            (hit.id, hit.evaluation, hit.evaluation_line, hit.kind, share(hit.share), hit.shared) for hit in self.shown
        ]
        columns = ("example", "evaluation file", "line", "which text", "share of it", "longest words that both share")
        yield Table("Some of them, the largest share first", columns, hits)
