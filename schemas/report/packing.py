"""4. How good is the packing?"""

from dataclasses import dataclass

from .histogram import Histogram
from .shape import ReportShape


@dataclass(frozen=True, slots=True)
class SplitPacking:
    """How one split is packed."""

    split: str
    rows: int
    bound: int
    """Lower bound on the rows of any plan."""
    gap: float
    fill: float
    """See `schemas.layout.fill_of`: padding is not counted."""
    tokens: int
    """Tokens with padding."""
    labels: int
    pieces: int
    shards: int
    windows: int
    fills: Histogram
    """Tokens of each row as a share of C, with alignment padding."""
    documents: Histogram
    """Pieces of each row."""
    padding: int = 0
    """Tokens that are padding for `pack.align` and `pack.parallel`."""


@dataclass(frozen=True, slots=True)
class RankBalance:
    """How long ranks wait for the slowest, in model FLOPs; 1 means not at all."""

    ranks: int
    rows_each: int
    plain: float
    """Slowest rank divided by the mean of ranks, averaged over steps, with rows in order."""
    balanced: float
    """The slowest rank over the mean of the ranks, with rows grouped and assigned by the loader."""
    worst: float
    """The worst step, balanced."""


@dataclass(frozen=True, slots=True)
class Saving:
    """An epoch with one way of batching, with the same documents and length."""

    strategy: str
    slots: int
    """Tokens that a device computes, with padding."""
    steps: int
    """Steps of `Choice.batch` documents, or of equally many packed rows, which need the same memory."""
    flops: float
    seconds: float
    """Estimated seconds, with `Packing.device_flops`."""


@dataclass(frozen=True, slots=True)
class PaddingCost:
    """What `pack.align` and `pack.parallel` cost in one split."""

    sentence: str
    document: int
    """Every piece is padded to a multiple of this."""
    row: int
    """Every row is padded to a multiple of this."""
    tokens: int
    """Tokens of padding; in a plan, at most or about so many."""
    share: float
    """The padding's share of the rows' capacity."""
    rows_more: int | None
    """Rows that would not be needed without padding; None if unknown."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How well documents are packed, and what that saves."""

    sentence: str
    max_length: int
    strategy: str
    splits: list[SplitPacking]
    world_size: int
    balance: list[RankBalance]
    """Balance of the train split."""
    order_before: float | None
    """Spearman's correlation of a row's position with its longest document, in the planner's order."""
    order_after: float | None
    """Rank correlation of a row's position with its longest document, in the written order."""
    savings: list[Saving]
    """Padded, then padding-free, then this run; empty if lengths are no longer known."""
    shape: ReportShape
    device_flops: float
    """Assumed floating-point operations per second."""
    padding: PaddingCost | None = None
    """Of the train split; None if nothing is padded."""
