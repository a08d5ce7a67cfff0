"""The quality of the packing: rows, bound, fill and order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .....schemas.manifest import Manifest, SplitRecord
from .....schemas.report import Histogram, SplitPacking
from ....pack.windows import mix64, window_seed
from ..lengths.histograms import Tally, spearman
from ..lengths.packed import evenly
from .look import RowLook, RowWeight

SORTED = 4_000_000
"""Largest window whose shuffle is undone, in rows: sorting more takes seconds and hundreds of megabytes."""
RANKED = 500_000
"""Maximum number of rows whose order is measured. If there are more, evenly chosen ones are used."""


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Spearman's correlation of a row's position with its longest document; None if unknown."""

    before: float | None
    after: float | None


def split_packing(name: str, split: SplitRecord, capacity: int, weight: RowWeight, look: RowLook) -> SplitPacking:
    """The packing of one split."""
    bound = sum(window.bound for window in split.windows)
    fills, documents = Tally(), Tally()
    for first in range(0, split.rows, 1 << 22):
        fills.add(weight.tokens[first : first + (1 << 22)])
    documents.add(look.pieces)
    return SplitPacking(
        split=name,
        rows=split.rows,
        bound=bound,
        gap=split.rows / bound - 1 if bound else 0.0,
        fill=split.fill(capacity),
        tokens=split.tokens,
        labels=split.trained,
        pieces=sum(window.pieces for window in split.windows),
        shards=len(split.shards),
        windows=len(split.windows),
        fills=fills.shares(capacity),
        documents=_documents(documents, look.exact),
        padding=split.padding,
    )


def _documents(tally: Tally, exact: bool) -> Histogram:
    """Even bins if the numbers are small, else bins that grow."""
    even = tally.even(exact=exact)
    spread = even.quantiles.get("max", 0) / max(even.quantiles.get("p50", 1), 1)
    return tally.logarithmic(exact=exact) if spread > 50 else even


def order_of(manifest: Manifest, split: SplitRecord, look: RowLook) -> RowOrder:
    """The correlation of rows before the shuffle, if that can be undone, and as written."""
    taken = evenly(len(look.rows), RANKED) if len(look.rows) else np.zeros(0, np.int64)
    rows, longest = look.rows[taken], look.longest[taken]
    after = spearman(rows, longest)
    if not manifest.plan["config"]["pack"]["shuffle"]:
        return RowOrder(after, after)
    places = planned_places(manifest, split, rows)
    return RowOrder(spearman(places, longest) if places is not None else None, after)


def planned_places(manifest: Manifest, split: SplitRecord, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """(S,) the rows' positions in the plan, before the shuffle: the inverse of `planning.permute_rows`.

    None if a window is too large to undo its shuffle cheaply.
    """
    sizes = [window.rows for window in split.windows]
    if max(sizes, default=0) > SORTED:
        return None
    places = rows.copy()
    first = 0
    for number, size in enumerate(sizes):
        keys = mix64(np.arange(size, dtype=np.uint64), window_seed(manifest.plan["config"]["seed"], number))
        order = np.argsort(keys, kind="stable")
        mine = (rows >= first) & (rows < first + size)
        places[mine] = first + order[rows[mine] - first]
        first += size
    return places
