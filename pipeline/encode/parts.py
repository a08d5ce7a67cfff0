"""Encoded parts, read back through a memory map."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from ...schemas.manifest import FileRecord
from ...schemas.names import check_hash, check_name
from ...stages.arrays import view
from ...stages.mask.policy import Mask, supervised_runs
from ...stages.tokenize.encode_counts import DROPPED, REJECTED, EncodeCounts
from ..inputs.blocks import FileLines
from ..store.open_store import Store
from ..store.sealed_notes import get_note


@dataclass(frozen=True, slots=True)
class PartRecord:
    """The record written beside an encoded part, which marks it as complete."""

    part: str
    """Name of the part in the cache, with its hash."""
    bytes: int
    hash: str
    rows: int
    blank: int
    bytes_read: int
    rows_used: int
    counts: EncodeCounts
    """What was found in the block; its places are sorted by line."""

    def refusals(self, reasons: Collection[str]) -> Iterator[tuple[int, int, str, str]]:
        """Yield (line in the block, example of the row or -1, reason, detail) of the rows and examples that are not
        used: those that are rejected, and those that the mask leaves out for one of `reasons`.
        """
        listed, last = Counter[tuple[str, str]](), 0
        for kind, name, line, sub, detail in self.counts.places:
            if kind in (REJECTED, DROPPED) or kind in reasons:
                listed[kind, name] += 1
                last = line
                yield line, sub, name or kind, detail
        for (kind, name), count in listed.items():
            more = self.counts.found[kind][name] - count
            if more:
                yield last, -1, "more", f"and {more:,} more {name or kind}, counted only"


def read_record(cache: Store, name: str) -> PartRecord | None:
    """The record of this name; None if it is missing or damaged, or names a part outside the cache."""
    record = get_note(cache, name, PartRecord)
    try:
        if record is not None:
            check_name(record.part)
            check_hash(record.hash)
    except ValueError:
        return None
    return record


@dataclass(frozen=True, slots=True)
class PartPlace:
    """One part in the order of the run, and the position of its block."""

    cache: Store
    part: FileRecord
    source: int
    """Index of the source in the configuration."""
    lines: FileLines
    """Where the rows of its block are."""
    contaminated: bytes = b""
    """The examples that share text with evaluation rows; see `contamination.Contamination.marked`."""

    @property
    def path(self) -> Path:
        """Return the path of a local file with the part."""
        return self.cache.local(self.part)


class EncodedPart:
    """One encoded part: N documents in one or more segments (record batches), mapped, not copied."""

    def __init__(self, path: Path) -> None:
        try:
            with pa.memory_map(str(path)) as source:
                reader = pa.ipc.open_file(source)
                self.batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        except (OSError, pa.ArrowInvalid) as error:
            raise IntegrityError(
                f"the encoded part {path} cannot be read ({error}); delete it and run again to rebuild it"
            ) from error


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The runs of the K documents of a segment; see `schemas.rows.RUN`."""

    ends: NDArray[np.int32]
    kind: NDArray[np.int8]
    turn: NDArray[np.int16]
    supervised: NDArray[np.bool_]
    """Whether the mask trains each."""
    weights: NDArray[np.float32] | None
    """The loss weight of the tokens of each, if they are trained; None if all are 1."""
    offsets: NDArray[np.integer[Any]]
    """(K + 1,) where each document's runs begin."""

    @classmethod
    def of(cls, batch: pa.RecordBatch, mask: Mask) -> "Runs":
        """The runs of a segment."""
        column = batch.column("runs")
        ends, kind, turn, weights = (view(column.values.field(name)) for name in ("end", "kind", "turn", "weight"))
        offsets = view(column.offsets)
        supervised, own = supervised_runs(kind, turn, weights, offsets, mask)
        plain = bool(((weights == 0) | (weights == 1)).all())
        return cls(ends, kind, turn, supervised, None if plain else own, offsets)
