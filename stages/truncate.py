"""What is kept of each document before packing: which are left out whole, and which part of the others stays."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Overlong(StrEnum):
    """What happens to a document longer than a row."""

    TRUNCATE = "truncate"
    DROP = "drop"
    ERROR = "error"
    SPLIT = "split"
    """The packing strategy cuts it into pieces; nothing is lost."""


class Keep(StrEnum):
    """Which end of a truncated document stays."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class Kept:
    """The outcome for N documents."""

    starts: NDArray[np.int32]
    """(N,) first token that stays."""
    lengths: NDArray[np.int32]
    """(N,) tokens that stay; 0 for a document that is left out."""
    untrained: NDArray[np.bool_]
    """(N,) left out, because no token of the whole document is asked for."""
    cut_untrained: NDArray[np.bool_]
    """(N,) left out, because truncation took every token that is asked for."""
    overlong: NDArray[np.bool_]
    """(N,) left out, because it is too long."""
    empty: NDArray[np.bool_]
    """(N,) left out, because it has no token."""


def truncate(
    lengths: NDArray[np.int32],
    trainable: NDArray[np.int32],
    trainable_kept: NDArray[np.int32],
    max_length: int,
    overlong: Overlong,
    keep: Keep,
    keep_untrained: bool,
) -> Kept:
    """Decide for each document whether it stays and which part of it.

    A document in which nothing is trained is left out, and so is one of which truncation leaves nothing to train: a
    row of such documents alone has no loss. The two are counted apart. The first token never counts, because the
    label of a piece's first token does not. Strategies that cut documents into pieces keep every piece.

    Args:
        lengths: (N,) tokens of each document.
        trainable: (N,) tokens that the mask asks for, the first token of the document not counted.
        trainable_kept: (N,) the same of the part that truncation leaves, its first token not counted.
        max_length: C, capacity of a row in tokens.
    """
    empty = lengths == 0
    untrained = (trainable == 0) & ~empty if not keep_untrained else np.zeros(len(lengths), dtype=np.bool_)
    long = lengths > max_length
    dropped = long & ~untrained if overlong is Overlong.DROP else np.zeros(len(lengths), dtype=np.bool_)
    kept = lengths.copy()
    starts = np.zeros(len(lengths), dtype=np.int32)
    if overlong is Overlong.TRUNCATE:
        if keep is Keep.END:
            np.maximum(lengths - max_length, 0, out=starts)
        np.minimum(kept, max_length, out=kept)
    cut = np.zeros(len(lengths), dtype=np.bool_)
    if overlong is Overlong.TRUNCATE and not keep_untrained:
        cut = (trainable_kept == 0) & ~untrained & ~empty
    kept[untrained | cut | dropped] = 0
    return Kept(starts, kept, untrained, cut, dropped, empty)
