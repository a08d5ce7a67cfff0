"""How many values fall where."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values fall into each of B bins, and what is known of all of them."""

    edges: list[float]
    """(B + 1,) rising; bin b holds edges[b] <= value < edges[b + 1], the last bin its upper edge, too."""
    counts: list[int]
    """(B,)"""
    count: int
    """Values in all."""
    total: float
    """Their sum."""
    quantiles: dict[str, float] = field(default_factory=dict)
    """`min`, `p5`, `p25`, `p50`, `p75`, `p95`, `p99`, `max`; empty where there is no value."""
    exact: bool = True
    """Whether the quantiles are of all values. Else they are read off the bins."""

    @property
    def mean(self) -> float:
        """0 where there is no value."""
        return self.total / self.count if self.count else 0.0
