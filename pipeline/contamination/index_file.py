"""The file of an index in the cache: an Arrow file with one row, whose columns are lists, so that workers map it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from ...schemas.ragged import offsets_of
from ...stages.arrays import numbers, view
from ...stages.overlap.index import OverlapIndex, build_index
from ...stages.overlap.search import OverlapSearch
from ..store.checksummed import seal
from ..store.open import Store, StoredFile


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationRows:
    """The rows that the T texts of an index come from. Equal texts are one text of several rows."""

    originals: pa.Array
    """(T,) each text, as its rows have it."""
    row_starts: NDArray[np.int64]
    """(T + 1,) the first row of each text."""
    row_files: NDArray[np.int64]
    """The number of each row's file."""
    row_lines: NDArray[np.int64]
    """Its line, from 1."""
    row_ids: pa.Array
    """Its id; "" if it has none."""
    rows: int
    """Rows of all files."""
    textless: int
    """Rows without a text to compare."""


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
    originals, of_rows = [text for _, text in texts], [row for some in texts.values() for row in some]
    index = build_index(originals, [ask for ask, _ in texts], ngram)
    held = EvaluationRows(
        _texts(originals),
        offsets_of([len(some) for some in texts.values()]),
        np.array([row[0] for row in of_rows], np.int64),
        np.array([row[1] for row in of_rows], np.int64),
        _texts([row[2] for row in of_rows]),
        rows,
        textless,
    )
    values = {field.name: getattr(one, field.name) for one in (index, held) for field in fields(one)}
    lists = {key: _listed(value) for key, value in values.items() if not isinstance(value, int)}
    noted = {key: str(value) for key, value in values.items() if isinstance(value, int)}
    batch = pa.RecordBatch.from_pydict(lists).replace_schema_metadata(noted)
    with cache.draft("evaluations") as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
        put = draft.result
        stored = StoredFile(f"{name}-{put.hash[:16]}.arrow", put.bytes, put.hash)
        cache.put(draft, stored.name, replace_damaged=True)
    cache.replace_bytes(f"{name}.json", seal(msgspec.json.encode(stored), f"{name}.json"))
    return stored


@lru_cache(maxsize=2)
def load_rows(store: Store, file: StoredFile) -> tuple[OverlapSearch, EvaluationRows]:
    """The index, ready to search, and its rows; both mapped.

    Raises:
        IntegrityError: the index cannot be read.
    """
    path = file.path(store)
    try:
        with pa.memory_map(str(path)) as mapped:
            batch = pa.ipc.open_file(mapped).get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise IntegrityError(f"{path} cannot be read ({error}); delete it and run again to make it again") from error
    held: dict[str, Any] = {name.decode(): int(value) for name, value in batch.schema.metadata.items()}
    for name in batch.schema.names:
        values = batch.column(name).values
        held[name] = values if pa.types.is_large_string(values.type) else view(values)
    held["asks"] = held["asks"].astype(np.bool_)
    index, rows = ({field.name: held[field.name] for field in fields(kind)} for kind in (OverlapIndex, EvaluationRows))
    return OverlapSearch(OverlapIndex(**index)), EvaluationRows(**rows)


def _listed(values: "NDArray[Any] | pa.Array") -> pa.Array:
    """Return a column of one row, which holds a list."""
    if not isinstance(values, pa.Array):
        values = numbers(values.astype(np.uint8) if values.dtype == np.bool_ else values)
    return pa.LargeListArray.from_arrays(numbers(np.array([0, len(values)], np.int64)), values)


def _texts(values: Sequence[str]) -> pa.Array:
    return pa.array([value.encode("utf-8", "replace") for value in values], pa.large_binary()).cast(pa.large_string())
