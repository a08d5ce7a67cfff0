"""What other lengths and strategies would give, from lengths and runs alone: nothing is encoded, nothing laid out.

Rows of a strategy depend on how many pieces there are of each size, so one pass over the documents a candidate makes a
histogram, and the walk of `bestfit` over it counts the rows of the real plan.

Legend: `N` documents, `K` runs that the mask asks for, `C` candidate length, `B` documents of a padded batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..schemas.errors import ConfigError
from .bestfit import rows_needed
from .bounds import least_rows, martello_toth, size_counts
from .truncate import Keep

CANDIDATES = tuple(1 << power for power in range(8, 18))
"""256 to 131,072."""
STRATEGIES = ("padded", "padding_free", "wrapped", "bfd", "bfd_split")
"""`padded`: batches of B documents in random order, each as long as its longest. `padding_free`: documents end to end,
none padded, a batch as long as it gets. The others are those of `plan.Strategy`."""


@dataclass(frozen=True, slots=True, eq=False)
class Stock:
    """Documents to be packed, as far as lengths go: after filters and other limits, before `max_length`."""

    lengths: NDArray[np.int32]
    """(N,) tokens."""
    owners: NDArray[np.int32]
    """(K,) the document of each run that the mask asks for; rising."""
    begins: NDArray[np.int32]
    """(K,) its first token within the document."""
    ends: NDArray[np.int32]
    """(K,) one past its last."""

    @property
    def tokens(self) -> int:
        """In all."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def labels(self) -> int:
        """Tokens that would be trained if nothing were cut: all asked for, but for documents' first tokens."""
        return int(self._asked().sum()) - int(np.count_nonzero(self.begins == 0))

    def _asked(self) -> NDArray[np.int64]:
        return (self.ends - self.begins).astype(np.int64)

    def cut(self, limit: int, keep: Keep) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(N,) tokens that truncation leaves of each document, and (N,) how many of them are labels that count."""
        kept = np.minimum(self.lengths, np.int32(limit))
        low = np.zeros(len(self.owners), dtype=np.int32)
        high = np.full(len(self.owners), limit, dtype=np.int32)
        if keep is Keep.END:
            low = (self.lengths - kept)[self.owners]
            high = self.lengths[self.owners]
        begins, ends = np.maximum(self.begins, low), np.minimum(self.ends, high)
        asked = np.maximum(ends - begins, 0)
        # The first token of what stays has no label.
        labels = asked - ((begins == low) & (asked > 0))
        return kept, np.bincount(self.owners, weights=labels, minlength=len(kept)).astype(np.int64)


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
    """Left out, because nothing that is trained is left of them."""
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
    """What the device computes: tokens and padding. Rows of a packed strategy are not filled up by FlashAttention, but
    by a batch of fixed shape; here they count as full."""
    labels: int
    """Trained."""
    labels_lost: int
    squares: int
    """Σℓ² over what attends to each other: pieces; in `padded`, documents with their padding."""

    @property
    def fill(self) -> float:
        """Tokens in what is computed, 0 to 1."""
        return self.tokens / self.slots if self.slots else 0.0

    @property
    def gap(self) -> float:
        """Rows above the bound, as a share of it."""
        return self.rows / self.bound - 1 if self.bound else 0.0

    def flops(self, parameters: float, layers: int, hidden: int) -> tuple[float, float]:
        """(attention, all) floating-point operations of one epoch, forward and backward.

        A token costs 6·parameters; causal attention over ℓ tokens costs 6·ℓ²·hidden in each layer (half of the square,
        for scores and for values, once forward and twice backward).
        """
        attention = 6.0 * self.squares * hidden * layers
        return attention, attention + 6.0 * parameters * self.slots


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What does not change from candidate to candidate."""

    batch: int = 8
    """B."""
    keep: Keep = Keep.START
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
            documents_lost=int(np.count_nonzero(self.stock.lengths)) - self.documents,
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
    """The documents that strategies which cut for themselves take: those with anything to train."""

    stock: Stock
    lengths: NDArray[np.int64]
    """(M,) tokens of those that are packed."""
    begins: NDArray[np.int64]
    """(K,) of their runs."""
    ends: NDArray[np.int64]
    owners: NDArray[np.int64]
    """(K,) in 0 .. M - 1."""

    @classmethod
    def of(cls, stock: Stock, options: SweepOptions) -> "_Whole":
        there = stock.lengths > 0
        if not options.keep_untrained:
            labels = (stock.ends - stock.begins) - (stock.begins == 0)
            there &= np.bincount(stock.owners, weights=labels, minlength=len(there)) > 0
        mine = there[stock.owners]
        index = np.cumsum(there) - 1
        return cls(
            stock,
            stock.lengths[there].astype(np.int64),
            stock.begins[mine].astype(np.int64),
            stock.ends[mine].astype(np.int64),
            index[stock.owners[mine]],
        )

    def outcome(
        self, strategy: str, limit: int, cut: int, pieces: int, rows: int, bound: int, slots: int, heads: int,
        squares: int,
    ) -> Outcome:  # fmt: skip
        """`heads`: labels lost at the first tokens of pieces."""
        tokens = int(self.lengths.sum())
        labels = int((self.ends - self.begins).sum()) - heads
        return Outcome(
            strategy=strategy,
            max_length=limit,
            documents=len(self.lengths),
            documents_cut=cut,
            documents_lost=int(np.count_nonzero(self.stock.lengths)) - len(self.lengths),
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
    number = np.bincount(whole.lengths)
    full, rest = np.divmod(np.arange(len(number)), limit)
    left = np.bincount(rest, weights=number, minlength=limit).astype(np.int64)
    left[0] = 0
    align = options.align
    counts = np.bincount(_units(np.arange(limit), align), weights=left, minlength=limit // align + 1).astype(np.int64)
    whole_pieces = int((full * number).sum())
    counts[-1] += whole_pieces
    rows, bound = _rows(counts, options)
    squares = whole_pieces * limit * limit + int((left * np.arange(limit) ** 2).sum())
    heads = _multiples(np.bincount(whole.ends), limit) - _multiples(np.bincount(whole.begins), limit)
    cut = int(number[limit + 1 :].sum())
    pieces = whole_pieces + int(left.sum())
    return whole.outcome("bfd_split", limit, cut, pieces, rows, bound, rows * limit, heads, squares)


def _wrapped(whole: _Whole, limit: int) -> Outcome:
    ends = np.cumsum(whole.lengths)
    begins = ends - whole.lengths
    rows = least_rows(int(ends[-1]) if len(ends) else 0, limit)
    # A document is a first piece up to the end of its row, full rows, and a last piece.
    first = np.minimum(whole.lengths, -begins % limit)
    full, last = np.divmod(whole.lengths - first, limit)
    squares = int((first * first).sum()) + int(full.sum()) * limit * limit + int((last * last).sum())
    pieces = int(np.count_nonzero(first)) + int(full.sum()) + int(np.count_nonzero(last))
    base = begins[whole.owners]
    # Beginnings of rows, and of the documents that do not begin one.
    at_rows = int((-(-(base + whole.ends) // limit) + (-(base + whole.begins) // limit)).sum())
    heads = at_rows + int(np.count_nonzero((whole.begins == 0) & (base % limit > 0)))
    cut = int(np.count_nonzero(begins // limit != np.maximum(ends - 1, begins) // limit))
    return whole.outcome("wrapped", limit, cut, pieces, rows, rows, rows * limit, heads, squares)


def _multiples(number: NDArray[np.int64], step: int) -> int:
    """Over all places, the multiples of `step` below each, 0 among them.

    Args:
        number: (places,) how often each place stands there.
    """
    return int((-(-np.arange(len(number)) // step) * number).sum())


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
