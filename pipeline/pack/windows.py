"""Windows: the documents that are planned together.

A window holds whole blocks: parts, or files of a part that several small files share. It keeps only position and length
of the documents that its split packs, so that its memory depends only on what it plans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of, sums_of
from ...schemas.splitmix import GOLDEN, mix
from ...stages.select.sections import Sections
from ..encode.parts import PartPlace

if TYPE_CHECKING:  # workers import this to read layouts, and should not import pydantic
    from .select import Chosen

WINDOW_TOKENS = 4_000_000_000
"""Default tokens of a window. Most datasets fit into one window; its plan takes about 500 MB."""
CHUNK_DOCUMENTS = 1 << 17
"""Documents of a chunk; with all counts they take about 25 MB."""
KEPT_DOCUMENTS = 1 << 19
"""Documents of a small run, whose chunks are read once and kept."""
CHUNK_PARTS = 1 << 12
"""Maximum number of parts of a chunk."""


def compose(totals: NDArray[np.int64], sources: Sequence[int], limit: int, seed: int) -> list[NDArray[np.int64]]:
    """Group the blocks of one split into windows: the blocks of each window, ascending.

    With several windows, blocks are assigned in an order chosen by the seed, interleaving the sources, so that every
    window has blocks of every source.

    Args:
        totals: (blocks,) packed tokens of each block.
        sources: (blocks,) source of each block.
        limit: maximum tokens of a window; a block with more tokens becomes a separate window.
    """
    if int(totals.sum()) <= limit:
        return [np.arange(len(totals))]  # one window even without blocks, because an empty split still has one shard
    owners = np.array(sources)
    keys = mix64(np.arange(len(totals), dtype=np.uint64), seed)
    # The relative position of a block in its source; sorting by it interleaves sources of any sizes evenly.
    share = np.zeros(len(totals))
    for source in np.unique(owners):
        mine = np.flatnonzero(owners == source)
        mine = mine[np.argsort(keys[mine], kind="stable")]
        share[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
    windows: list[NDArray[np.int64]] = []
    window: list[int] = []
    size = 0
    for block in np.lexsort((owners, share)).tolist():
        if window and size + int(totals[block]) > limit:
            windows.append(_rising(window))
            window, size = [], 0
        window.append(block)
        size += int(totals[block])
    if window and size:
        windows.append(_rising(window))
    return windows


@dataclass(frozen=True, slots=True, eq=False)
class DocumentChunk:
    """Some parts of the run, and the decisions about their N documents."""

    parts: NDArray[np.int64]
    """The parts, ascending."""
    blocks: NDArray[np.int64]
    """The blocks of the parts, ascending; see `block_sources`."""
    documents: NDArray[np.int64]
    """(N,) doc ids of the parts' documents, ascending."""
    chosen: "Chosen"

    @classmethod
    def of_all(cls, chosen: "Chosen") -> "DocumentChunk":
        """All documents of a run."""
        catalogue = chosen.catalogue
        parts, blocks = np.arange(len(catalogue.parts)), np.arange(len(catalogue.file_starts) - 1)
        return cls(parts, blocks, np.arange(len(catalogue)), chosen)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """D documents that are packed together, in order; see `document_runs.LocatedDocuments`."""

    parts: tuple[PartPlace, ...]
    part_starts: NDArray[np.int64]
    """(parts + 1,) first document of each part, then D."""
    part_segments: NDArray[np.int64]
    """(parts + 1,) first segment of each part, then the number of segments."""
    segment_starts: NDArray[np.int64]
    """(segments + 1,) first document of each segment, then D. A segment is one record batch of a part."""
    documents: NDArray[np.int64]
    """(D,) doc ids."""
    lengths: NDArray[np.int32]
    """(D,) number of tokens before any cut."""
    begins: NDArray[np.int32]
    """(D,) where each document's tokens begin within its segment."""
    run_begins: NDArray[np.int32]
    """(D,) where each document's runs begin within its segment."""
    run_counts: NDArray[np.int32]
    """(D,)"""
    sections: Sections
    """The sections to plan; `sections.documents` are indices within D."""
    labels: NDArray[np.int64] | None = None
    """(D,) trained labels of one copy, before a strategy cuts it; None unless loss weights depend on them, as the next
    two."""
    copies: NDArray[np.int64] | None = None
    """(D,) how often each document is packed."""
    conversations: NDArray[np.int64] | None = None
    """(D,) see `Catalogue.conversations`."""


