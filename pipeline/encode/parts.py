"""Encoded parts: the records that make them count, and what they hold, mapped."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import view
from ...schemas.dataset.manifest import FileRecord
from ...schemas.errors import IntegrityError
from ...schemas.files.arrow_sizes import require_bounded
from ...schemas.files.foreign import map_regular
from ...stages.mask.policy import Mask, supervised_spans
from ...stages.tokenize.encode_counts import EncodeCounts
from ...stages.tokenize.engine_check import EngineSample
from ..inputs.blocks import FileLines
from ..store.local import LocalStore
from ..store.open_store import Store


@dataclass(frozen=True, slots=True)
class PartRecord:
    """The record written beside an encoded part, which marks it as complete."""

    file: FileRecord
    """The part in the cache."""
    rows: int
    """Lines of the block, with blank ones."""
    blank: int
    """Blank lines, which are neither used nor rejected."""
    bytes_read: int
    """Size of the block in its file."""
    rows_used: int
    """Rows that gave examples, and were not rejected when these were encoded."""
    counts: EncodeCounts
    """What was found in the block; its places are sorted by line."""


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """An encoded part without a record yet."""

    name: str
    """Of the record, in the cache."""
    record: PartRecord
    samples: list[EngineSample]
    """Texts to compare with the reference before the record is written."""


def mark_used(cache: Store, parts: Mapping[str, PartRecord]) -> None:
    """Set the times of parts and of their records to now, so that `packtrain clean` does not remove them for their age.

    Args:
        parts: the records, by their names in the cache.
    """
    if isinstance(cache, LocalStore):
        for record_name, record in parts.items():
            for name in (record.file.name, record_name):
                with suppress(OSError):  # of another user, or gone: nothing depends on it
                    os.utime(cache.path(name))


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
    """The examples of the block that share text with evaluation rows, as the bytes of an ascending array of int64, with
    row · 2³² + `sub` + 1 for each; empty if there are none."""

    @property
    def path(self) -> Path:
        """A local file with the part; of a remote cache, a copy that is fetched once."""
        return self.cache.local(self.part)


class EncodedPart:
    """One encoded part: N documents in one or more segments (record batches), mapped, not copied."""

    def __init__(self, path: Path) -> None:
        try:
            data = map_regular(path)
            # Parts are not compressed: nothing of one unpacks to more than the file has.
            require_bounded(data, max_unpacked_bytes=0)
            # Batches are views of the mapped file: what is not looked at is not read.
            reader = pa.ipc.open_file(data)
            self.batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        except (OSError, ValueError, pa.ArrowInvalid) as error:
            raise IntegrityError(
                f"the encoded part {path} cannot be read ({error}); delete it and run again to rebuild it"
            ) from error


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The spans of the K documents of a segment; see `schemas.rows.SPAN`."""

    ends: NDArray[np.int32]
    """(spans,) each ends before this token of its document."""
    kind: NDArray[np.int8]
    """(spans,) what each is, as `schemas.rows.SpanKind`."""
    turn: NDArray[np.int16]
    """(spans,) the message that each belongs to, or -1."""
    supervised: NDArray[np.bool_]
    """(spans,) whether the mask trains each."""
    weights: NDArray[np.float32] | None
    """(spans,) the loss weight of the tokens of each, if they are trained; None if all trained ones have the weight 1.
    """
    offsets: NDArray[np.integer[Any]]
    """(K + 1,) where each document's spans begin."""

    @classmethod
    def of(cls, batch: pa.RecordBatch, mask: Mask) -> "Spans":
        """The spans of a segment.

        Args:
            batch: of `schemas.rows.ENCODED`, with K documents.
        """
        column = batch.column("spans")
        ends = view(column.values.field("end"))
        kind = view(column.values.field("kind"))
        turn = view(column.values.field("turn"))
        row_weights = view(column.values.field("weight"))
        offsets = view(column.offsets)
        supervised, weights = supervised_spans(kind, turn, row_weights, offsets, mask)
        # In most data all weights are 0 or 1. These only say whether a span is trained, as `supervised` does already.
        is_plain = bool(((row_weights == 0) | (row_weights == 1)).all())
        return cls(
            ends=ends,
            kind=kind,
            turn=turn,
            supervised=supervised,
            weights=None if is_plain else weights,
            offsets=offsets,
        )
