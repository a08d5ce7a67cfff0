"""Samples and shards of MosaicML's MDS format.

Rules: `streaming/base/format/mds/` of mosaicml-streaming 0.13.0. A shard is the number of samples (uint32), where each
of them begins and the last one ends (uint32, from the start of the file), a JSON text with the columns, and the
samples. A sample is the size of each of its columns (uint32, columns sorted by name), then their values. An array with
one dimension is the byte `1 << 2 | w`, its length in `1 << w` bytes, then its numbers.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.rows import PACKED
from ..arrays import view

SIZE_LIMIT = 1 << 26
"""Bytes after which a new shard begins, as in `MDSWriter`."""
HASH = "sha256"
_VALUES = {pa.int32(): "int32", pa.int64(): "int64", pa.float32(): "float32"}
"""Arrow type → its name in numpy, which MDS takes."""


def samples_of(batch: pa.RecordBatch) -> list[bytes]:
    """Each packed row as a sample; no list in it is empty."""
    columns = [_values_of(batch.column(name)) for name in sorted(batch.schema.names)]
    samples = []
    for values in zip(*columns, strict=True):
        data = [_array(value) for value in values]
        samples.append(np.array([len(one) for one in data], np.uint32).tobytes() + b"".join(data))
    return samples


def shard_head(sizes: Sequence[int], schema: pa.Schema = PACKED) -> bytes:
    """What comes before samples of these sizes in bytes."""
    config = json.dumps(_config(schema), sort_keys=True).encode()
    first = 4 + 4 * (len(sizes) + 1) + len(config)
    begins = np.cumsum([first, *sizes], dtype=np.uint32)
    return np.uint32(len(sizes)).tobytes() + begins.tobytes() + config


def index_entry(name: str, bytes: int, sha256: str, samples: int, schema: pa.Schema = PACKED) -> dict[str, Any]:
    """A shard as `index.json` lists it.

    Args:
        name: the shard's file, in the folder of the index.
    """
    raw = {"basename": name, "bytes": bytes, "hashes": {HASH: sha256}}
    return {**_config(schema), "raw_data": raw, "samples": samples, "zip_data": None}


def index_json(entries: Sequence[dict[str, Any]]) -> bytes:
    """`index.json` of a split."""
    return json.dumps({"shards": list(entries), "version": 2}, sort_keys=True).encode()


def _config(schema: pa.Schema) -> dict[str, Any]:
    names = sorted(schema.names)
    return {
        "column_encodings": [f"ndarray:{_VALUES[schema.field(name).type.value_type]}" for name in names],
        "column_names": names,
        "column_sizes": [None] * len(names),
        "compression": None,
        "format": "mds",
        "hashes": [HASH],
        "size_limit": SIZE_LIMIT,
        "version": 2,
    }


def _values_of(column: pa.ListArray) -> list[NDArray[Any]]:
    offsets = view(column.offsets)
    return np.split(view(column.flatten()), offsets[1:-1] - offsets[0])


def _array(values: NDArray[Any]) -> bytes:
    # As its own writer does: the smallest of 1, 2 and 4 bytes that holds the length.
    width = next(width for width in range(3) if len(values) < 1 << (8 << width))
    return bytes([1 << 2 | width]) + len(values).to_bytes(1 << width, "little") + values.tobytes()
