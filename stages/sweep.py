"""What other lengths and strategies would give, from lengths and runs alone: nothing is encoded, nothing laid out.

Rows of a strategy depend on how many pieces there are of each size, so one pass over the documents a candidate makes a
histogram, and the walk of `bestfit` over it counts the rows of the real plan. `wrapped` has neither alignment nor
`max_docs`, whatever the options say, because no run of it does.

Legend as in `stock.py`; `B` documents of a padded batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..schemas.errors import ConfigError
from .bounds import least_rows, size_counts
from .outcome import Outcome as Outcome
from .rowcount import in_units, rows_and_bound
from .stock import Compose
from .stock import Stock as Stock
from .truncate import Keep
from .wholes import Wholes

CANDIDATES = tuple(1 << power for power in range(8, 18))
"""256 to 131,072."""
STRATEGIES = ("padded", "padding_free", "wrapped", "bfd", "bfd_split")
"""`padded`: batches of B documents in random order, each as long as its longest. `padding_free`: documents end to end,
none padded, a batch as long as it gets. The others are those of `plan.Strategy`. The first two and `bfd` have what is
too long truncated, left out or split, as the options say."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What does not change from candidate to candidate."""

    batch: int = 8
    """B."""
    keep: Keep = Keep.START
    drop: bool = False
    """Documents that are too long are left out, not truncated. The strategies that cut them do so all the same."""
    split: bool = False
    """They are cut into `Stock.pieces` instead."""
    keep_untrained: bool = False
    max_docs: int | None = None
    align: int = 1
    seed: int = 0
    """Of the order of padded batches."""


def sweep(
    stock: Stock,
    candidates: Sequence[int] = CANDIDATES,
    strategies: Sequence[str] = STRATEGIES,
    options: SweepOptions | None = None,
    compose: Compose | None = None,
) -> list[Outcome]:
    """Every strategy at every length, the lengths in their order.

    Args:
        compose: which parts of the stock are planned together; None: all of them.

    Raises:
        ConfigError: a strategy is not one of `STRATEGIES`.
    """
    options = options or SweepOptions()
    order = np.random.default_rng(options.seed).permutation(len(stock.lengths))
    wholes = Wholes.of(stock, options.keep_untrained, compose)
    out = []
    for limit in candidates:
        cut = _Cut.split(stock, limit, options) if options.split else _Cut.truncated(stock, limit, options, order)
        for strategy in strategies:
            if strategy == "padded":
                out.append(_padded(cut, options))
            elif strategy == "padding_free":
                out.append(_padding_free(cut, options))
            elif strategy == "bfd":
                out.append(_packed(cut, options, compose))
            elif strategy == "wrapped":
                out.append(wholes.wrapped(limit))
            elif strategy == "bfd_split":
                out.append(wholes.split(limit, options.align, options.max_docs))
            else:
                raise ConfigError(f"strategy {strategy!r} is not known; take some of {', '.join(STRATEGIES)}")
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """The stock, cut at one length before it is packed."""

    stock: Stock
    limit: int
    sizes: NDArray[np.int32]
    """(S,) tokens of each piece; 0 for a document that is left out."""
    owners: NDArray[np.int32] | None
    """(S,) their documents; None where each document is a piece."""
    order: NDArray[np.int64]
    """(S,) a random one."""
    labels: int
    documents: int
    cut: int
    overlap: int = 0

    @classmethod
    def truncated(cls, stock: Stock, limit: int, options: SweepOptions, order: NDArray[np.int64]) -> "_Cut":
        kept, labels = stock.cut(limit, options.keep)
        if options.drop:
            kept = np.where(stock.lengths <= limit, kept, 0)
        if not options.keep_untrained:
            kept = np.where(labels > 0, kept, 0)
        documents = int(np.count_nonzero(kept))
        cut = int(np.count_nonzero((kept > 0) & (kept < stock.lengths)))
        return cls(stock, limit, kept, None, order, int(labels[kept > 0].sum()), documents, cut)

    @classmethod
    def split(cls, stock: Stock, limit: int, options: SweepOptions) -> "_Cut":
        fits = stock.lengths <= limit
        pieces = stock.pieces.get(limit)
        assert pieces is not None or fits.all(), f"nobody said what {limit} cuts longer documents into"
        if not options.keep_untrained:
            fits &= stock.labels_each > 0
        sizes, owners = np.where(fits, stock.lengths, 0), np.arange(len(stock.lengths), dtype=np.int32)
        labels, cut, overlap = int(stock.labels_each[fits].sum()), 0, 0
        documents = int(np.count_nonzero(sizes))
        if pieces is not None:
            sizes, owners = np.concatenate([sizes, pieces.lengths]), np.concatenate([owners, pieces.owners])
            labels += int(pieces.labels.sum(dtype=np.int64))
            cut = int(np.count_nonzero(np.diff(pieces.owners, prepend=-1)))
            overlap = int(pieces.overlap.sum(dtype=np.int64)) if pieces.overlap is not None else 0
        order = np.random.default_rng(options.seed).permutation(len(sizes))
        return cls(stock, limit, sizes, owners, order, labels, documents + cut, cut, overlap)

    def windows(self, compose: Compose | None) -> Iterator[NDArray[np.int32]]:
        """The sizes of the pieces that are planned together, window by window."""
        windows: Sequence[NDArray[np.int64]] = ()
        parts = self.stock.parts
        if compose is not None and parts is not None:
            tokens = self.sizes
            if self.owners is not None:
                # Whole numbers below 2**53, which floats hold.
                tokens = np.bincount(self.owners, weights=tokens, minlength=len(self.stock.lengths)).astype(np.int64)
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

    def outcome(self, strategy: str, rows: int, bound: int, slots: int, squares: int, padding: int = 0) -> Outcome:
        tokens = int(self.sizes.sum(dtype=np.int64))
        return Outcome(
            strategy=strategy,
            max_length=self.limit,
            documents=self.documents,
            documents_cut=self.cut,
            documents_lost=self.stock.documents - self.documents,
            pieces=self.documents if self.owners is None else int(np.count_nonzero(self.sizes)),
            rows=rows,
            bound=bound,
            tokens=tokens,
            tokens_lost=self.stock.tokens - (tokens - self.overlap),
            slots=slots,
            labels=self.labels,
            labels_lost=self.stock.labels - self.labels,
            squares=squares,
            padding=padding,
            overlap=self.overlap,
        )


def _padded(cut: _Cut, options: SweepOptions) -> Outcome:
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


def _padding_free(cut: _Cut, options: SweepOptions) -> Outcome:
    wide = cut.sizes.astype(np.int64)
    pieces = cut.documents if cut.owners is None else int(np.count_nonzero(wide))
    batches = least_rows(pieces, options.batch)
    return cut.outcome("padding_free", batches, batches, int(wide.sum()), int((wide * wide).sum()))


def _packed(cut: _Cut, options: SweepOptions, compose: Compose | None) -> Outcome:
    rows = bound = padding = squares = 0
    align = options.align
    for lengths in cut.windows(compose):
        units = in_units(lengths, align)
        opened, least = rows_and_bound(size_counts(units, cut.limit // align), options.max_docs)
        wide = units.astype(np.int64)
        rows, bound = rows + opened, bound + least
        squares += int((wide * wide).sum()) * align * align
        padding += int(wide.sum()) * align - int(lengths.sum(dtype=np.int64)) if align > 1 else 0
    return cut.outcome("bfd", rows, bound, rows * cut.limit, squares, padding)
