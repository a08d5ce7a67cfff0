"""Which documents are packed, how many times, and why the others are not."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STAYS = 0
"""The code of a document that nothing has left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The state of N documents; every decision goes through it, so that each has one outcome and one reason.

    Decisions are made one after another. The first that leaves a document out gives the reason; later ones do not
    see it any more.
    """

    copies: NDArray[np.int32]
    """(N,) how many times each document is packed; 0 for one that is left out."""
    code: NDArray[np.int8]
    """(N,) why it is left out: an index into `reasons`. STAYS for one that stays."""
    reasons: list[str]
    """The ledger's words, in the order in which they were first used; the first one stands for STAYS."""

    @classmethod
    def of(cls, count: int) -> "Selection":
        """All documents, once each."""
        return cls(np.ones(count, dtype=np.int32), np.zeros(count, dtype=np.int8), [""])

    def __len__(self) -> int:
        return len(self.copies)

    @property
    def stays(self) -> NDArray[np.bool_]:
        """(N,) whether each document is packed at all."""
        stays: NDArray[np.bool_] = self.code == STAYS
        return stays

    def leave_out(self, which: NDArray[np.bool_], reason: str) -> None:
        """Leave out those of `which`, (N,), that are still in; the ledger counts them by `reason`."""
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
