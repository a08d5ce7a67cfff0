"""The driver's table of encoded documents: lengths and positions, but no tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of
from ...stages.arrays import booleans, view
from ...stages.mask.policy import Mask, supervised_tokens, supervised_turns, unlocated_documents
from ...stages.select.truncate import Limits, Overlong
from ...stages.tokenize.run_kinds import IS_NEXT_STOP, completion_starts
from ..encode.parts import EncodedPart, PartPlace, Segment

if TYPE_CHECKING:  # workers import this to read parts, and should not import pydantic
    from ...schemas.config.config import RunConfig


@dataclass(frozen=True, slots=True)
class Catalogue:
    """N documents, ordered by source, file, block and row. A document's index is its doc id."""

    parts: tuple[PartPlace, ...]
    part_starts: NDArray[np.int64]
    """(parts + 1,) first document of each part, then N."""
    file_starts: NDArray[np.int64]
    """(files + 1,) first document of each file of each part, then N. Most parts have one; see `PartPlace.lines`."""
    segment_starts: NDArray[np.int64]
    """(segments + 1,) first document of each segment, then N. A segment is one record batch of a part."""
    lengths: NDArray[np.int32]
    """(N,) number of tokens before any cut."""
    supervised: NDArray[np.int32]
    """(N,) number of supervised tokens."""
    head: NDArray[np.bool_]
    """(N,) whether the first token is supervised."""
    low: NDArray[np.int32]
    """(N,) first token kept by truncation."""
    high: NDArray[np.int32]
    """(N,) end of the tokens kept by truncation: one past the last."""
    supervised_kept: NDArray[np.int32]
    """(N,) number of supervised tokens that truncation keeps."""
    head_kept: NDArray[np.bool_]
    """(N,) whether the first token that truncation keeps is supervised."""
    prompt_cut: NDArray[np.int32] | None
    """(N,) tokens removed by the prompt's own limit; None without such a limit."""
    completion_cut: NDArray[np.int32] | None
    """(N,) tokens removed by the completion's own limit; None without such a limit."""
    begins: NDArray[np.int32]
    """(N,) where each document's tokens begin within its segment."""
    run_begins: NDArray[np.int32]
    """(N,) where each document's runs begin within its segment."""
    run_counts: NDArray[np.int32]
    """(N,) number of runs."""
    held_out: NDArray[np.bool_]
    """(N,) whether each document is held out."""
    unlocated_turns: NDArray[np.bool_]
    """(N,) whether the assistant's turns could not be located."""
    unlocated_parts: NDArray[np.bool_]
    """(N,) whether thoughts or tool calls of a turn could not be located."""
    rewritten: NDArray[np.bool_]
    """(N,) whether the prompt alone is rendered differently than within the conversation."""
    turns: NDArray[np.int32]
    """(N,) number of trained assistant turns."""
    turns_without_end: NDArray[np.int32]
    """(N,) number of trained turns without an end-of-turn token."""
    weighted: NDArray[np.bool_]
    """(N,) whether some trained token has another loss weight than 1."""
    conversations: NDArray[np.int64] | None
    """(N,) equal for neighbours of one part that were made from one conversation; None if that is not needed."""
    next_stops: NDArray[np.int32]
    """(N,) number of trained turns whose stop token is trained in the next message's header."""
    digests: NDArray[np.uint64] | None
    """(N, 2) the halves of each digest; None if duplicates are kept."""

    @property
    def part_segments(self) -> NDArray[np.int64]:
        """(parts + 1,) first segment of each part, then the number of segments."""
        return np.searchsorted(self.segment_starts, self.part_starts)

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, slots=True)
class Holdout:
    """Decides which documents are held out."""

    fraction: float
    by_group: bool
    seed: int

    @classmethod
    def of(cls, config: "RunConfig") -> "Holdout":
        """The configured holdout."""
        return cls(config.holdout.fraction, config.holdout.by == "group", config.seed)


