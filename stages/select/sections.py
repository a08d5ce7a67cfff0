"""Sections are the parts of documents to plan: one per document, or several if it is split or repeated.

N documents, M sections.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import sums_of


@dataclass(frozen=True, slots=True, eq=False)
class Sections:
    """M sections, in the order of their documents."""

    documents: NDArray[np.int64]
    """(M,) the document of each section, ascending."""
    starts: NDArray[np.int32]
    """(M,) first token, within the document."""
    lengths: NDArray[np.int32]
    """(M,) number of tokens, at least one."""
    repeated: NDArray[np.int32] | None = None
    """(M,) how many of the first tokens repeat the end of the document's previous section; they are not trained again.
    None if no section repeats tokens.
    """

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def repeats(self) -> NDArray[np.int32]:
        """(M,) `repeated`, as zeros if it is None."""
        return np.zeros_like(self.lengths) if self.repeated is None else self.repeated

    def repeats_of(self, index: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return (K,) `repeated` of some sections."""
        return np.zeros(len(index), dtype=np.int32) if self.repeated is None else self.repeated[index]

    @property
    def fresh(self) -> NDArray[np.int32]:
        """Return (M,) tokens that do not repeat the previous section."""
        return self.lengths if self.repeated is None else self.lengths - self.repeated

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> "Sections":
        """The sections at `index`, which must not change their order."""
        repeated = None if self.repeated is None else self.repeated[index]
        return Sections(self.documents[index], self.starts[index], self.lengths[index], repeated)

    def overlap(self, count: int) -> NDArray[np.int64]:
        """Return (N,) the repeated tokens of each of `count` documents."""
        return self._sums(self.repeats, count)

    def tokens(self, count: int) -> NDArray[np.int64]:
        """Return (N,) the tokens of each of `count` documents that are not repeated."""
        return self._sums(self.fresh, count)

    def _sums(self, values: NDArray[np.int32], count: int) -> NDArray[np.int64]:
        # np.bincount would sum weights as floats.
        return sums_of(values, np.searchsorted(self.documents, np.arange(count + 1)))


def lay_open(
    which: NDArray[np.bool_],
    low: NDArray[np.int32],
    high: NDArray[np.int32],
    split: Sections | None,
    copies: NDArray[np.int32],
) -> Sections:
    """The sections of some documents.

    Args:
        which: (N,) the documents to include.
        low, high: (N,) the range of tokens kept of each document that is not split.
        split: sections that replace those of split documents.
        copies: (N,) how often to list each document's sections.
    """
    chosen = np.flatnonzero(which & (copies > 0) & (high > low))
    sections = Sections(chosen, low[chosen], high[chosen] - low[chosen])
    if split is not None and len(split):
        sections = _replace(sections, split.take(which[split.documents] & (copies[split.documents] > 0)))
    often = copies[sections.documents]
    if len(often) and often.max() > 1:
        sections = sections.take(np.repeat(np.arange(len(sections)), often))
    return sections


def _replace(sections: Sections, split: Sections) -> Sections:
    """Replace the single section of each split document by its sections in `split`."""
    if not len(split):
        return sections
    rest = sections.take(~np.isin(sections.documents, split.documents))
    order = np.argsort(np.concatenate([rest.documents, split.documents]), kind="stable")
    repeated = None
    if split.repeated is not None:
        repeated = np.concatenate([np.zeros_like(rest.lengths), split.repeated])[order]
    return Sections(
        np.concatenate([rest.documents, split.documents])[order],
        np.concatenate([rest.starts, split.starts])[order],
        np.concatenate([rest.lengths, split.lengths])[order],
        repeated,
    )
