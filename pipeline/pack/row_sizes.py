"""Writes the size of every packed row to a separate file, so that ordering and balancing need not open shards."""

from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.alignment import Alignment
from ...schemas.manifest import FileRecord, SplitRecord
from ...schemas.ragged import sums_of
from ...schemas.rows import ROW_SIZES, ROW_SIZES_NAME
from ...stages.arrays import numbers
from ..store.anonymous_files import explained, nameless
from ..store.open import Store


class RowWeights:
    """Collects `ROW_SIZES` of a split from the plans of its windows, without reading shards.

    Args:
        alignment: the padding of pieces and rows.
        scratch: a folder for anonymous files, so that a billion rows need no memory.
    """

    def __init__(self, alignment: Alignment, scratch: Path) -> None:
        self._alignment = alignment
        self._scratch = scratch
        self._files = [(nameless(scratch), kind) for kind in (np.int32, np.int64)]

    def add(self, lengths: NDArray[np.int32], row_offsets: NDArray[np.int64]) -> None:
        """Add the rows of the next window.

        Args:
            lengths, row_offsets: as in `LayoutPlan`.
        """
        lengths = self._alignment.padded(lengths, row_offsets).astype(np.int64)
        for (file, kind), values in zip(self._files, (lengths, lengths * lengths), strict=True):
            with explained(self._scratch):
                file.write(sums_of(values, row_offsets).astype(kind, copy=False).data)
                file.flush()

    def put(self, store: Store, folder: str) -> FileRecord:
        """Write the split's file to the store.

        Args:
            folder: folder of the split below the output: "", or its name and a slash.
        """
        with store.draft(folder, sha256=True) as draft:
            with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), ROW_SIZES) as writer:
                # always one batch, because readers map only the first
                columns = [numbers(_mapped(file, kind)) for file, kind in self._files]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=ROW_SIZES))
            put = draft.result
            name = f"{folder}{ROW_SIZES_NAME}"
            store.put(draft, name, replace_damaged=True)
        return FileRecord(name, put.bytes, put.hash, put.sha256)


def row_sizes_name(split: SplitRecord) -> str:
    """Return the name that a split's file has in the manifest."""
    return split.shards[0].name.partition("shards/")[0] + ROW_SIZES_NAME


def _mapped(file: IO[bytes], kind: "type[np.generic]") -> NDArray[Any]:
    file.flush()
    if not file.tell():
        return np.zeros(0, dtype=kind)
    return np.memmap(file, dtype=kind, mode="r")
