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
    overlong: NDArray[np.bool_]
    """(N,) left out, because it is too long."""
    empty: NDArray[np.bool_]
    """(N,) left out, because it has no token."""


def truncate(
    lengths: NDArray[np.int32],
    trainable: NDArray[np.int32],
    max_length: int,
    overlong: Overlong,
    keep: Keep,
    keep_untrained: bool,
) -> Kept:
    """Decide for each document whether it stays and which part of it.

    The test for a trained token is made on the whole document, before any cut. Its first token does not count,
    because the label of a piece's first token never does.

    Args:
        lengths: (N,) tokens of each document.
        trainable: (N,) tokens that the mask asks for, the first token of the document not counted.
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
    kept[untrained | dropped] = 0
    return Kept(starts, kept, untrained, dropped, empty)
