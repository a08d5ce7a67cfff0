"""The section on `max_length`: what other lengths and strategies would make of the data, and what is advised."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..models.model_facts import Limit
from ..notebook import Shown, Table
from ..units import plural, share


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of numbers in B bins."""

    # Lists in place of arrays, because report.json holds them, and the page draws them bin by bin.
    edges: list[float]
    """(B + 1,) ascending; bin b has edges[b] <= number < edges[b + 1], and the last bin also its upper edge."""
    counts: list[int]
    """(B,) how many numbers are in each bin."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one strategy makes of the data at one length."""

    strategy: str
    max_length: int
    """The most tokens of a document."""
    row_length: int
    """Capacity of the rows, in tokens."""
    documents: int
    """Documents packed, whole or in part."""
    documents_cut: int
    """Packed documents that are longer than `max_length`: truncated, or cut into pieces."""
    documents_lost: int
    """Documents left out because nothing trained remains, or because they are too long and not cut."""
    rows: int
    bound: int
    """Lower bound on the rows of any plan of the same pieces."""
    tokens: int
    """Packed tokens, without padding."""
    tokens_lost: int
    """Tokens of all documents that are not packed."""
    labels: int
    """Trained labels of the packed documents."""
    labels_lost: int
    """Labels that would be trained if nothing were cut or left out, and are not."""
    fill: float
    """Share of the rows that holds tokens."""
    sharing_factor: float | None = None
    """How many times fewer tokens rows store with `Sharing.share` than without; None if documents cannot share."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The advised length."""

    max_length: int
    reached: bool
    """Whether the length keeps enough; else it is the best of the compared lengths that the model is made for."""
    # Apart from `reached`: a longer length would keep more, but the model would compute its documents wrongly.
    bounded: bool
    """Whether longer lengths were compared that the model is not made for."""


@dataclass(frozen=True, slots=True, repr=False)
class Choice(Shown):
    """Which max_length? A comparison of lengths, over the documents of the train split."""

    documents: int
    """Documents that were read."""
    documents_in_all: int
    """All documents; more than `documents` if a sample was read."""
    lengths: Histogram
    """Lengths of the documents, before `max_length`."""
    # The ids alone: a text of this length would be most of the page.
    longest: list[tuple[str, int]]
    """(id, tokens) of the longest documents, the longest first; empty if their ids are unknown."""
    points: list[Point]
    """One for each compared length, ascending."""
    strategy: str
    """The configured strategy, which all points have."""
    max_length: int
    """The configured length, which is always among the points."""
    key: str
    """What is compared: `max_length`, or `row_length` if the strategy cuts documents at rows of their own length."""
    row_length: int
    """Capacity of the rows at the configured length."""
    longer_rows: Point | None
    """Longer rows of the same documents, if they would be fuller; else None."""
    overlong: str
    """`truncate.overlong`: what becomes of documents above `max_length`. At other lengths, the points do the same."""
    cuts: bool
    """Whether longer documents are cut into pieces, all of which are kept."""
    texts: bool
    """Whether nearly all tokens are those of plain texts, which can be cut anywhere, and not of conversations."""
    advice: Advice | None
    """None if there are no tokens, so that nothing can be chosen."""
    limit: Limit | None
    """The longest document that the model is made for; None if unknown."""
    # Counted only where the configuration allows such documents: else `max_length` has dealt with them already.
    over_limit: int | None
    """Documents longer than `limit`, if the configured length is above it; else None."""
    other: Point | None
    """Another strategy at the configured length, if it would save rows; else None."""
    other_saves: float
    """The share of the rows that `other` would save, if all documents are planned together; not used without `other`.
    """
    sharing: "Sharing | None" = None
    """None if no two documents are of one source row or group, or the configuration does not let them share."""
    pairs: "PairKeys | None" = None
    """What other keys would do with the preference pairs that the configured length leaves out; None of documents."""

    def summary(self) -> str:
        advised = f"{self.advice.max_length:,} is advised" if self.advice is not None else "nothing is advised"
        return f"{plural(self.documents, 'document')} at {self.key} {self.max_length:,}; {advised}"

    def tables(self) -> Iterator[Table]:
        head = (self.key, "cut", "left out", "trained tokens lost", "rows", "full", "tokens")
        rows = [
            (point.max_length, point.documents_cut, point.documents_lost, point.labels_lost, point.rows,
             share(point.fill), point.tokens)
            for point in self.points
        ]  # fmt: skip
        yield Table("At each length", head, rows)


@dataclass(frozen=True, slots=True)
class Sharing:
    """What the comparison of `pack.share` at each length is from, and which rows would cut fewer groups."""

    share: str
    """The value of `pack.share` that is compared with `none`: the configured one. If that is `none`, it is `group`
    where groups have more documents than source rows, else `row`."""
    is_used: bool
    """Whether this dataset shares tokens."""
    compared: int
    """Tokens that were compared, each document counted once."""
    tokens: int
    """Tokens of all documents that can share; more than `compared` if these are a sample of them."""
    longer_row_length: int
    """Twice the longest document that the configured length keeps, or the configured rows if they are longer."""
    longer_rows_factor: float
    """`Point.sharing_factor` in such rows, which cut fewer groups of documents."""


@dataclass(frozen=True, slots=True)
class PairKeys:
    """Preference pairs that would be left out at the configured length with other keys."""

    are_packed: bool
    """Whether both sides stand in a row, so that `max_length` limits them together; else it limits the longer one."""
    left_out_with_end: int | None
    """How many with `truncate.keep: end`; None if that is configured, or pairs are not cut."""
    left_out_with_share: int | None
    """How many with `pack.share: row`; None if that is configured or impossible."""
