"""1. Which max_length?"""

from dataclasses import dataclass, field

from .histogram import Histogram
from .shape import Shape


@dataclass(frozen=True, slots=True)
class Point:
    """What one strategy makes of the data at one length; see `stages.sweep.Outcome`, whose fields these are."""

    strategy: str
    """`padded`, `padding_free`, `wrapped`, `bfd` or `bfd_split`."""
    max_length: int
    documents: int
    documents_cut: int
    documents_lost: int
    pieces: int
    rows: int
    """Of `padded` and `padding_free`: batches."""
    bound: int
    tokens: int
    """Padding not counted."""
    tokens_lost: int
    labels: int
    labels_lost: int
    slots: int
    """Room that they take: tokens and padding, and of packed strategies whole rows. The work below is of what
    variable-length attention computes: all of it where batches are padded, the tokens alone elsewhere."""
    squares: int
    fill: float
    gap: float
    attention_flops: float
    """Of one epoch, forward and backward, with `Choice.shape`."""
    flops: float
    """Of one epoch, all of it."""
    padding: int = 0
    """Of `pack.align`, within the rows: computed, and no part of `tokens` and `fill`."""
    overlap: int = 0
    """Tokens that stand at the head of a piece again; of `tokens`."""


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """What one source loses at one length and with one strategy; see `stages.losses.Loss`."""

    source: str
    documents: int
    documents_cut: int
    documents_lost: int
    longest: int
    """Tokens."""
    tokens: int
    """Of all its documents, before `max_length`."""
    tokens_lost: int
    labels: int
    labels_lost: int


@dataclass(frozen=True, slots=True)
class Advice:
    """A length, and why."""

    max_length: int
    strategy: str
    sentence: str
    """Such as `4,096 keeps 99.6 % of the trained tokens; the next step up costs 3 % more work for 0.2 %.`"""
    reasons: list[str]


@dataclass(frozen=True, slots=True)
class Choice:
    """A sweep over lengths and strategies."""

    sentence: str
    documents: int
    """That the sweep saw."""
    documents_in_all: int
    """More than `documents` where it saw a sample."""
    lengths: Histogram
    """Of the documents, before `max_length`."""
    batch: int
    """Documents of a padded batch."""
    shape: Shape
    points: list[Point]
    """Lengths rising, and of each the strategies in their order."""
    strategy: str
    """That the configuration asks for."""
    max_length: int
    """That the configuration asks for; it is always among the points."""
    overlong: str
    """What the configuration does with longer documents. `padded`, `padding_free` and `bfd` of the points do the same,
    but that they truncate where it is `error`."""
    advice: Advice | None
    """None where there is nothing to choose from."""
    notes: list[str] = field(default_factory=list)
    """What to know when reading it, a sentence each: what is not compared, and what is compared otherwise."""
    sources: list[SourceLoss] = field(default_factory=list)
    """At the advice, where there are several."""
    sources_configured: list[SourceLoss] = field(default_factory=list)
    """At `max_length` with the configuration's strategy, where there are several; `wrapped` as `bfd_split`. Empty where
    that is the advice."""
