"""The file of an index in the cache: an Arrow file with one row, whose columns are lists, so that workers map it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from ...schemas.ragged import lengths_of, offsets_of
from ...stages.arrays import numbers, view
from ...stages.overlap.index import OverlapIndex, build_index
from ..store.checksummed import seal
from ..store.open import Store, StoredFile

_COUNTS = ("ngram", "common", "framed", "plain")


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationRows:
    """An index, with the rows that its T texts come from. Equal texts are one text of several rows."""

    index: OverlapIndex
    asks: NDArray[np.bool_]
    """(T,) whether each text is a question, not an answer."""
    originals: pa.Array
    """(T,) each text, as its rows have it."""
    row_starts: NDArray[np.int64]
    """(T + 1,) the first row of each text."""
    row_files: NDArray[np.int32]
    """The number of each row's file."""
    row_lines: NDArray[np.int64]
    """Its line, from 1."""
    row_ids: pa.Array
    """Its id; "" if it has none."""
    rows: int
    """Rows of all files."""
    textless: int
    """Rows without a text to compare."""

    @property
    def compared(self) -> NDArray[np.bool_]:
        """(T,) which texts can be found."""
        return (self.index.counts > 0) | self.index.whole


def put_rows(
    texts: Mapping[tuple[bool, str], Sequence[tuple[int, int, str]]],
    rows: int,
    textless: int,
    ngram: int,
    name: str,
    cache: Store,
) -> StoredFile:
    """Index texts, and put the index with a record `name`.json.

    Args:
        texts: (whether it asks, text) → its rows: (number of the file, line from 1, id).
        rows, textless: see `EvaluationRows`.
    """
    asks, originals = [ask for ask, _ in texts], [text for _, text in texts]
    index = build_index(originals, asks, ngram)
    of_rows = [row for some in texts.values() for row in some]
    values: dict[str, pa.Array] = {key: numbers(value) for key, value in index.arrays().items()}
    values |= {
        "asks": numbers(np.array(asks, np.uint8)),
        "originals": _texts(originals),
        "row_starts": numbers(offsets_of([len(some) for some in texts.values()])),
        "row_files": numbers(np.array([row[0] for row in of_rows], np.int32)),
        "row_lines": numbers(np.array([row[1] for row in of_rows], np.int64)),
        "row_ids": _texts([row[2] for row in of_rows]),
    }
    noted = {key: getattr(index, key) for key in _COUNTS} | {"rows": rows, "textless": textless}
    schema = pa.schema(
        [pa.field(key, pa.large_list(value.type)) for key, value in values.items()],
        metadata={key: str(value) for key, value in noted.items()},
    )
    columns = [
        pa.LargeListArray.from_arrays(numbers(np.array([0, len(value)], np.int64)), value) for value in values.values()
    ]
    with cache.draft("evaluations") as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        put = draft.result
        stored = StoredFile(f"{name}-{put.hash[:16]}.arrow", put.bytes, put.hash)
        cache.put(draft, stored.name, replace_damaged=True)
    cache.replace_bytes(f"{name}.json", seal(msgspec.json.encode(stored), f"{name}.json"))
    return stored


@lru_cache(maxsize=2)
def load_rows(store: Store, file: StoredFile) -> EvaluationRows:
    """The index and its rows, mapped.

    Raises:
        IntegrityError: the index cannot be read.
    """
    path = file.path(store)
    try:
        with pa.memory_map(str(path)) as mapped:
            batch = pa.ipc.open_file(mapped).get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise IntegrityError(f"{path} cannot be read ({error}); delete it and run again to make it again") from error
    known = {*OverlapIndex.__dataclass_fields__, *EvaluationRows.__dataclass_fields__}
    columns: dict[str, Any] = {}
    for name in known.intersection(batch.schema.names):  # indexes of earlier versions have others, too
        values = batch.column(name).values
        columns[name] = values if pa.types.is_large_string(values.type) else view(values)
    noted = {name.decode(): int(value) for name, value in batch.schema.metadata.items()}
    of_index = {name: columns.pop(name) for name in list(columns) if name in OverlapIndex.__dataclass_fields__}
    of_index |= {name: noted[name] for name in _COUNTS}
    asks = columns.pop("asks").astype(np.bool_)
    return EvaluationRows(OverlapIndex(**of_index), asks, rows=noted["rows"], textless=noted["textless"], **columns)


def _texts(values: Sequence[str]) -> pa.Array:
    encoded = [value.encode("utf-8", "replace") for value in values]
    offsets = offsets_of(lengths_of(encoded))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers)
