"""Decisions that depend on all documents: which are duplicates, and how often each is packed."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ...schemas.ragged import offsets_of
from ...stages.select.copies import draw_keys, later_ones, passes_of
from .table import HELD_OUT, Documents, Table

if TYPE_CHECKING:  # workers import this, and should not import pydantic
    from ...schemas.config.config import RunConfig

MAX_PASSES = 10_000
"""Maximum number of copies of an example; a configuration that asks for more is surely a mistake."""


def later_copies(documents: Documents) -> NDArray[np.int64]:
    """Return the documents still in whose digest an earlier one of them has, ascending."""
    rows = np.flatnonzero(documents.outcome == 0)
    return rows[later_ones(documents.first_digest[rows], documents.second_digest[rows])]


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
    every = [slice(*table.bounds[n : n + 2].tolist()) for n in range(len(sources))]
    available = [int(_tokens(table, here).sum()) for here in every]
    passes = passes_of(available, [one.weight for one in sources], [one.repeat for one in sources])
    for number, (source, often, here) in enumerate(zip(sources, passes, every, strict=True)):
        if often > MAX_PASSES:
            raise ConfigError(
                f"sources.{source.name}.weight would repeat every example {float(often):,.0f} times; lower it, or "
                f"limit it by `repeat` (at most {MAX_PASSES:,})"
            )
        copies = np.full(here.stop - here.start, int(often), np.uint16)
        if more := float((often - int(often)) * available[number]):
            # In the order of their keys, until their tokens are as near as possible to the passes beyond whole ones.
            order = np.argsort(draw_keys(np.arange(len(copies)), config.seed, number), kind="stable")
            sums = offsets_of(_tokens(table, here)[order])
            copies[order[: int(np.argmin(np.abs(sums - more)))]] += 1
        kept = target.documents.copies[here]
        kept[:] = np.where(_tokens(target, here) > 0, copies, kept)


def _tokens(table: Table, here: slice) -> NDArray[np.int64]:
    """(N,) tokens of one copy of each document that is mixed; 0 for others."""
    some = table.documents.at(here)
    mixed = (some.outcome == 0) & ~some.has(HELD_OUT)
    return np.where(mixed, some.kept.astype(np.int64) + some.overlap, 0)
