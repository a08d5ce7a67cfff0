"""Splitting long documents, from the cache alone: where they are cut, and what becomes of the pieces."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..stages.breaks import WHITE, Breaks, line_places, skip_white
from ..stages.mask import Mask
from ..stages.runindex import RunIndex
from ..stages.sections import Sections
from ..stages.split import Cut, Places, split
from .catalogue import Catalogue
from .closeup import CloseUp, Placed, close_up


@dataclass(frozen=True, slots=True)
class Splitter:
    """How documents are split."""

    capacity: int
    at: str
    """`turns`, `paragraphs` or `tokens`."""
    overlap: int
    mask: Mask
    keep_untrained: bool
    """Whether pieces stay in which no label counts."""
    tokenizer_json: str
    """Its vocabulary says which tokens end lines."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitDocuments:
    """K documents that were split, and their pieces."""

    documents: NDArray[np.int64]
    """(K,) which documents, rising."""
    sections: Sections
    """The pieces that stay."""
    asked: NDArray[np.int64]
    """(K,) tokens asked for in the pieces that stay, each counted once."""
    labels: NDArray[np.int64]
    """(K,) labels that count."""
    cuts: NDArray[np.int64]
    """(K,) cuts that go through a trained turn."""


@dataclass(frozen=True, slots=True, eq=False)
class CutDocuments:
    """S pieces of documents that lie end to end, those that stay and the others."""

    cut: Cut
    asked: NDArray[np.int64]
    """(S,) tokens asked for, of those that the piece before does not have."""
    labels: NDArray[np.int64]
    """(S,) labels that count."""
    stays: NDArray[np.bool_]
    """(S,)"""


def cut_documents(
    runs: RunIndex, low: NDArray[np.int64], high: NDArray[np.int64], places: Places, splitter: Splitter
) -> CutDocuments:
    """Cut stretches of documents into pieces.

    Args:
        low, high: (K,) places where they begin and end; they rise and do not overlap.
    """
    cut = split(low, high, splitter.capacity, splitter.overlap, places)
    asked = runs.asked_before(cut.end) - runs.asked_before(cut.fresh)
    # A label needs the token before it in the same piece.
    labels = asked - (runs.asked_at(cut.fresh) & (cut.fresh == cut.start))
    return CutDocuments(cut, asked, labels, (labels > 0) | splitter.keep_untrained)


def split_documents(catalogue: Catalogue, documents: NDArray[np.int64], splitter: Splitter) -> SplitDocuments:
    """Cut documents of the catalogue, given rising, into pieces."""
    breaks = breaks_for(splitter) if len(documents) else None
    found: list[tuple[NDArray[np.int64], ...]] = []
    totals = np.zeros((3, len(documents)), dtype=np.int64)
    for close in close_up(catalogue, documents, splitter.mask):
        here = slice(close.first, close.last)
        bases, runs = close.runs.bases[:-1], close.runs
        mine = documents[here]
        low = bases + catalogue.low[mine]
        made = cut_documents(runs, low, bases + catalogue.high[mine], places_of(close, splitter, breaks), splitter)
        cut, asked, labels, stays = made.cut, made.asked, made.labels, made.stays
        inner = cut.fresh > low[cut.document]
        through = np.zeros(len(inner), dtype=np.int64)
        through[inner] = runs.through_turn(cut.fresh[inner])
        for row, values in zip(totals, (np.where(stays, asked, 0), np.where(stays, labels, 0), through), strict=True):
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
    """What says which tokens end lines; None where it does not matter."""
    return Breaks.from_json(splitter.tokenizer_json) if splitter.at != "tokens" else None


def places_of(close: CloseUp, splitter: Splitter, breaks: Breaks | None) -> Places:
    """Where its documents may be cut."""
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
    catalogue: Placed, documents: NDArray[np.int64], places: NDArray[np.integer[Any]], mask: Mask
) -> NDArray[np.bool_]:
    """(K,) whether each cut goes through a trained turn of its document.

    Args:
        documents: (K,) rising; a document may be listed for several cuts.
        places: (K,) the token before which it is cut, never the first.
    """
    out = np.zeros(len(documents), dtype=np.bool_)
    for close in close_up(catalogue, documents, mask):
        here = slice(close.first, close.last)
        out[here] = close.runs.through_turn(close.runs.bases[:-1] + places[here])
    return out
