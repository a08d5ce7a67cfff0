"""What the driver knows of every encoded document: lengths and places, never tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ..stages.arrays import booleans, view
from ..stages.mask import Mask, asked_tokens, asked_turns, unproved_documents
from ..stages.truncate import Limits, Overlong, completion_starts
from .parts import EncodedPart, PartFile, Segment
from .stores import Store


@dataclass(frozen=True, slots=True)
class PartPlace:
    """One part in the order of the run, and where its block stands."""

    cache: Store
    part: PartFile
    source: int
    """Index of the source in the configuration."""
    file: str
    """Label of the file."""
    first_line: int
    """Lines of the file before the block."""

    @property
    def path(self) -> Path:
        """A file of this machine that holds the part."""
        return self.part.path(self.cache)


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
    low: NDArray[np.int32]
    """(N,) first token that truncation leaves."""
    high: NDArray[np.int32]
    """(N,) one past the last."""
    asked_kept: NDArray[np.int32]
    """(N,) how many of the tokens asked for truncation leaves."""
    head_kept: NDArray[np.bool_]
    """(N,) whether the first token that truncation leaves is one of them."""
    prompt_cut: NDArray[np.int32] | None
    """(N,) tokens that the prompt's own limit takes; None without one."""
    completion_cut: NDArray[np.int32] | None
    """(N,) tokens that the completion's own limit takes; None without one."""
    begins: NDArray[np.int32]
    """(N,) first token within the segment."""
    run_begins: NDArray[np.int32]
    """(N,) first run within the segment."""
    run_counts: NDArray[np.int32]
    """(N,)"""
    held_out: NDArray[np.bool_]
    """(N,)"""
    unproved: NDArray[np.bool_]
    """(N,) whether nothing says surely where the assistant's turns lie."""
    rewritten: NDArray[np.bool_]
    """(N,) whether the prompt alone is rendered otherwise than within the conversation."""
    turns: NDArray[np.int32]
    """(N,) turns of the assistant that the mask asks for."""
    endless: NDArray[np.int32]
    """(N,) those of them that have no end-of-turn token."""
    digests: NDArray[np.uint64] | None
    """(N, 2) the halves of each digest; None where duplicates are kept."""

    @property
    def part_segments(self) -> NDArray[np.int64]:
        """(parts + 1,) over segments."""
        return np.searchsorted(self.segment_starts, self.part_starts)

    def __len__(self) -> int:
        return len(self.lengths)

    def source_of(self, documents: NDArray[np.int64]) -> NDArray[np.int32]:
        """The source's index of each document."""
        sources = np.array([part.source for part in self.parts], dtype=np.int32)
        part = np.searchsorted(self.part_starts, documents, side="right") - 1
        return sources[part]


@dataclass(frozen=True, slots=True)
class Holdout:
    """Who is held out."""

    fraction: float
    by_group: bool
    seed: int


def read_catalogue(
    parts: Sequence[PartPlace],
    mask: Mask,
    limits: Limits,
    holdout: Holdout,
    names: Sequence[str],
    *,
    digests: bool = False,
) -> Catalogue:
    """Read the lengths and runs of all parts, one part in memory at a time.

    Args:
        names: of the sources; a group is known by its source and its own name.
        digests: read the digests, too.
    """
    columns: dict[str, list[NDArray[Any]]] = {}
    part_sizes: list[int] = []
    segment_sizes: list[int] = []
    for place in parts:
        part = EncodedPart(place.path)
        documents = 0
        for batch, segment in zip(part.batches, part.segments(mask), strict=True):
            found = _read_segment(batch, segment, limits)
            found["held_out"] = _held_out(batch, names[place.source], holdout)
            if digests:
                found["digests"] = digest_halves(batch).copy()
            for name, values in found.items():
                columns.setdefault(name, []).append(values)
            segment_sizes.append(batch.num_rows)
            documents += batch.num_rows
        part_sizes.append(documents)

    def joined(name: str, kind: type[np.generic]) -> NDArray[Any]:
        values = columns.pop(name, None)
        return np.concatenate(values) if values else np.zeros(0, dtype=kind)

    return Catalogue(
        parts=tuple(parts),
        part_starts=_starts(part_sizes),
        segment_starts=_starts(segment_sizes),
        lengths=joined("lengths", np.int32),
        asked=joined("asked", np.int32),
        head=joined("head", np.bool_),
        low=joined("low", np.int32),
        high=joined("high", np.int32),
        asked_kept=joined("asked_kept", np.int32),
        head_kept=joined("head_kept", np.bool_),
        prompt_cut=joined("prompt_cut", np.int32) if limits.max_prompt is not None else None,
        completion_cut=joined("completion_cut", np.int32) if limits.max_completion is not None else None,
        begins=joined("begins", np.int32),
        run_begins=joined("run_begins", np.int32),
        run_counts=joined("run_counts", np.int32),
        held_out=joined("held_out", np.bool_),
        unproved=joined("unproved", np.bool_),
        rewritten=joined("rewritten", np.bool_),
        turns=joined("turns", np.int32),
        endless=joined("endless", np.int32),
        digests=joined("digests", np.uint64).reshape(-1, 2) if digests else None,
    )


def _read_segment(batch: pa.RecordBatch, segment: Segment, limits: Limits) -> dict[str, NDArray[Any]]:
    """The columns of a segment's documents, from their runs."""
    asked_flag = segment.runs >= 0
    ends = np.where(asked_flag, segment.runs, ~segment.runs)
    run_offsets = segment.run_offsets.astype(np.int64)
    lengths = np.diff(segment.offsets)
    boundaries = None
    if limits.needs_boundaries:
        boundaries = completion_starts(view(batch.column("runs").values.field("kind")), ends, run_offsets)
    stretch = limits.stretch(lengths, boundaries)
    asked, head = asked_tokens(asked_flag, ends, run_offsets)
    structs = batch.column("runs").values
    kind = view(structs.field("kind"))
    turns, endless = asked_turns(kind, view(structs.field("turn")), asked_flag, run_offsets)
    if boundaries is None and limits.overlong is not Overlong.TRUNCATE:
        asked_kept, head_kept = asked, head
    else:
        asked_kept, head_kept = asked_tokens(asked_flag, ends, run_offsets, stretch.low, stretch.high)
    found = {
        "lengths": lengths,
        "asked": asked,
        "head": head,
        "low": stretch.low,
        "high": stretch.high,
        "asked_kept": asked_kept,
        "head_kept": head_kept,
        "begins": segment.offsets[:-1].copy(),
        "run_begins": segment.run_offsets[:-1].copy(),
        "run_counts": np.diff(segment.run_offsets),
        "unproved": unproved_documents(kind, run_offsets),
        "rewritten": booleans(batch.column("rewritten")),
        "turns": turns,
        "endless": endless,
    }
    if stretch.prompt_cut is not None:
        found["prompt_cut"] = stretch.prompt_cut
    if stretch.completion_cut is not None:
        found["completion_cut"] = stretch.completion_cut
    return found


def digest_halves(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """(N, 2) the digests of a batch of `schemas.rows.ENCODED` as two numbers each."""
    column = batch.column("digest")
    data = np.frombuffer(column.buffers()[1], dtype=np.uint64).reshape(-1, 2)
    return data[column.offset : column.offset + len(column)]


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
