"""Decides which documents are packed and how often, and records why the others are left out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STAYS = 0
"""The code of a document that is packed."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Which of N documents are packed. All decisions go through it, so each document has one outcome and one reason.

    Decisions are made one after another. The first that leaves a document out gives the reason; later ones skip the
    document.
    """

    copies: NDArray[np.int32]
    """(N,) how many times each document is packed; 0 if left out."""
    code: NDArray[np.int8]
    """(N,) why each document is left out: an index into `reasons`, or STAYS."""
    reasons: list[str]
    """The ledger's reasons in the order of first use; the first entry stands for STAYS."""

    @classmethod
    def of(cls, count: int) -> "Selection":
        """Select all documents, once each."""
        return cls(np.ones(count, dtype=np.int32), np.zeros(count, dtype=np.int8), [""])

    def __len__(self) -> int:
        return len(self.copies)

    @property
    def stays(self) -> NDArray[np.bool_]:
        """(N,) whether each document is packed."""
        stays: NDArray[np.bool_] = self.code == STAYS
        return stays

    def leave_out(self, which: NDArray[np.bool_], reason: str) -> None:
        """Leave out the documents of `which`, (N,), that are still in, for the ledger's `reason`."""
        gone = which & self.stays
        if not gone.any():
            return
        if reason not in self.reasons:
            self.reasons.append(reason)
        self.code[gone] = self.reasons.index(reason)
        self.copies[gone] = 0

    def left_out(self, reason: str) -> NDArray[np.bool_]:
        """(N,) which documents are left out for this reason."""
        if reason not in self.reasons:
            return np.zeros(len(self), dtype=np.bool_)
        out: NDArray[np.bool_] = self.code == self.reasons.index(reason)
        return out