class Gathering:
    """Builds a window, chunk by chunk.

    Args:
        labels: whether the window needs the labels of its documents.
    """

    def __init__(self, labels: bool = False) -> None:
        self._labels = labels
        self._columns: dict[str, list[NDArray[Any]]] = {}
        self._parts: list[PartPlace] = []
        self._sizes: dict[str, list[NDArray[np.int64]]] = {"parts": [], "segments": [], "documents": []}
        self._repeated = False
        self._count = 0

    def add(self, chunk: DocumentChunk, which: NDArray[np.bool_], parts: NDArray[np.bool_]) -> None:
        """Add the packed documents of a chunk that are in `which`, (N,).

        Args:
            parts: (parts of the chunk,) which of them belong to the window; `which` has no documents of other parts.
        """
        catalogue, sections = chunk.chosen.catalogue, chunk.chosen.sections(which)
        first = np.ones(len(sections), dtype=np.bool_)
        first[1:] = sections.documents[1:] != sections.documents[:-1]
        kept = sections.documents[first]
        columns: dict[str, NDArray[Any]] = {
            "documents": chunk.documents[kept],
            "lengths": catalogue.lengths[kept],
            "begins": catalogue.begins[kept],
            "run_begins": catalogue.run_begins[kept],
            "run_counts": catalogue.run_counts[kept],
            "section_documents": np.cumsum(first) + (self._count - 1),
            "section_starts": sections.starts,
            "section_lengths": sections.lengths,
            "section_repeats": sections.repeats if sections.repeated is not None else np.zeros(0, np.int32),
        }
        if self._labels:
            columns["labels"] = chunk.chosen.labels()[kept]
            columns["copies"] = chunk.chosen.selection.copies[kept].astype(np.int64)
            if catalogue.conversations is not None:
                columns["conversations"] = catalogue.conversations[kept]
        if sections.repeated is not None and not self._repeated:
            # earlier chunks had none
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
        """Return the window. This object is empty afterwards."""
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
            joined("labels", np.int64) if self._labels else None,
            joined("copies", np.int64) if self._labels else None,
            joined("conversations", np.int64) if "conversations" in self._columns else None,
        )

    def _joined(self, name: str, kind: type[np.generic] = np.int32) -> NDArray[Any]:
        # Concatenate one column after another, so that only one of them exists twice at a time.
        values = self._columns.pop(name, None)
        if not values:
            return np.zeros(0, dtype=kind)
        return values[0] if len(values) == 1 else np.concatenate(values)


def _rising(blocks: list[int]) -> NDArray[np.int64]:
    return np.array(sorted(blocks), dtype=np.int64)


def parts_in(chunk: DocumentChunk, blocks: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (parts of the chunk,) which of its parts have some of `blocks` (ascending), and (N,) which documents are
    in those blocks.
    """
    catalogue = chunk.chosen.catalogue
    among = np.isin(chunk.blocks, blocks, assume_unique=True)
    counts = [len(part.lines.files) for part in catalogue.parts]
    return sums_of(among, offsets_of(counts)) > 0, np.repeat(among, np.diff(catalogue.file_starts))


def block_sources(places: Sequence[PartPlace]) -> list[int]:
    """The source of each block. The blocks of a run are its parts, or the files of parts that several files share."""
    return [place.source for place in places for _ in place.lines.files]


def groups(parts: NDArray[np.int64], sizes: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """Divide the parts into groups of consecutive parts with about `most` documents each.

    Args:
        sizes: documents of every part of the run.
    """
    ends = np.cumsum(sizes[parts])
    first = 0
    while first < len(parts):
        base = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, base + most, side="right")))
        last = min(last, first + CHUNK_PARTS)
        yield parts[first:last]
        first = last


def mix64(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return SplitMix64 of each value under a seed: (N,) 64-bit numbers that look independent."""
    with np.errstate(over="ignore"):
        return mix((values + np.uint64(1)) * GOLDEN + np.uint64(seed % 2**64))


def window_seed(seed: int, number: int) -> int:
    """Return the seed of one window's order. Seed and number are mixed, not added, because SplitMix64 seeds must not
    differ by its step.
    """
    return int(mix64(np.array([number], dtype=np.uint64), seed)[0])


def _starts(sizes: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return offsets_of(np.concatenate(sizes) if sizes else np.zeros(0, dtype=np.int64))
