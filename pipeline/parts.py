"""Encoded parts, read back through a memory map."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.errors import IntegrityError
from ..schemas.jsontext import decode_note
from ..schemas.names import check_hash, check_name
from ..stages.arrays import booleans, view
from ..stages.mask import Mask, asked_runs
from .stores import Store

UNPROVED = "unproved"
"""The reason word for conversations whose turns are not proved, under a mask that needs them."""


REWRITTEN = "prompt_rewritten"
"""The reason word for conversations whose prompt alone is rendered otherwise, where the mask rejects them."""
_REWRITTEN_HOW = "the chat template renders the prompt alone otherwise than within the conversation"


@dataclass(frozen=True, slots=True)
class PartRecord:
    """What is written beside an encoded part, and makes it count as there."""

    part: str
    """Name of the part in the cache; carries the hash."""
    bytes: int
    hash: str
    payload: dict[str, Any]
    """What the part's key was made from, so that a miss can say which field differed."""
    rows: int
    blank: int
    bytes_read: int
    examples: int
    """Examples in the part."""
    tokens: int
    end_of_sequence: int
    special: int
    straddles: int
    boundaries: int
    text_bytes: int
    inexact: int
    rows_used: int
    dropped: dict[str, int] = field(default_factory=dict)
    """Conversations in the part of which the template leaves something out, by what."""
    unproved: int = 0
    """Examples in the part of which nothing says surely where the assistant's turns lie."""
    unproved_rows: list[tuple[int, int, str]] = field(default_factory=list)
    """(line in the block, which example of it or -1, why) of the first of them."""
    rewritten: int = 0
    """Examples in the part whose prompt alone is rendered otherwise than within the conversation."""
    rewritten_rows: list[tuple[int, int]] = field(default_factory=list)
    """(line in the block, which example of it or -1) of the first of them."""
    rejected: dict[str, int] = field(default_factory=dict)
    filtered: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    rejects: list[tuple[int, int, str, str]] = field(default_factory=list)
    """(line in the block, which example of it or -1, reason, detail)."""

    def refusals(self, reasons: Collection[str]) -> list[tuple[int, int, str, str]]:
        """What is left out, as `rejects`; with those that the mask leaves out for one of `reasons`."""
        rows: list[tuple[int, int, str, str]] = []
        for reason, count, found in (
            (UNPROVED, self.unproved, self.unproved_rows),
            (REWRITTEN, self.rewritten, [(*one, _REWRITTEN_HOW) for one in self.rewritten_rows]),
        ):
            if count and reason in reasons:
                rows += [(line, sub, reason, why) for line, sub, why in found]
                if count > len(found):
                    rows.append((rows[-1][0], -1, "more", f"and {count - len(found):,} more {reason}, counted only"))
        return sorted([*self.rejects, *rows]) if rows else self.rejects

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PartRecord":
        """The inverse of `to_json`.

        Raises:
            ValueError, KeyError, TypeError: it has another shape, or names a part that lies elsewhere.
        """
        check_name(data["part"])
        check_hash(data["hash"])
        tuples = {key: [tuple(one) for one in data[key]] for key in ("rejects", "unproved_rows", "rewritten_rows")}
        return cls(**{**data, **tuples})


@dataclass(frozen=True, slots=True)
class PartFile:
    """Where the tokens of a part are: a name in the cache, and what must be found under it."""

    name: str
    bytes: int
    hash: str

    def path(self, cache: Store) -> Path:
        """A file of this machine with its content."""
        return cache.local(self.name, bytes=self.bytes, hash=self.hash)


@dataclass(frozen=True, slots=True)
class PartList:
    """What the parts of a run are, and where."""

    cache: str
    """The store that holds them."""
    parts: list[PartFile]
    """In the order of the catalogue."""
    sources: list[int] = field(default_factory=list)
    """Which source each belongs to."""

    def __post_init__(self) -> None:
        for part in self.parts:
            check_name(part.name)
            check_hash(part.hash)


def read_parts(out: Store, name: str) -> PartList:
    """A list that was put into `out`.

    Raises:
        IntegrityError: it is gone.
    """
    data = out.read(name)
    if data is None:
        raise IntegrityError(f"{out.where(name)} vanished; run again")
    return decode_note(data, PartList)


class EncodedPart:
    """One encoded part: N documents in one or more segments (record batches), mapped, not copied."""

    def __init__(self, path: Path) -> None:
        try:
            with pa.memory_map(str(path)) as source:
                reader = pa.ipc.open_file(source)
                self.batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        except (OSError, pa.ArrowInvalid) as error:
            raise IntegrityError(
                f"the encoded part {path} cannot be read ({error}); delete it and run again, it will be made anew"
            ) from error

    def segments(self, mask: Mask) -> "list[Segment]":
        """The part's segments, with the mask applied to their runs."""
        return [Segment.of(batch, mask) for batch in self.batches]


@dataclass(frozen=True, slots=True)
class Segment:
    """One record batch of a part, as flat arrays."""

    tokens: NDArray[np.int32]
    """(T,) all its documents' tokens."""
    offsets: NDArray[np.int32]
    """(N + 1,) over tokens."""
    runs: NDArray[np.int32]
    """(runs,) where a run ends in its document if the mask asks for it, the bitwise complement if not."""
    run_offsets: NDArray[np.int32]
    """(N + 1,) over runs."""

    @classmethod
    def of(cls, batch: pa.RecordBatch, mask: Mask) -> "Segment":
        """The flat arrays of a batch of `schemas.rows.ENCODED`."""
        ids, runs = batch.column("input_ids"), batch.column("runs")
        structs = runs.values
        ends = view(structs.field("end"))
        asked = asked_runs(
            view(structs.field("kind")),
            view(structs.field("turn")),
            booleans(structs.field("train")),
            view(runs.offsets),
            mask,
        )
        return cls(
            tokens=view(ids.values),
            offsets=view(ids.offsets),
            runs=np.where(asked, ends, ~ends),
            run_offsets=view(runs.offsets),
        )
