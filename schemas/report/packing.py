"""4. How good is the packing?"""

from dataclasses import dataclass

from .histogram import Histogram
from .shape import Shape


@dataclass(frozen=True, slots=True)
class SplitPacking:
    """One split."""

    split: str
    rows: int
    bound: int
    """No plan has fewer rows."""
    gap: float
    fill: float
    """Alignment padding left out."""
    tokens: int
    """Alignment padding included."""
    labels: int
    pieces: int
    shards: int
    windows: int
    fills: Histogram
    """Tokens of each row, as a share of C, alignment padding included."""
    documents: Histogram
    """Pieces of each row."""


@dataclass(frozen=True, slots=True)
class RankBalance:
    """How long ranks wait for the slowest of them, in model FLOPs: 1 is not at all."""

    ranks: int
    rows_each: int
    plain: float
    """Mean over steps of the slowest rank over the mean of the ranks, rows in their order."""
    balanced: float
    """The same as the loader deals and groups them."""
    worst: float
    """The worst step, balanced."""


@dataclass(frozen=True, slots=True)
class Saving:
    """The epoch with other ways to batch, of the same documents at the same length."""

    strategy: str
    slots: int
    """Tokens that a device computes, padding included."""
    steps: int
    """Of `Choice.batch` documents, or of as many packed rows: what fits into the same memory."""
    flops: float
    seconds: float
    """Estimated, with `Packing.device_flops`."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How well documents are packed, and what that saves."""

    sentence: str
    max_length: int
    strategy: str
    splits: list[SplitPacking]
    world_size: int
    balance: list[RankBalance]
    """Of the train split."""
    order_before: float | None
    """Spearman's correlation of a row's place with its longest document, as the planner leaves rows."""
    order_after: float | None
    """The same as they are written."""
    savings: list[Saving]
    """Padded first, then padding-free, and this run last; empty where lengths are not known any more."""
    shape: Shape
    device_flops: float
    """Floating-point operations a second that are assumed."""
