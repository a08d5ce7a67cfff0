"""What other lengths and strategies would give, computed from lengths and runs without encoding or layout.

The number of rows depends only on how many pieces there are of each size. So each candidate makes a histogram in one
pass over the documents, and `best_fit` counts the rows of the real plan from it. `wrapped` ignores alignment and
`max_docs`, as real runs do.

Legend as in `stats.py`; `B` documents of a padded batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ..pack.bounds import least_rows, size_counts
from ..pack.row_count import in_units, rows_and_bound, tight_row_count
from ..pack.tight import WORK
from ..select.truncate import Keep
from .length_stats import Compose
from .length_stats import LengthStats as LengthStats
from .packing_estimate import PackingEstimate as PackingEstimate
from .uncut_documents import UncutDocuments

CANDIDATES = tuple(1 << power for power in range(8, 18))
"""256 to 131,072."""
STRATEGIES = ("padded", "padding_free", "wrapped", "bfd", "bfd_split")
"""`padded`: batches of B documents in random order, each as long as its longest. `padding_free`: documents end to end
without padding. The other names are those of `plan.Strategy`. `padded`, `padding_free` and `bfd` truncate, drop or
split documents that are too long, depending on the options. `tight` does what `bfd` does, and is compared where asked
for: its search takes longer than all of these.
"""
QUICK = 600_000
"""Work of the search of `tight` that takes a tenth of a second or less."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options shared by all candidates."""

    batch: int = 8
    """Documents in each padded batch (B)."""
    keep: Keep = Keep.START
    drop: bool = False
    """Leave out documents that are too long instead of truncating them. Strategies that cut documents still cut them.
    """
    split: bool = False
    """Whether long documents are split into the pieces of `LengthStats.pieces`."""
    keep_untrained: bool = False
    max_docs: int | None = None
    align: int = 1
    seed: int = 0
    """Seed of the random order of documents in padded batches."""
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
    order = np.random.default_rng(options.seed).permutation(len(stats.lengths))
    wholes = UncutDocuments.of(stats, options.keep_untrained, compose)
    out = []
    for limit in candidates:
        cut = _Cut.split(stats, limit, options) if options.split else _Cut.truncated(stats, limit, options, order)
        for strategy in strategies:
            if strategy == "padded":
                out.append(_padded(cut, options))
            elif strategy == "padding_free":
                out.append(_padding_free(cut, options))
            elif strategy in ("bfd", "tight"):
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
    order: NDArray[np.int64]
    """(S,) a random order of the pieces."""
    labels: int
    documents: int
    cut: int
    overlap: int = 0

    @classmethod
    def truncated(cls, stats: LengthStats, limit: int, options: SweepOptions, order: NDArray[np.int64]) -> "_Cut":
        kept, labels = stats.cut(limit, options.keep)
        if options.drop:
            kept = np.where(stats.lengths <= limit, kept, 0)
        if not options.keep_untrained:
            kept = np.where(labels > 0, kept, 0)
        documents = int(np.count_nonzero(kept))
        cut = int(np.count_nonzero((kept > 0) & (kept < stats.lengths)))
        return cls(stats, limit, kept, None, order, int(labels[kept > 0].sum()), documents, cut)

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
        order = np.random.default_rng(options.seed).permutation(len(sizes))
        return cls(stats, limit, sizes, owners, order, labels, documents + cut, cut, overlap)

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

    def outcome(
        self, strategy: str, rows: int, bound: int, slots: int, squares: int, padding: int = 0
    ) -> PackingEstimate:
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
            slots=slots,
            labels=self.labels,
            labels_lost=self.stats.labels - self.labels,
            squares=squares,
            padding=padding,
            overlap=self.overlap,
        )


def _padded(cut: _Cut, options: SweepOptions) -> PackingEstimate:
    lengths = cut.sizes[cut.order]
    lengths = lengths[lengths > 0]
    batches = least_rows(len(lengths), options.batch)
    sizes = np.full(batches, options.batch, dtype=np.int64)
    if batches:
        sizes[-1] = len(lengths) - (batches - 1) * options.batch
    longest = np.zeros(batches * options.batch, dtype=np.int64)
    longest[: len(lengths)] = lengths
    longest = longest.reshape(batches, options.batch).max(axis=1, initial=0)
    slots, squares = int((longest * sizes).sum()), int((longest * longest * sizes).sum())
    return cut.outcome("padded", batches, batches, slots, squares)


def _padding_free(cut: _Cut, options: SweepOptions) -> PackingEstimate:
    wide = cut.sizes.astype(np.int64)
    pieces = cut.documents if cut.owners is None else int(np.count_nonzero(wide))
    batches = least_rows(pieces, options.batch)
    return cut.outcome("padding_free", batches, batches, int(wide.sum()), int((wide * wide).sum()))


def _packed(cut: _Cut, strategy: str, options: SweepOptions, compose: Compose | None) -> PackingEstimate:
    rows = bound = padding = squares = 0
    align = options.align
    for lengths in cut.windows(compose):
        units = in_units(lengths, align)
        counts = size_counts(units, cut.limit // align)
        opened, least = rows_and_bound(counts, options.max_docs)
        if strategy == "tight" and opened > least:
            opened = tight_row_count(units, counts, options.max_docs, options.work)
        wide = units.astype(np.int64)
        rows, bound = rows + opened, bound + least
        squares += int((wide * wide).sum()) * align * align
        padding += int(wide.sum()) * align - int(lengths.sum(dtype=np.int64)) if align > 1 else 0
    return cut.outcome(strategy, rows, bound, rows * cut.limit, squares, padding)
