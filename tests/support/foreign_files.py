"""Files of other trainers, byte by byte."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np


def megatron_pair(folder: Path, name: str = "data", **changes: Any) -> Path:
    """A pair of two documents, of 3 + 1 and 2 tokens of int32, unless told otherwise; returns its index."""
    what: dict[str, Any] = {
        "mark": b"MMIDIDX\0\0",
        "version": 1,
        "code": 4,
        "lengths": [3, 1, 2],
        "pointers": [0, 12, 16],
        "bounds": [0, 2, 3],
        "more": b"",
        "data": struct.pack("<6i", 11, 12, 13, 21, 31, 32),
    } | changes
    counts = len(what["lengths"]), len(what["bounds"])
    index = what["mark"] + struct.pack("<QBQQ", what["version"], what["code"], *counts)
    for kind, numbers in (("i", what["lengths"]), ("q", what["pointers"]), ("q", what["bounds"])):
        index += struct.pack(f"<{len(numbers)}{kind}", *numbers)
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.idx").write_bytes(index + what["more"])
    if what["data"] is not None:
        (folder / f"{name}.bin").write_bytes(what["data"])
    return folder / f"{name}.idx"


def mds_shard(samples: list[bytes], encodings: dict[str, str], **changes: Any) -> bytes:
    """A shard of MDS with the columns in the given order."""
    head = {
        "version": 2,
        "format": "mds",
        "column_names": list(encodings),
        "column_encodings": list(encodings.values()),
        "column_sizes": [None] * len(encodings),
    } | changes
    config = json.dumps(head).encode()
    bounds = np.cumsum([8 + 4 * len(samples) + len(config), *map(len, samples)])
    return struct.pack(f"<{len(samples) + 2}I", len(samples), *bounds) + config + b"".join(samples)


def mds_sample(*values: bytes) -> bytes:
    """A sample of values without fixed sizes."""
    return struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)


def mds_ids(*values: int) -> bytes:
    """An array of int32 with one dimension, of up to 255 numbers."""
    return bytes([4, len(values)]) + struct.pack(f"<{len(values)}i", *values)
