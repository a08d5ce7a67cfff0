"""Arrow files that tasks map: written in batches, read by column."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.manifest import FileRecord, SplitRecord
from ...schemas.rows import ROW_SIZES_NAME
from ...stages.arrays import view
from ..store.open_store import Store


def put_arrow(store: Store, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> FileRecord:
    """Put record batches as a mappable Arrow file, holding one batch in memory at a time."""
    with store.draft(name.rpartition("/")[0]) as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        put = draft.result
        store.put(draft, name)
    return FileRecord(name, put.bytes, put.hash)


def read_rows(path: Path, first: int, last: int) -> list[NDArray[Any]]:
    """Read rows first..last - 1 of a mappable Arrow file, by column; columns must be numbers without nulls."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all().slice(first, last - first)
    return [np.concatenate([view(chunk) for chunk in column.chunks]) for column in table.columns]


def row_sizes_name(split: SplitRecord) -> str:
    """Return the name that the file of a split's `ROW_SIZES` has in the manifest."""
    return split.shards[0].name.partition("shards/")[0] + ROW_SIZES_NAME
