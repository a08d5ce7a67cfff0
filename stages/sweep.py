"""What other lengths and strategies would give, from lengths and runs alone: nothing is encoded, nothing laid out.

Rows of a strategy depend on how many pieces there are of each size, so one pass over the documents a candidate makes a
histogram, and the walk of `bestfit` over it counts the rows of the real plan.

Legend as in `stock.py`; `M` documents with anything to train, `B` documents of a padded batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..schemas.errors import ConfigError
from .bestfit import rows_needed
from .bounds import least_rows, martello_toth, size_counts
from .stock import Counted
from .stock import Stock as Stock
from .truncate import Keep

CANDIDATES = tuple(1 << power for power in range(8, 18))
"""256 to 131,072."""
STRATEGIES = ("padded", "padding_free", "wrapped", "bfd", "bfd_split")
"""`padded`: batches of B documents in random order, each as long as its longest. `padding_free`: documents end to end,
none padded, a batch as long as it gets. The others are those of `plan.Strategy`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one strategy makes of the stock at one length."""

    strategy: str
    max_length: int
    documents: int
    """That are packed, whole or in part."""
    documents_cut: int
    """Of them, those that lose tokens (by truncation) or are cut into several pieces (by the strategy)."""
    documents_lost: int
    """Left out, because nothing that is trained is left of them, or because they are too long and are not cut."""
    pieces: int
    rows: int
    """Of `padded` and `padding_free`: batches."""
    bound: int
    """Fewest rows that any plan of the same pieces could have; of batches, their number."""
    tokens: int
    """Packed, padding not counted."""
    tokens_lost: int
    """Truncated, or of documents that are left out."""
    slots: int
    """Room that they take: tokens and padding, and of a packed strategy whole rows. Batches of a fixed shape compute
    all of it."""
    labels: int
    """Trained."""
    labels_lost: int
    squares: int
    """Σℓ² over what attends to each other: pieces; in `padded`, documents with their padding."""

    @property
    def fill(self) -> float:
        """Tokens in the room they take, 0 to 1."""
        return self.tokens / self.slots if self.slots else 0.0

    @property
    def gap(self) -> float:
        """Rows above the bound, as a share of it."""
        return self.rows / self.bound - 1 if self.bound else 0.0

    @property
    def computed(self) -> int:
        """Tokens that a device computes: packed rows are laid end to end, and nothing fills them up."""
        return self.slots if self.strategy == "padded" else self.tokens

    def flops(self, parameters: float, layers: int, hidden: int) -> tuple[float, float]:
        """(attention, all) floating-point operations of one epoch, forward and backward.

        A token costs 6·parameters; causal attention over ℓ tokens costs 6·ℓ²·hidden in each layer (half of the square,
        for scores and for values, once forward and twice backward).
        """
        attention = 6.0 * self.squares * hidden * layers
        return attention, attention + 6.0 * parameters * self.computed


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What does not change from candidate to candidate."""

    batch: int = 8
    """B."""
    keep: Keep = Keep.START
    drop: bool = False
    """Documents that are too long are left out, not truncated. The strategies that cut them do so all the same."""
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
) -> list[Outcome]:
    """Every strategy at every length, the lengths in their order.

    Raises:
        ConfigError: a strategy is not one of `STRATEGIES`.
    """
    options = options or SweepOptions()
    order = np.random.default_rng(options.seed).permutation(len(stock.lengths))
    whole = _Whole.of(stock, options)
    out = []
    for limit in candidates:
        truncated = _Truncated.of(stock, limit, options)
        for strategy in strategies:
            if strategy == "padded":
                out.append(_padded(truncated, order, options))
            elif strategy == "padding_free":
                out.append(_padding_free(truncated, options))
            elif strategy == "bfd":
                out.append(_packed(truncated, options))
            elif strategy == "wrapped":
                out.append(_wrapped(whole, limit))
            elif strategy == "bfd_split":
                out.append(_split(whole, limit, options))
            else:
                raise ConfigError(f"strategy {strategy!r} is not known; take some of {', '.join(STRATEGIES)}")
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Truncated:
    """The stock, cut at one length."""

    stock: Stock
    limit: int
    kept: NDArray[np.int32]
    """(N,) tokens; 0 for a document that is left out."""
    labels: int
    documents: int
    cut: int

    @classmethod
    def of(cls, stock: Stock, limit: int, options: SweepOptions) -> "_Truncated":
        kept, labels = stock.cut(limit, options.keep)
        if options.drop:
            kept = np.where(stock.lengths <= limit, kept, 0)
        if not options.keep_untrained:
            kept = np.where(labels > 0, kept, 0)
        documents = int(np.count_nonzero(kept))
        cut = int(np.count_nonzero((kept > 0) & (kept < stock.lengths)))
        return cls(stock, limit, kept, int(labels[kept > 0].sum()), documents, cut)

    def outcome(self, strategy: str, rows: int, bound: int, slots: int, squares: int) -> Outcome:
        tokens = int(self.kept.sum(dtype=np.int64))
        return Outcome(
            strategy=strategy,
            max_length=self.limit,
            documents=self.documents,
            documents_cut=self.cut,
            documents_lost=self.stock.documents - self.documents,
            pieces=self.documents,
            rows=rows,
            bound=bound,
            tokens=tokens,
            tokens_lost=self.stock.tokens - tokens,
            slots=slots,
            labels=self.labels,
            labels_lost=self.stock.labels - self.labels,
            squares=squares,
        )


