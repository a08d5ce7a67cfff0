"""1. Which max_length?"""

from dataclasses import dataclass, field

from .histogram import Histogram
from .shape import ReportShape


@dataclass(frozen=True, slots=True)
class Point:
    """What one strategy makes of the data at one length, with the fields of `PackingEstimate`."""

    strategy: str
    """`padded`, `padding_free`, `wrapped`, `bfd`, `bfd_split`; or `tight`, if it is configured."""
    max_length: int
    documents: int
    documents_cut: int
    documents_lost: int
    pieces: int
    rows: int
    """Rows; for `padded` and `padding_free`, batches."""
    bound: int
    tokens: int
    """Tokens without padding."""
    tokens_lost: int
    labels: int
    labels_lost: int
    slots: int
    """Tokens and padding, and for packed strategies whole rows. The work below is what variable-length attention
    computes: all slots of padded batches, else only the tokens."""
    squares: int
    fill: float
    gap: float
    attention_flops: float
    """FLOPs of attention in one epoch, forward and backward, with `Choice.shape`."""
    flops: float
    """All FLOPs of one epoch."""
    padding: int = 0
    """Padding of pieces for `pack.align` and `pack.parallel`: computed, but not part of `tokens` and `fill`."""
    overlap: int = 0
    """Tokens repeated at the start of a piece; part of `tokens`."""


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """What one source loses at one length and with one strategy; see `stages.forecast.lost_by_source.Loss`."""

    source: str
    documents: int
    documents_cut: int
    documents_lost: int
    longest: int
    """Tokens of the longest document."""
    tokens: int
    """Tokens of all its documents, before `max_length`."""
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
    """Documents in the sweep."""
    documents_in_all: int
    """All documents; more than `documents` if the sweep used a sample."""
    lengths: Histogram
    """Lengths of the documents, before `max_length`."""
    batch: int
    """Documents of a padded batch."""
    shape: ReportShape
    points: list[Point]
    """Points by ascending length, then by strategy."""
    strategy: str
    """The configured strategy."""
    max_length: int
    """The configured length, which is always among the points."""
    overlong: str
    """What the configuration does with longer documents. The points of all that do not cut themselves do the same,
    except that they truncate if it is `error`."""
    advice: Advice | None
    """None if there is nothing to choose."""
    over_limit: str | None = None
    """Part of `sentence`: that the configured length is above the longest document that the model is made for, and what
    to do; else None."""
    notes: list[str] = field(default_factory=list)
    """Notes on the comparison, one sentence each."""
    sources: list[SourceLoss] = field(default_factory=list)
    """Losses of sources at the advice, if there are several sources."""
    rows_unpadded: int | None = None
    """Rows at `max_length` with the configured strategy, if pieces were not padded for `pack.align` and
    `pack.parallel`; None if they are not padded anyway."""
    sources_configured: list[SourceLoss] = field(default_factory=list)
    """Losses of sources at `max_length` with the configured strategy (`wrapped` as `bfd_split`), if there are several
    sources. Empty if that is the advice."""
