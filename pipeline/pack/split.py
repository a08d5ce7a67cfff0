"""Splits long documents: decides, from the cache alone, where to cut and which pieces to keep."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stages.mask.run_index import RunIndex
from ...stages.select.split import Places, SplitPieces, split
from ...stages.tokenize.cut_points import WHITE, Breaks, line_places, skip_white


@dataclass(frozen=True, slots=True)
class Splitter:
    """How documents are split."""

    capacity: int
    at: str
    """`turns`, `paragraphs` or `tokens`."""
    overlap: int
    keep_untrained: bool
    """Whether to keep pieces without trained labels."""
    tokenizer_json: str
    """Content of a tokenizer.json; the vocabulary shows which tokens end lines."""


@dataclass(frozen=True, slots=True, eq=False)
class CutDocuments:
    """S pieces of documents laid end to end, kept or not."""

    cut: SplitPieces
    supervised: NDArray[np.int64]
    """(S,) supervised tokens of each piece that are not in the piece before it."""
    labels: NDArray[np.int64]
    """(S,) trained labels of each piece."""
    stays: NDArray[np.bool_]
    """(S,) whether the piece is kept."""


def cut_documents(
    runs: RunIndex, low: NDArray[np.int64], high: NDArray[np.int64], places: Places, splitter: Splitter
) -> CutDocuments:
    """Cut ranges of documents into pieces.

    Args:
        low, high: (K,) places where the ranges begin and end; ascending, without overlap.
    """
    cut = split(low, high, splitter.capacity, splitter.overlap, places)
    supervised = runs.supervised_before(cut.end) - runs.supervised_before(cut.fresh)
    # A label needs the token before it in the same piece.
    labels = supervised - (runs.supervised_at(cut.fresh) & (cut.fresh == cut.start))
    return CutDocuments(cut, supervised, labels, (labels > 0) | splitter.keep_untrained)


def breaks_for(splitter: Splitter) -> Breaks | None:
    """Return the table of tokens that end lines; None if it is not needed."""
    return Breaks.from_json(splitter.tokenizer_json) if splitter.at != "tokens" else None


def places_of(runs: RunIndex, tokens: NDArray[np.int32], splitter: Splitter, breaks: Breaks | None) -> Places:
    """Return the places where documents may be cut.

    Args:
        tokens: (T,) of the documents, end to end; not read without `breaks`.
    """
    if breaks is None:
        return Places()
    bits = breaks.of(tokens)
    lines = line_places(bits)
    if splitter.at == "paragraphs":
        return Places(lines=lines)
    white = (bits & WHITE) > 0
    turns = []
    for places in runs.turn_places():
        turns.append(skip_white(places, white, runs.ends[np.searchsorted(runs.ends, places, side="right")]))
    return Places(turns, lines)
