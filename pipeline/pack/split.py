"""Splits long documents: decides, from the cache alone, where to cut and which pieces to keep."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stages.mask.policy import Mask
from ...stages.mask.run_index import RunIndex
from ...stages.select.sections import Sections
from ...stages.select.split import Places, SplitPieces, split
from ...stages.tokenize.cut_points import WHITE, Breaks, line_places, skip_white
from .document_index import Catalogue
from .document_runs import DocumentRuns, LocatedDocuments, read_runs


@dataclass(frozen=True, slots=True)
class Splitter:
    """How documents are split."""

    capacity: int
    at: str
    """`turns`, `paragraphs` or `tokens`."""
    overlap: int
    mask: Mask
    keep_untrained: bool
    """Whether to keep pieces without trained labels."""
    tokenizer_json: str
    """Content of a tokenizer.json; the vocabulary shows which tokens end lines."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitDocuments:
    """K documents that were split, and their pieces."""

    documents: NDArray[np.int64]
    """(K,) the documents, ascending."""
    sections: Sections
    """The pieces kept."""
    supervised: NDArray[np.int64]
    """(K,) supervised tokens in the pieces kept, each counted once."""
    labels: NDArray[np.int64]
    """(K,) trained labels in the pieces kept."""
    cuts: NDArray[np.int64]
    """(K,) number of cuts through a trained turn."""


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


def split_documents(catalogue: Catalogue, documents: NDArray[np.int64], splitter: Splitter) -> SplitDocuments:
    """Cut documents of the catalogue, given in ascending order, into pieces."""
    breaks = breaks_for(splitter) if len(documents) else None
    found: list[tuple[NDArray[np.int64], ...]] = []
    totals = np.zeros((3, len(documents)), dtype=np.int64)
    for close in read_runs(catalogue, documents, splitter.mask):
        here = slice(close.first, close.last)
        bases, runs = close.runs.bases[:-1], close.runs
        mine = documents[here]
        low = bases + catalogue.low[mine]
        made = cut_documents(runs, low, bases + catalogue.high[mine], places_of(close, splitter, breaks), splitter)
        cut, supervised, labels, stays = made.cut, made.supervised, made.labels, made.stays
        inner = cut.fresh > low[cut.document]
        through = np.zeros(len(inner), dtype=np.int64)
        through[inner] = runs.through_turn(cut.fresh[inner])
        for row, values in zip(
            totals, (np.where(stays, supervised, 0), np.where(stays, labels, 0), through), strict=True
        ):
            np.add.at(row[here], cut.document, values)
        base = bases[cut.document]
        columns = (mine[cut.document], cut.start - base, cut.end - cut.start, cut.fresh - cut.start)
        found.append(tuple(column[stays] for column in columns))
    empty = (np.zeros(0, dtype=np.int64),) * 4
    owner, starts, lengths, repeated = (np.concatenate(column) for column in zip(empty, *found, strict=True))
    sections = Sections(
        owner,
        starts.astype(np.int32),
        lengths.astype(np.int32),
        repeated.astype(np.int32) if splitter.overlap else None,
    )
    return SplitDocuments(documents, sections, totals[0], totals[1], totals[2])


def breaks_for(splitter: Splitter) -> Breaks | None:
    """Return the table of tokens that end lines; None if it is not needed."""
    return Breaks.from_json(splitter.tokenizer_json) if splitter.at != "tokens" else None


def places_of(close: DocumentRuns, splitter: Splitter, breaks: Breaks | None) -> Places:
    """Return the places where the documents may be cut."""
    if breaks is None:
        return Places()
    bits = breaks.of(close.tokens())
    lines = line_places(bits)
    if splitter.at == "paragraphs":
        return Places(lines=lines)
    ends = close.runs.ends
    white = (bits & WHITE) > 0
    turns = []
    for places in close.runs.turn_places():
        limits = ends[np.searchsorted(ends, places, side="right")]
        turns.append(skip_white(places, white, limits))
    return Places(turns, lines)


def turns_cut(
    catalogue: LocatedDocuments, documents: NDArray[np.int64], places: NDArray[np.integer[Any]], mask: Mask
) -> NDArray[np.bool_]:
    """Return (K,) whether each cut goes through a trained turn of its document.

    Args:
        documents: (K,) ascending; a document may have several cuts.
        places: (K,) the token before which each document is cut, never the first token.
    """
    return _at_cuts(RunIndex.through_turn, catalogue, documents, places, mask)


def labels_cut(
    catalogue: LocatedDocuments, documents: NDArray[np.int64], places: NDArray[np.integer[Any]], mask: Mask
) -> NDArray[np.bool_]:
    """Return (K,) whether each cut takes the label of the token behind it, which becomes the first of its piece.

    Args:
        documents, places: as for `turns_cut`.
    """
    return _at_cuts(RunIndex.supervised_at, catalogue, documents, places, mask)


def _at_cuts(
    asked: Callable[[RunIndex, NDArray[np.int64]], NDArray[np.bool_]],
    catalogue: LocatedDocuments,
    documents: NDArray[np.int64],
    places: NDArray[np.integer[Any]],
    mask: Mask,
) -> NDArray[np.bool_]:
    out = np.zeros(len(documents), dtype=np.bool_)
    for close in read_runs(catalogue, documents, mask):
        here = slice(close.first, close.last)
        out[here] = asked(close.runs, close.runs.bases[:-1] + places[here])
    return out
