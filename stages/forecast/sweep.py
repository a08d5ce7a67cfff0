"""What other lengths and strategies would give, computed from lengths and runs without encoding or layout.

The number of rows depends only on how many pieces there are of each size. So each candidate makes a histogram in one
pass over the documents, and `best_fit` counts the rows of the real plan from it. `wrapped` ignores alignment and
`max_docs`, as real runs do.

Legend as in `length_stats.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ..pack.bounds import size_counts
from ..pack.row_count import in_units, rows_and_bound, tight_row_count
from ..pack.tight import WORK
from ..select.truncate import Keep
from .length_stats import Compose
from .length_stats import LengthStats as LengthStats
from .packing_estimate import PackingEstimate as PackingEstimate
from .uncut_documents import UncutDocuments

CANDIDATES = tuple(1 << power for power in range(8, 18))
"""256 to 131,072."""
STRATEGIES = ("wrapped", "bfd", "bfd_split")
"""Those of `plan.Strategy` that are quick. `bfd` truncates, drops or splits documents that are too long, depending on
the options. `tight` does what `bfd` does, and is compared where asked for: its search takes longer than all of these.
"""
QUICK = 600_000
"""Work of the search of `tight` that takes a tenth of a second or less."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options shared by all candidates."""

    keep: Keep = Keep.START
    drop: bool = False
    """Leave out documents that are too long instead of truncating them. Strategies that cut documents still cut them.
    """
    split: bool = False
    """Whether long documents are split into the pieces of `LengthStats.pieces`."""
    keep_untrained: bool = False
    max_docs: int | None = None
    align: int = 1
    work: int = WORK
    """Work of the search of `tight`."""


def sweep(
    stats: LengthStats,
    candidates: Sequence[int] = CANDIDATES,
    strategies: Sequence[str] = STRATEGIES,
    options: SweepOptions | None = None,
    compose: Compose | None = None,
) -> list[PackingEstimate]:
    """Estimate every strategy at every length, in the order of the lengths.

    Args:
        compose: groups parts into planning windows; None plans all parts together.

    Raises:
        ConfigError: a strategy is not one of `STRATEGIES`.
    """
    options = options or SweepOptions()
    wholes = UncutDocuments.of(stats, options.keep_untrained, compose)
    out = []
    for limit in candidates:
        cut = _Cut.split(stats, limit, options) if options.split else _Cut.truncated(stats, limit, options)
        for strategy in strategies:
            if strategy in ("bfd", "tight"):
                out.append(_packed(cut, strategy, options, compose))
            elif strategy == "wrapped":
                out.append(wholes.wrapped(limit))
            elif strategy == "bfd_split":
                out.append(wholes.split(limit, options.align, options.max_docs))
            else:
                raise ConfigError(
                    f"strategy {strategy!r} is not known; choose from {', '.join((*STRATEGIES, 'tight'))}"
                )
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """The documents cut at one length, before packing."""

    stats: LengthStats
    limit: int
    sizes: NDArray[np.int32]
    """(S,) tokens of each piece; 0 for a document left out."""
    owners: NDArray[np.int32] | None
    """(S,) the document of each piece; None if each document is one piece."""
    labels: int
    documents: int
    cut: int
    overlap: int = 0

    @classmethod
    def truncated(cls, stats: LengthStats, limit: int, options: SweepOptions) -> "_Cut":
        kept, labels = stats.cut(limit, options.keep)
        if options.drop:
            kept = np.where(stats.lengths <= limit, kept, 0)
        if not options.keep_untrained:
            kept = np.where(labels > 0, kept, 0)
        documents = int(np.count_nonzero(kept))
        cut = int(np.count_nonzero((kept > 0) & (kept < stats.lengths)))
        return cls(stats, limit, kept, None, int(labels[kept > 0].sum()), documents, cut)

    @classmethod
    def split(cls, stats: LengthStats, limit: int, options: SweepOptions) -> "_Cut":
        fits = stats.lengths <= limit
        pieces = stats.pieces.get(limit)
        assert pieces is not None or fits.all(), f"the pieces at length {limit} are not known"
        if not options.keep_untrained:
            fits &= stats.labels_each > 0
        sizes, owners = np.where(fits, stats.lengths, 0), np.arange(len(stats.lengths), dtype=np.int32)
        labels, cut, overlap = int(stats.labels_each[fits].sum()), 0, 0
        documents = int(np.count_nonzero(sizes))
        if pieces is not None:
            sizes, owners = np.concatenate([sizes, pieces.lengths]), np.concatenate([owners, pieces.owners])
            labels += int(pieces.labels.sum(dtype=np.int64))
            cut = int(np.count_nonzero(np.diff(pieces.owners, prepend=-1)))
            overlap = int(pieces.overlap.sum(dtype=np.int64)) if pieces.overlap is not None else 0
        return cls(stats, limit, sizes, owners, labels, documents + cut, cut, overlap)

    def windows(self, compose: Compose | None) -> Iterator[NDArray[np.int32]]:
        """The sizes of the pieces of each window."""
        windows: Sequence[NDArray[np.int64]] = ()
        parts = self.stats.parts
        if compose is not None and parts is not None:
            tokens = self.sizes
            if self.owners is not None:
                # Integers below 2**53 are exact as floats.
                tokens = np.bincount(self.owners, weights=tokens, minlength=len(self.stats.lengths)).astype(np.int64)
            windows = compose(parts.sums(tokens))
        if len(windows) < 2 or parts is None:
            yield self.sizes[self.sizes > 0]
            return
        number = np.full(len(parts.sources), -1, dtype=np.int64)
        for index, window in enumerate(windows):
            number[window] = index
        mine = parts.of_documents(number)
        mine = mine if self.owners is None else mine[self.owners]
        for index in range(len(windows)):
            yield self.sizes[(mine == index) & (self.sizes > 0)]

    def outcome(self, strategy: str, rows: int, bound: int, padding: int) -> PackingEstimate:
        tokens = int(self.sizes.sum(dtype=np.int64))
        return PackingEstimate(
            strategy=strategy,
            max_length=self.limit,
            documents=self.documents,
            documents_cut=self.cut,
            documents_lost=self.stats.documents - self.documents,
            pieces=self.documents if self.owners is None else int(np.count_nonzero(self.sizes)),
            rows=rows,
            bound=bound,
            tokens=tokens,
            tokens_lost=self.stats.tokens - (tokens - self.overlap),
            labels=self.labels,
            labels_lost=self.stats.labels - self.labels,
            padding=padding,
            overlap=self.overlap,
        )


def _packed(cut: _Cut, strategy: str, options: SweepOptions, compose: Compose | None) -> PackingEstimate:
    rows = bound = padding = 0
    align = options.align
    for lengths in cut.windows(compose):
        units = in_units(lengths, align)
        counts = size_counts(units, cut.limit // align)
        opened, least = rows_and_bound(counts, options.max_docs)
        if strategy == "tight" and opened > least:
            opened = tight_row_count(units, counts, options.max_docs, options.work)
        rows, bound = rows + opened, bound + least
        padding += int(units.sum(dtype=np.int64)) * align - int(lengths.sum(dtype=np.int64)) if align > 1 else 0
    return cut.outcome(strategy, rows, bound, padding)
