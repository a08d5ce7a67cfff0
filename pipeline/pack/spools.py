"""What the reading of parts keeps in anonymous files beside the columns of documents, because its size is not known
before: the groups of documents, and for the report the trained spans of a sample.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.ragged import begins_of, offsets_of
from ...schemas.rows import SpanKind
from ..encode.parts import Spans
from ..store.local import open_unnamed_file


class GroupSpool:
    """Collects the groups of N documents, in their order.

    Args:
        scratch: a folder for anonymous files.
    """

    def __init__(self, scratch: Path) -> None:
        self._texts = open_unnamed_file(scratch)
        self._offsets = open_unnamed_file(scratch)
        self._offsets.write(np.zeros(1, np.int64).data)
        self._bytes = 0  # of all texts so far: a segment's offsets count from 0, those of all from here

    def add(self, groups: pa.StringArray) -> None:
        """Add the groups of a segment's documents."""
        if not len(groups):
            return
        _, offsets_buffer, text = groups.buffers()  # of an Arrow array: which texts are null, offsets, bytes of texts
        offsets = np.frombuffer(offsets_buffer, np.int32)[groups.offset : groups.offset + len(groups) + 1]
        # Texts of 2 and 3 bytes that stand from byte 4 of the segment's buffer on have the offsets 4 6 9. Behind 10
        # bytes of earlier segments, they end at 12 and 15.
        begin = int(offsets[0])
        end = int(offsets[-1])
        if end > begin:
            self._texts.write(text[begin:end])
        self._offsets.write((offsets[1:].astype(np.int64) + (self._bytes - begin)).data)
        self._bytes += end - begin

    def result(self) -> pa.Array | None:
        """(N,) all groups, mapped; None if no document has one."""
        if not self._bytes:
            return None
        self._texts.flush()
        self._offsets.flush()
        offsets = np.memmap(self._offsets, np.int64, "r")
        texts = np.memmap(self._texts, np.uint8, "r")
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(texts)]
        return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedSpans:
    """The trained spans of S sampled documents, K in all."""

    doc_ids: NDArray[np.int64]
    """(S,) ascending."""
    counts: NDArray[np.int32]
    """(S,) trained spans of each."""
    plain_texts: NDArray[np.bool_]
    """(S,) whether each is a plain text, without prompt, completion or turns."""
    bounds: NDArray[np.int32]
    """(K, 2) the first token of each span in its document, and one past its last; mapped."""


class TrainedSpanSpool:
    """Collects the trained spans of documents.

    Args:
        scratch: a folder for an anonymous file.
    """

    def __init__(self, scratch: Path) -> None:
        self._file = open_unnamed_file(scratch)
        # Each begins with an empty array, because the result is made even if nothing is added.
        self._doc_ids = [np.zeros(0, np.int64)]
        self._counts = [np.zeros(0, np.int32)]
        self._plain_texts = [np.zeros(0, np.bool_)]

    def add(self, first_document: int, spans: Spans) -> None:
        """Add the documents of a segment.

        Args:
            first_document: doc id of the segment's first document.
            spans: of the segment's documents.
        """
        counts = np.diff(spans.offsets)
        # Of spans trained 0 1 1 0 1, the numbers before are 0 0 1 2 2 3. Two documents with spans 0 to 2 and 3 to 4
        # have 2 - 0 and 3 - 2 trained ones.
        trained_before = offsets_of(spans.supervised)
        trained_counts = trained_before[spans.offsets[1:]] - trained_before[spans.offsets[:-1]]
        bounds = np.stack([begins_of(spans.ends, spans.offsets), spans.ends], axis=1)[spans.supervised]
        self._file.write(np.ascontiguousarray(bounds, np.int32).data)
        self._doc_ids.append(np.arange(first_document, first_document + len(counts)))
        self._counts.append(trained_counts.astype(np.int32))
        self._plain_texts.append(_are_plain_texts(spans))

    def result(self) -> TrainedSpans:
        """All that was added."""
        counts = np.concatenate(self._counts)
        bounds = np.zeros((0, 2), np.int32)
        if counts.any():  # an empty file cannot be mapped
            self._file.flush()
            bounds = np.memmap(self._file, np.int32, "r").reshape(-1, 2)
        return TrainedSpans(np.concatenate(self._doc_ids), counts, np.concatenate(self._plain_texts), bounds)


def _are_plain_texts(spans: Spans) -> NDArray[np.bool_]:
    """(K,) whether each document has no spans but those of a text."""
    others_before = offsets_of(~np.isin(spans.kind, (SpanKind.TEXT, SpanKind.SPECIAL)))
    plain: NDArray[np.bool_] = others_before[spans.offsets[1:]] == others_before[spans.offsets[:-1]]
    return plain
