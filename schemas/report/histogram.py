"""Histograms."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values in B bins, with statistics of all values."""

    edges: list[float]
    """(B + 1,) ascending; bin b has edges[b] <= value < edges[b + 1], and the last bin also its upper edge."""
    counts: list[int]
    """(B,) number of values in each bin."""
    count: int
    """Number of values."""
    total: float
    """Sum of the values."""
    quantiles: dict[str, float] = field(default_factory=dict)
    """`min`, `p5`, `p25`, `p50`, `p75`, `p95`, `p99`, `max`; empty if there are no values."""
    exact: bool = True
    """Whether the quantiles are exact; else they are estimated from the bins."""

    @property
    def mean(self) -> float:
        """Mean of the values; 0 if there are none."""
        return self.total / self.count if self.count else 0.0
