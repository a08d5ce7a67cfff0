"""What the driver knows of every encoded document: lengths and places, never tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ..stages.mask import Mask, asked_tokens
from .parts import EncodedPart


@dataclass(frozen=True, slots=True)
class PartPlace:
    """One part in the order of the run, and where its block stands."""

    path: Path
    source: int
    """Index of the source in the configuration."""
    file: str
    """Label of the file."""
    first_line: int
    """Lines of the file before the block."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """N documents in the order of sources, files, blocks and rows: a document's index is its doc id."""

    parts: tuple[PartPlace, ...]
    part_starts: NDArray[np.int64]
    """(parts + 1,) over documents."""
    segment_starts: NDArray[np.int64]
    """(segments + 1,) over documents. A segment is one record batch of a part."""
    lengths: NDArray[np.int32]
    """(N,) tokens, before any cut."""
    asked: NDArray[np.int32]
    """(N,) tokens that the mask asks for."""
    head: NDArray[np.bool_]
    """(N,) whether the first token is one of them."""
    asked_kept: NDArray[np.int32]
    """(N,) how many of them truncation leaves."""
    head_kept: NDArray[np.bool_]
    """(N,) whether the first token that truncation leaves is one of them."""
    begins: NDArray[np.int32]
    """(N,) first token within the segment."""
    run_begins: NDArray[np.int32]
    """(N,) first run within the segment."""
    run_counts: NDArray[np.int32]
    """(N,)"""
    held_out: NDArray[np.bool_]
    """(N,)"""

    def __len__(self) -> int:
        return len(self.lengths)

    def source_of(self, documents: NDArray[np.int64]) -> NDArray[np.int32]:
        """The source's index of each document."""
        sources = np.array([part.source for part in self.parts], dtype=np.int32)
        part = np.searchsorted(self.part_starts, documents, side="right") - 1
        return sources[part]


@dataclass(frozen=True, slots=True)
class Clip:
    """Which part of a document truncation would leave."""

    max_length: int | None
    """None where nothing is truncated."""
    keep_end: bool

    def bounds(self, lengths: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(N,) first token that stays, and (N,) one past the last."""
        if self.max_length is None:
            return np.zeros_like(lengths), lengths
        if self.keep_end:
            return np.maximum(lengths - np.int32(self.max_length), 0), lengths
        return np.zeros_like(lengths), np.minimum(lengths, np.int32(self.max_length))


@dataclass(frozen=True, slots=True)
class Holdout:
    """Who is held out."""

    fraction: float
    by_group: bool
    seed: int


def read_catalogue(
    parts: Sequence[PartPlace], mask: Mask, clip: Clip, holdout: Holdout, names: Sequence[str]
) -> Catalogue:
    """Read the lengths and runs of all parts, one part in memory at a time.

    Args:
        names: of the sources; a group is known by its source and its own name.
    """
    types = (np.int32, np.int32, np.bool_, np.int32, np.bool_, np.int32, np.int32, np.int32, np.bool_)
    columns: list[list[NDArray[np.generic]]] = [[] for _ in types]
    part_sizes: list[int] = []
    segment_sizes: list[int] = []
    for place in parts:
        part = EncodedPart(place.path)
        documents = 0
        for batch, segment in zip(part.batches, part.segments(mask), strict=True):
            asked_flag = segment.runs >= 0
            ends = np.where(asked_flag, segment.runs, ~segment.runs)
            run_offsets = segment.run_offsets.astype(np.int64)
            lengths = np.diff(segment.offsets)
            asked, head = asked_tokens(asked_flag, ends, run_offsets)
            low, high = clip.bounds(lengths)
            asked_kept, head_kept = asked_tokens(asked_flag, ends, run_offsets, low, high)
            held = _held_out(batch, names[place.source], holdout)
            for column, values in zip(
                columns,
                (
                    lengths,
                    asked,
                    head,
                    asked_kept,
                    head_kept,
                    segment.offsets[:-1].copy(),
                    segment.run_offsets[:-1].copy(),
                    np.diff(segment.run_offsets),
                    held,
                ),
                strict=True,
            ):
                column.append(values)
            segment_sizes.append(batch.num_rows)
            documents += batch.num_rows
        part_sizes.append(documents)
    arrays: list[Any] = []
    for column, kind in zip(columns, types, strict=True):
        arrays.append(np.concatenate(column) if column else np.zeros(0, dtype=kind))
        column.clear()
    return Catalogue(
        parts=tuple(parts),
        part_starts=_starts(part_sizes),
        segment_starts=_starts(segment_sizes),
        lengths=arrays[0],
        asked=arrays[1],
        head=arrays[2],
        asked_kept=arrays[3],
        head_kept=arrays[4],
        begins=arrays[5],
        run_begins=arrays[6],
        run_counts=arrays[7],
        held_out=arrays[8],
    )


def _held_out(batch: pa.RecordBatch, source: str, holdout: Holdout) -> NDArray[np.bool_]:
    """(N,) whether each document is held out: by a hash of its group, or of what it says.

    So adding data moves nobody, and two examples that say the same stand on the same side.
    """
    rows = batch.num_rows
    if holdout.fraction <= 0:
        return np.zeros(rows, dtype=np.bool_)
    limit = int(holdout.fraction * 2**64)
    groups = batch.column("group").to_pylist() if holdout.by_group else [""] * rows
    keys = (
        f"{source}\n{group}".encode() if group else digest
        for group, digest in zip(groups, batch.column("digest").to_pylist(), strict=True)
    )
    hashes = (xxhash.xxh3_64_intdigest(key, seed=holdout.seed) < limit for key in keys)
    return np.fromiter(hashes, np.bool_, rows)


def _starts(sizes: list[int]) -> NDArray[np.int64]:
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(np.array(sizes, dtype=np.int64), out=starts[1:])
    return starts
