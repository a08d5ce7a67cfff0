"""Windows: which parts are planned together, and what is known of their documents while they are.

A window holds whole parts. What it keeps of a document are its place and its length, and only of documents that are
packed in this split, so that its memory depends on what it plans and on nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.splitmix import GOLDEN, mix
from ..stages.sections import Sections
from .catalogue import PartPlace

if TYPE_CHECKING:  # workers read layouts, and need no pydantic for it
    from .selecting import Chosen

WINDOW_TOKENS = 4_000_000_000
"""Planned together when the configuration says nothing: one window for most datasets, some 500 MB of plan."""
LOT_DOCUMENTS = 1 << 19
"""Documents that are read and decided about at once: some 100 MB with all that is counted of them."""
LOT_PARTS = 1 << 12
"""Parts that are read at once."""


def compose(totals: NDArray[np.int64], sources: Sequence[int], limit: int, seed: int) -> list[NDArray[np.int64]]:
    """Which parts are planned together, of one split: of each window its parts, rising.

    With several windows the parts are dealt to them in an order chosen by the seed, source by source in turn, so
    that every window sees every source.

    Args:
        totals: (parts,) tokens of each part that are packed.
        sources: (parts,) whose part it is.
        limit: tokens of a window. A part that has more is a window of its own.
    """
    if int(totals.sum()) <= limit:
        return [np.arange(len(totals))]  # also where there are none: an empty split still has a shard to open
    owners = np.array(sources)
    keys = mix64(np.arange(len(totals), dtype=np.uint64), seed)
    # The place of a part in its own source, as a share: sorting by it interleaves sources of any sizes evenly.
    share = np.zeros(len(totals))
    for source in np.unique(owners):
        mine = np.flatnonzero(owners == source)
        mine = mine[np.argsort(keys[mine], kind="stable")]
        share[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
    windows: list[NDArray[np.int64]] = []
    window: list[int] = []
    size = 0
    for part in np.lexsort((owners, share)).tolist():
        if window and size + int(totals[part]) > limit:
            windows.append(_rising(window))
            window, size = [], 0
        window.append(part)
        size += int(totals[part])
    if window and size:
        windows.append(_rising(window))
    return windows


@dataclass(frozen=True, slots=True, eq=False)
class Lot:
    """Some parts of the run, rising, and what is decided about their N documents."""

    parts: NDArray[np.int64]
    """Which parts."""
    documents: NDArray[np.int64]
    """(N,) which documents of the run, rising: their doc ids."""
    chosen: "Chosen"


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """D documents that are packed together, in their order; see `closeup.Placed`."""

    parts: tuple[PartPlace, ...]
    part_starts: NDArray[np.int64]
    """(parts + 1,) over documents."""
    part_segments: NDArray[np.int64]
    """(parts + 1,) over segments."""
    segment_starts: NDArray[np.int64]
    """(segments + 1,) over documents. A segment is one record batch of a part."""
    documents: NDArray[np.int64]
    """(D,) their doc ids."""
    lengths: NDArray[np.int32]
    """(D,) tokens, before any cut."""
    begins: NDArray[np.int32]
    """(D,) first token within the segment."""
    run_begins: NDArray[np.int32]
    """(D,) first run within the segment."""
    run_counts: NDArray[np.int32]
    """(D,)"""
    sections: Sections
    """What is planned of them; `sections.documents` counts within D."""


class Gathering:
    """Puts a window together, lot by lot."""

    def __init__(self) -> None:
        self._columns: dict[str, list[NDArray[Any]]] = {}
        self._parts: list[PartPlace] = []
        self._sizes: dict[str, list[NDArray[np.int64]]] = {"parts": [], "segments": [], "documents": []}
        self._repeated = False
        self._count = 0

    def add(self, lot: Lot, which: NDArray[np.bool_], parts: NDArray[np.bool_]) -> None:
        """Add those documents of a lot that are packed and of `which`, (N,).

        Args:
            parts: (parts of the lot,) which of them belong to the window; `which` has no documents of others.
        """
        catalogue, sections = lot.chosen.catalogue, lot.chosen.sections(which)
        first = np.ones(len(sections), dtype=np.bool_)
        first[1:] = sections.documents[1:] != sections.documents[:-1]
        kept = sections.documents[first]
        columns: dict[str, NDArray[Any]] = {
            "documents": lot.documents[kept],
            "lengths": catalogue.lengths[kept],
            "begins": catalogue.begins[kept],
            "run_begins": catalogue.run_begins[kept],
            "run_counts": catalogue.run_counts[kept],
            "section_documents": np.cumsum(first) + (self._count - 1),
            "section_starts": sections.starts,
            "section_lengths": sections.lengths,
            "section_repeats": sections.repeats if sections.repeated is not None else np.zeros(0, np.int32),
        }
        if sections.repeated is not None and not self._repeated:
            # What came before had none.
            self._repeated = True
            before = sum(map(len, self._columns.get("section_lengths", [])))
            self._columns.setdefault("section_repeats", []).append(np.zeros(before, np.int32))
        elif sections.repeated is None and self._repeated:
            columns["section_repeats"] = np.zeros(len(sections), np.int32)
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)
        self._count += len(kept)
        self._parts += [catalogue.parts[index] for index in np.flatnonzero(parts).tolist()]
        segments = np.diff(catalogue.part_segments)
        self._sizes["parts"].append(np.diff(np.searchsorted(kept, catalogue.part_starts))[parts])
        self._sizes["segments"].append(segments[parts])
        of_segments = np.diff(np.searchsorted(kept, catalogue.segment_starts))
        self._sizes["documents"].append(of_segments[np.repeat(parts, segments)])

    def window(self) -> Window:
        """What was gathered. This object is empty afterwards."""
        joined = self._joined
        return Window(
            tuple(self._parts),
            _starts(self._sizes["parts"]),
            _starts(self._sizes["segments"]),
            _starts(self._sizes["documents"]),
            joined("documents", np.int64),
            joined("lengths"),
            joined("begins"),
            joined("run_begins"),
            joined("run_counts"),
            Sections(
                joined("section_documents", np.int64),
                joined("section_starts"),
                joined("section_lengths"),
                joined("section_repeats") if self._repeated else None,
            ),
        )

    def _joined(self, name: str, kind: type[np.generic] = np.int32) -> NDArray[Any]:
        # One column after another, so that no more than one of them is there twice.
        values = self._columns.pop(name, None)
        if not values:
            return np.zeros(0, dtype=kind)
        return values[0] if len(values) == 1 else np.concatenate(values)


def _rising(parts: list[int]) -> NDArray[np.int64]:
    return np.array(sorted(parts), dtype=np.int64)


def parts_in(lot: Lot, parts: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(parts of the lot,) which of them are among `parts`, rising, and (N,) which documents stand in these."""
    among = np.isin(lot.parts, parts, assume_unique=True)
    return among, np.repeat(among, np.diff(lot.chosen.catalogue.part_starts))


def groups(parts: NDArray[np.int64], sizes: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """Parts in their order, so many at a time that they have about `most` documents.

    Args:
        sizes: documents of every part of the run.
    """
    ends = np.cumsum(sizes[parts])
    first = 0
    while first < len(parts):
        base = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, base + most, side="right")))
        last = min(last, first + LOT_PARTS)
        yield parts[first:last]
        first = last


def mix64(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """SplitMix64 of each value under a seed: (N,) 64-bit numbers that look independent."""
    with np.errstate(over="ignore"):
        return mix((values + np.uint64(1)) * GOLDEN + np.uint64(seed % 2**64))


def window_seed(seed: int, number: int) -> int:
    """The seed of one window's order. Mixed, not added: SplitMix64's seeds must not lie its own step apart."""
    return int(mix64(np.array([number], dtype=np.uint64), seed)[0])


def _starts(sizes: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    flat = np.concatenate(sizes) if sizes else np.zeros(0, dtype=np.int64)
    starts = np.zeros(len(flat) + 1, dtype=np.int64)
    np.cumsum(flat, out=starts[1:])
    return starts