def read_catalogue(
    parts: Sequence[PartPlace],
    mask: Mask,
    limits: Limits,
    holdout: Holdout,
    names: Sequence[str],
    *,
    digests: bool = False,
    conversations: bool = False,
    only: Sequence[NDArray[np.int64]] | None = None,
) -> Catalogue:
    """Read the lengths and runs of all parts, one part in memory at a time.

    Args:
        names: names of the sources; a group is identified by source and group name.
        digests: whether to read the digests.
        conversations: whether to find out which documents are of one conversation.
        only: for each part, the documents to read, ascending; by default all.
    """
    columns: dict[str, list[NDArray[Any]]] = {}
    part_sizes: list[int] = []
    file_sizes: list[int] = []
    segment_sizes: list[int] = []
    for number, place in enumerate(parts):
        part = EncodedPart(place.path)
        places = part.narrow(only[number]) if only is not None else None
        documents = 0
        for index, batch in enumerate(part.batches):
            found = _read_segment(batch, Segment.of(batch, mask), limits, mask)
            if places is not None:
                found["begins"], found["run_begins"] = places[index]
            found["held_out"] = _held_out(batch, names[place.source], holdout)
            if digests:
                found["digests"] = digest_halves(batch).copy()
            if conversations:
                found["conversations"] = _conversations(batch, documents)
            for name, values in found.items():
                columns.setdefault(name, []).append(values)
            segment_sizes.append(batch.num_rows)
            documents += batch.num_rows
        part_sizes.append(documents)
        file_sizes += _sizes_by_file(place, part, documents)

    def joined(name: str, kind: type[np.generic]) -> NDArray[Any]:
        values = columns.pop(name, None)
        return np.concatenate(values) if values else np.zeros(0, dtype=kind)

    return Catalogue(
        parts=tuple(parts),
        part_starts=offsets_of(part_sizes),
        file_starts=offsets_of(file_sizes),
        segment_starts=offsets_of(segment_sizes),
        lengths=joined("lengths", np.int32),
        supervised=joined("supervised", np.int32),
        head=joined("head", np.bool_),
        low=joined("low", np.int32),
        high=joined("high", np.int32),
        supervised_kept=joined("supervised_kept", np.int32),
        head_kept=joined("head_kept", np.bool_),
        prompt_cut=joined("prompt_cut", np.int32) if limits.max_prompt is not None else None,
        completion_cut=joined("completion_cut", np.int32) if limits.max_completion is not None else None,
        begins=joined("begins", np.int32),
        run_begins=joined("run_begins", np.int32),
        run_counts=joined("run_counts", np.int32),
        held_out=joined("held_out", np.bool_),
        unlocated_turns=joined("unlocated_turns", np.bool_),
        unlocated_parts=joined("unlocated_parts", np.bool_),
        rewritten=joined("rewritten", np.bool_),
        turns=joined("turns", np.int32),
        turns_without_end=joined("turns_without_end", np.int32),
        weighted=joined("weighted", np.bool_),
        conversations=joined("conversations", np.int64) if conversations else None,
        next_stops=joined("next_stops", np.int32),
        digests=joined("digests", np.uint64).reshape(-1, 2) if digests else None,
    )


def whole_documents(catalogue: Catalogue) -> Catalogue:
    """The same documents, none cut."""
    return replace(
        catalogue,
        low=np.zeros_like(catalogue.low),
        high=catalogue.lengths,
        supervised_kept=catalogue.supervised,
        head_kept=catalogue.head,
        prompt_cut=None,
        completion_cut=None,
    )


