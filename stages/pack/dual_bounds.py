"""Lower bounds on rows from dual-feasible functions, over a histogram of sizes.

A function f of sizes is *dual feasible* if the values of sizes that share a row never add up to more than f(C). Then
every row is worth at most f(C), so any plan needs at least ⌈Σ f(size) / f(C)⌉ rows. The number of tokens is one such
function, f(x) = x; Martello and Toth's L2 is the best of a family of them.

Legend: `C` capacity, `S` distinct sizes, `E` thresholds.

Sources: S. P. Fekete and J. Schepers, New classes of fast lower bounds for bin packing problems, 2001 (u^(k), U^(eps));
J. Carlier, F. Clautiaux and A. Moukrim, New reduction procedures and lower bounds for the two-dimensional bin packing
problem with fixed orientation, 2007 (f_CCM, which is never below phi^(eps)).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of

_FUNCTIONS = 900
"""The most functions to try."""
_VALUES = 20_000_000
"""The most values of functions to compute: the work, and so the time, is bounded whatever the sizes are."""

Values = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DualBound:
    """A lower bound on rows, and the dual-feasible function that gives it."""

    rows: int
    bound_by: str
    """The function: `tokens`, `u(k)` or `ccm(k)`, with `, from e` where sizes below e count nothing."""
    values: Values
    """(C + 1,) the value of each size."""
    full: int
    """The value of a full row, f(C): no row is worth more."""


def dual_bound(counts: Values, enough: int) -> DualBound:
    """Return the best bound found.

    Args:
        counts: (C + 1,) how many pieces have each size; none of size 0.
        enough: the rows of a known plan: a bound that reaches it ends the search.
    """
    capacity = len(counts) - 1
    sizes = np.flatnonzero(counts)
    numbers = counts[sizes]
    # U^(eps): sizes below eps count nothing, sizes above C - eps count as a full row. It is dual feasible, and so is
    # any other function of its result. All thresholds of one function are tried at once, from running sums.
    thresholds = np.concatenate([[0], sizes[2 * sizes <= capacity]])
    first = np.searchsorted(sizes, thresholds)
    alone = np.searchsorted(sizes, capacity - thresholds, side="right")
    number = offsets_of(numbers)
    rows_alone = number[-1] - number[alone]
    best: tuple[int, int, str, int] = (0, 0, "", 0)
    tries = max(16, min(_FUNCTIONS, _VALUES // max(1, len(sizes))))
    for index, (name, parameter) in enumerate(_functions(sizes, capacity)):
        if index >= tries or best[0] >= enough:
            break
        values, full = _values(name, parameter, sizes, capacity)
        total = offsets_of(numbers * values)
        worth = full * rows_alone + total[alone] - total[first]
        place = int(worth.argmax())
        rows = -(-int(worth[place]) // full)
        if rows > best[0]:
            best = (rows, parameter, name, int(thresholds[place]))
    rows, parameter, name, threshold = best
    every = np.arange(capacity + 1, dtype=np.int64)
    values, full = _values(name or "tokens", parameter, every, capacity)
    values[:threshold] = 0
    values[capacity - threshold + 1 :] = full
    label = name or "tokens"
    label = f"{label}({parameter})" if parameter else label
    return DualBound(rows, f"{label}, from {threshold}" if threshold else label, values, full)


def _functions(sizes: Values, capacity: int) -> Iterator[tuple[str, int]]:
    """The functions to try, those that help most often first."""
    yield "tokens", 0
    yield from (("u", k) for k in range(2, 21))
    yield "u", 1
    half = capacity // 2
    if capacity <= _FUNCTIONS:
        yield from (("ccm", k) for k in range(half, 0, -1))
    else:
        near = [capacity // part + more for part in range(2, 30) for more in (1, 0)]
        even = [2 * capacity // part for part in range(4, 400)]
        middle = sizes[sizes <= half]
        tried = dict.fromkeys([*near, *even, *middle[:: max(1, len(middle) // 300)].tolist()])
        yield from (("ccm", k) for k in tried if 1 <= k <= half)
    yield from (("u", k) for k in range(21, 101))


def _values(name: str, k: int, sizes: Values, capacity: int) -> tuple[Values, int]:
    """Return the function's value of each size, and of the capacity."""
    if name == "tokens":
        return sizes.astype(np.int64), capacity
    if name == "u":
        parts, rest = np.divmod((k + 1) * sizes.astype(np.int64), capacity)
        return np.where(rest == 0, sizes * k, parts * capacity), k * capacity
    twice, whole = 2 * sizes, capacity // k
    above = 2 * (whole - (capacity - sizes) // k)
    return np.where(twice > capacity, above, np.where(twice == capacity, whole, 2 * (sizes // k))), 2 * whole
