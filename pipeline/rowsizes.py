"""What every packed row weighs, in a file of its own: ordering and balancing a dataset should open no shard."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.manifest import FileRecord, SplitRecord
from ..schemas.rows import ROW_SIZES, ROW_SIZES_NAME
from ..stages.arrays import numbers, view
from .planning import WindowPlan
from .stores import Store


def write_row_sizes(store: Store, folder: str, windows: Sequence[WindowPlan], align: int) -> FileRecord:
    """Put `ROW_SIZES` of a split, from its layout: nothing of a shard is read.

    Args:
        folder: of the split below the output, "" or its name and a slash.
        windows: whose layouts stand in the store, in the order of their shards.
        align: tokens that every piece is padded to a multiple of.
    """
    with store.draft(folder, sha256=True) as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), ROW_SIZES) as writer:
            # Always one batch: readers map it and look nowhere else.
            writer.write_batch(pa.RecordBatch.from_arrays(_columns(store, windows, align), schema=ROW_SIZES))
        put = draft.result
        name = f"{folder}{ROW_SIZES_NAME}"
        store.put(draft, name, mend=True)
    return FileRecord(name, put.bytes, put.hash, put.sha256)


def row_sizes_name(split: SplitRecord) -> str:
    """The file of a split, as the manifest calls it."""
    return split.shards[0].name.partition("shards/")[0] + ROW_SIZES_NAME


def _columns(store: Store, windows: Sequence[WindowPlan], align: int) -> list[pa.Array]:
    tokens, squares = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for window in windows:
        with (
            pa.memory_map(str(store.local(f"{window.name}-pieces.arrow"))) as pieces,
            pa.memory_map(str(store.local(f"{window.name}-rows.arrow"))) as rows,
        ):
            lengths = view(pa.ipc.open_file(pieces).get_batch(0).column("length")).astype(np.int64)
            offsets = view(pa.ipc.open_file(rows).get_batch(0).column(0))
            lengths = -(-lengths // align) * align
            tokens.append(_row_sums(lengths, offsets).astype(np.int32))
            squares.append(_row_sums(lengths * lengths, offsets))
    return [numbers(np.concatenate(tokens)), numbers(np.concatenate(squares))]


def _row_sums(values: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    rows: NDArray[np.int64] = sums[offsets[1:]] - sums[offsets[:-1]]
    return rows