def _read_segment(batch: pa.RecordBatch, segment: Segment, limits: Limits, mask: Mask) -> dict[str, NDArray[Any]]:
    """Return the columns of a segment's documents, from their runs."""
    supervised_flag = segment.runs >= 0
    ends = np.where(supervised_flag, segment.runs, ~segment.runs)
    run_offsets = segment.run_offsets.astype(np.int64)
    lengths = np.diff(segment.offsets)
    boundaries = None
    if limits.needs_boundaries:
        boundaries = completion_starts(view(batch.column("runs").values.field("kind")), ends, run_offsets)
    stretch = limits.stretch(lengths, boundaries)
    supervised, head = supervised_tokens(supervised_flag, ends, run_offsets)
    structs = batch.column("runs").values
    kind = view(structs.field("kind"))
    next_stops = supervised_flag & IS_NEXT_STOP[kind] & mask.next_stops
    turns, turns_without_end = supervised_turns(
        kind, view(structs.field("turn")), supervised_flag, run_offsets, next_stops=mask.next_stops
    )
    if boundaries is None and limits.overlong is not Overlong.TRUNCATE:
        supervised_kept, head_kept = supervised, head
    else:
        supervised_kept, head_kept = supervised_tokens(supervised_flag, ends, run_offsets, stretch.low, stretch.high)
    found = {
        "lengths": lengths,
        "supervised": supervised,
        "head": head,
        "low": stretch.low,
        "high": stretch.high,
        "supervised_kept": supervised_kept,
        "head_kept": head_kept,
        "begins": segment.offsets[:-1].copy(),
        "run_begins": segment.run_offsets[:-1].copy(),
        "run_counts": np.diff(segment.run_offsets),
        "unlocated_turns": unlocated_documents(kind, run_offsets),
        "unlocated_parts": unlocated_documents(kind, run_offsets, parts=True),
        "rewritten": booleans(batch.column("rewritten")),
        "turns": turns,
        "turns_without_end": turns_without_end,
        "weighted": segment.weighted,
        "next_stops": np.add.reduceat(next_stops, run_offsets[:-1], dtype=np.int32) if len(lengths) else turns,
    }
    if stretch.prompt_cut is not None:
        found["prompt_cut"] = stretch.prompt_cut
    if stretch.completion_cut is not None:
        found["completion_cut"] = stretch.completion_cut
    return found


def _sizes_by_file(place: PartPlace, part: EncodedPart, documents: int) -> list[int]:
    """Documents of each file of a part."""
    files = len(place.lines.files)
    if files == 1:
        return [documents]
    owners = [place.lines.find_all(view(batch.column("line")))[0] for batch in part.batches]
    sizes: list[int] = np.bincount(np.concatenate([np.zeros(0, np.int32), *owners]), minlength=files).tolist()
    return sizes


def _conversations(batch: pa.RecordBatch, before: int) -> NDArray[np.int64]:
    """Return (N,) a number for each document: examples of one row with the same group, as those of one conversation
    have, share theirs.

    Args:
        before: documents of the part's earlier batches.
    """
    rows = zip(batch.column("group").to_pylist(), view(batch.column("line")).tolist(), strict=True)
    numbers = (
        xxhash.xxh3_64_intdigest(group.encode(), seed=line) >> 1 if group else -1 - before - index
        for index, (group, line) in enumerate(rows)
    )
    return np.fromiter(numbers, np.int64, batch.num_rows)


def digest_halves(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """Return (N, 2) the digests of a batch of `schemas.rows.ENCODED`, each as two numbers."""
    column = batch.column("digest")
    data = np.frombuffer(column.buffers()[1], dtype=np.uint64).reshape(-1, 2)
    return data[column.offset : column.offset + len(column)]


def _held_out(batch: pa.RecordBatch, source: str, holdout: Holdout) -> NDArray[np.bool_]:
    """Return (N,) whether each document is held out, decided by a hash of its group or of its content.

    So adding data does not move documents, and equal examples are in the same split.
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


def contaminated(catalogue: Catalogue) -> NDArray[np.bool_]:
    """(N,) whether each document shares text with evaluation rows; all false if that was not looked for."""
    out = np.zeros(len(catalogue), dtype=np.bool_)
    for place, first in zip(catalogue.parts, catalogue.part_starts.tolist(), strict=False):
        if not place.contaminated:
            continue
        keys = np.frombuffer(place.contaminated, np.int64)
        for batch in EncodedPart(place.path).batches:
            found = (view(batch.column("line")).astype(np.int64) << 32) + view(batch.column("sub")) + 1
            out[first : first + len(found)] = np.isin(found, keys)
            first += len(found)
    return out
