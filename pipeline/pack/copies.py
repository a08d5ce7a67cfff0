"""Decisions that depend on all documents: which are duplicates, and how often each is packed.

Columns are mapped, and only what is compared is held in memory: digests of one range, and the documents near the border
of a weight.
"""

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ...schemas.ragged import offsets_of
from ...stages.select.copies import draw_keys, later_ones, passes_of
from .table import HELD_OUT, SLICE, Documents, Table

if TYPE_CHECKING:  # workers import this, and should not import pydantic
    from ...schemas.config.config import RunConfig

MAX_PASSES = 10_000
"""Maximum number of copies of an example; a configuration that asks for more is surely a mistake."""
AT_ONCE = 1 << 21
"""Digests compared at once: about 120 MB, including sorting."""
_KEY_BITS = 12
"""Their first bits choose a range of keys."""


def later_copies(documents: Documents) -> NDArray[np.int64]:
    """Return the documents still in whose digest an earlier one of them has, in any order.

    Digests are compared one range after another, so that those of a range fit into memory.
    """
    bits = (len(documents) // AT_ONCE).bit_length()
    later = [np.zeros(0, np.int64)]
    for part in range(1 << bits):
        found = [np.zeros(0, np.int64)]
        for first in range(0, len(documents), SLICE):
            some = documents.at(slice(first, first + SLICE))
            here = some.outcome == 0
            if bits:
                here &= some.first_digest >> np.uint64(64 - bits) == part
            found.append(np.flatnonzero(here) + first)
        rows = np.concatenate(found)
        later.append(rows[later_ones(documents.first_digest[rows], documents.second_digest[rows])])
    return np.concatenate(later)


def mixes(config: "RunConfig") -> bool:
    """Whether the configuration uses `repeat` or `weight`."""
    return any(source.weight is not None or source.repeat is not None for source in config.sources)


def set_copies(table: Table, config: "RunConfig", target: Table | None = None) -> None:
    """Set how often each document that is still in is packed, by `repeat` and `weight`. Held-out ones are packed once.

    Args:
        target: the table to set them in, if it is another one of the same documents.

    Raises:
        ConfigError: a weight asks for too many copies.
    """
    sources, target = config.sources, target or table
    available = [sum(int(_tokens(table, here).sum()) for here in _slices(table, n)) for n in range(len(sources))]
    passes = passes_of(available, [one.weight for one in sources], [one.repeat for one in sources])
    for number, (source, often) in enumerate(zip(sources, passes, strict=True)):
        if often > MAX_PASSES:
            raise ConfigError(
                f"sources.{source.name}.weight would repeat every example {float(often):,.0f} times; lower it, or "
                f"limit it by `repeat` (at most {MAX_PASSES:,})"
            )
        key, place = _border(table, config.seed, number, often, available[number])
        for here in _slices(table, number):
            keys, places = _keys(table, here, config.seed, number)
            more = (keys < key) | ((keys == key) & (places < place))
            copies = target.documents.copies[here]
            copies[:] = np.where(_tokens(target, here) > 0, int(often) + more, copies)


def _border(table: Table, seed: int, source: int, passes: Fraction, available: int) -> tuple[np.uint64, int]:
    """Return (key, place) of the first document without a further copy, if documents of a source get one in the order
    of their keys until the sum of their tokens is as near as possible to that of the passes beyond whole ones.

    One pass sums tokens over ranges of keys; a second sorts the documents of the range that reaches the sum.
    """
    target = float((passes - int(passes)) * available)
    if target <= 0:
        return np.uint64(0), 0
    spread = np.zeros(1 << _KEY_BITS, np.int64)
    for here in _slices(table, source):
        keys, _ = _keys(table, here, seed, source)
        np.add.at(spread, keys >> np.uint64(64 - _KEY_BITS), _tokens(table, here))
    sums = np.cumsum(spread)
    piece = min(int(np.searchsorted(sums, target, side="right")), len(sums) - 1)
    found = []
    for here in _slices(table, source):
        keys, places = _keys(table, here, seed, source)
        tokens = _tokens(table, here)
        inside = (keys >> np.uint64(64 - _KEY_BITS) == piece) & (tokens > 0)
        found.append((keys[inside], places[inside], tokens[inside]))
    keys, places, tokens = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((places, keys))
    count = int(np.argmin(np.abs(sums[piece] - spread[piece] + offsets_of(tokens[order]) - target)))
    if count == len(order):  # behind all documents of the range
        return keys[order[-1]], int(places[order[-1]]) + 1
    return keys[order[count]], int(places[order[count]])


def _slices(table: Table, source: int) -> list[slice]:
    return [here for owner, here in table.slices() if owner == source]


def _keys(table: Table, here: slice, seed: int, source: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """(N,) keys, and (N,) places within the source."""
    places = np.arange(here.start, here.stop) - int(table.bounds[source])
    return draw_keys(places, seed, source), places


def _tokens(table: Table, here: slice) -> NDArray[np.int64]:
    """(N,) tokens of one copy of each document that is mixed; 0 for others."""
    some = table.documents.at(here)
    mixed = (some.outcome == 0) & ~some.has(HELD_OUT)
    return np.where(mixed, some.kept.astype(np.int64) + some.overlap, 0)