def _padded(cut: _Truncated, order: NDArray[np.int64], options: SweepOptions) -> Outcome:
    lengths = cut.kept[order]
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


def _padding_free(cut: _Truncated, options: SweepOptions) -> Outcome:
    batches = least_rows(cut.documents, options.batch)
    wide = cut.kept.astype(np.int64)
    return cut.outcome("padding_free", batches, batches, int(wide.sum()), int((wide * wide).sum()))


def _packed(cut: _Truncated, options: SweepOptions) -> Outcome:
    lengths = cut.kept[cut.kept > 0]
    rows, bound = _rows(size_counts(_units(lengths, options.align), cut.limit // options.align), options)
    wide = lengths.astype(np.int64)
    return cut.outcome("bfd", rows, bound, rows * cut.limit, int((wide * wide).sum()))


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """The documents that strategies which cut for themselves take: those with anything to train.

    Places are those in all documents laid end to end.
    """

    stock: Stock
    begins: NDArray[np.int64]
    """(M,) first token of each document."""
    ends: NDArray[np.int64]
    """(M,) one past its last."""
    run_begins: NDArray[np.int64]
    """(K,)"""
    run_ends: NDArray[np.int64]
    """(K,)"""
    asked: int
    """Tokens of the runs."""
    first: NDArray[np.int64]
    """Where documents begin of which the first token is asked for."""
    sizes: Counted
    """The lengths."""
    marks: tuple[Counted, Counted]
    """The beginnings and the ends of the runs, within their documents."""

    @classmethod
    def of(cls, stock: Stock, options: SweepOptions) -> "_Whole":
        there = stock.lengths > 0
        if not options.keep_untrained:
            there &= stock.labels_each > 0
        every = there.all()
        mine = there[stock.owners]
        lengths = np.where(there, stock.lengths, 0).astype(np.int64)
        base = np.cumsum(lengths) - lengths
        owners, begins, ends = (
            (column if every else column[mine]) for column in (stock.owners, stock.begins, stock.ends)
        )
        bases = base[owners]
        base, lengths = base[there], lengths[there]
        return cls(
            stock,
            base,
            base + lengths,
            bases + begins,
            bases + ends,
            int((ends - begins).sum(dtype=np.int64)),
            bases[begins == 0],
            Counted.of(stock.lengths[there]),
            (Counted.of(begins), Counted.of(ends)),
        )

    def outcome(
        self, strategy: str, limit: int, cut: int, pieces: int, rows: int, bound: int, slots: int, heads: int,
        squares: int,
    ) -> Outcome:  # fmt: skip
        """`heads`: labels lost at the first tokens of pieces."""
        tokens = int((self.sizes.values * self.sizes.number).sum())
        labels = self.asked - heads
        return Outcome(
            strategy=strategy,
            max_length=limit,
            documents=len(self.begins),
            documents_cut=cut,
            documents_lost=self.stock.documents - len(self.begins),
            pieces=pieces,
            rows=rows,
            bound=bound,
            tokens=tokens,
            tokens_lost=self.stock.tokens - tokens,
            slots=slots,
            labels=labels,
            labels_lost=self.stock.labels - labels,
            squares=squares,
        )


def _split(whole: _Whole, limit: int, options: SweepOptions) -> Outcome:
    # By length and not by document: there are fewer lengths.
    lengths, number = whole.sizes.values, whole.sizes.number
    full, rest = np.divmod(lengths, limit)
    left = np.bincount(rest, weights=number, minlength=limit).astype(np.int64)
    left[0] = 0
    align = options.align
    counts = np.bincount(_units(np.arange(limit), align), weights=left, minlength=limit // align + 1).astype(np.int64)
    whole_pieces = int((full * number).sum())
    counts[-1] += whole_pieces
    rows, bound = _rows(counts, options)
    squares = whole_pieces * limit * limit + int((left * np.arange(limit) ** 2).sum())
    begins, ends = whole.marks
    heads = ends.multiples(limit) - begins.multiples(limit)
    cut = int(number[lengths > limit].sum())
    pieces = whole_pieces + int(left.sum())
    return whole.outcome("bfd_split", limit, cut, pieces, rows, bound, rows * limit, heads, squares)


def _wrapped(whole: _Whole, limit: int) -> Outcome:
    begins, ends = whole.begins, whole.ends
    rows = least_rows(int(ends[-1]) if len(ends) else 0, limit)
    # A document is a first piece up to the end of its row, full rows, and a last piece.
    first = np.minimum(_upwards(begins, limit) * limit, ends) - begins
    last = np.maximum(ends - np.maximum(_downwards(ends, limit) * limit, begins + first), 0)
    full = (int((ends - begins - first - last).sum())) // limit
    squares = int((first * first).sum()) + full * limit * limit + int((last * last).sum())
    pieces = int(np.count_nonzero(first)) + full + int(np.count_nonzero(last))
    # Beginnings of rows, and of the documents that do not begin one.
    at_rows = int(_upwards(whole.run_ends, limit).sum()) - int(_upwards(whole.run_begins, limit).sum())
    heads = at_rows + int(np.count_nonzero(whole.first % limit))
    cut = int(np.count_nonzero(_downwards(begins, limit) != _downwards(ends - 1, limit)))
    return whole.outcome("wrapped", limit, cut, pieces, rows, rows, rows * limit, heads, squares)


def _downwards(values: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    """`values // step`; a power of two is shifted, which is several times as fast."""
    return values >> (step.bit_length() - 1) if step & (step - 1) == 0 else values // step


def _upwards(values: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    """The same, rounded up."""
    return _downwards(values + (step - 1), step)


def _units(lengths: NDArray[np.integer], align: int) -> NDArray[np.integer]:
    return lengths if align == 1 else (lengths + align - 1) // align


def _rows(counts: NDArray[np.int64], options: SweepOptions) -> tuple[int, int]:
    """Rows of best-fit-decreasing, and the bound."""
    units = len(counts) - 1
    number, tokens = int(counts.sum()), int((counts * np.arange(units + 1)).sum())
    bound = max(least_rows(tokens, units), martello_toth(counts, units))
    if options.max_docs is not None:
        bound = max(bound, least_rows(number, options.max_docs))
    return rows_needed(counts, options.max_docs), bound
