"""MDS, byte by byte."""

import json
import struct

import numpy as np
import pyarrow as pa
from packtrain.schemas.rows import PACKED
from packtrain.stages.exchange.mds import index_entry, index_json, samples_of, shard_head


def int32(*values: int) -> bytes:
    return bytes([1 << 2, len(values)]) + struct.pack(f"<{len(values)}i", *values)


def test_a_sample(batch: pa.RecordBatch) -> None:
    columns = [
        bytes([1 << 2, 1]) + struct.pack("<q", 3),  # doc_ids
        int32(0),  # doc_starts
        int32(31, 9),  # input_ids
        int32(-100, 9),  # labels
        int32(0, 1),  # position_ids
        int32(2),  # seq_lengths
    ]
    assert samples_of(batch)[1] == struct.pack("<6I", *map(len, columns)) + b"".join(columns)


def test_the_length_of_an_array_takes_as_many_bytes_as_it_needs() -> None:
    for length, width in ((255, 1), (256, 2), (65_535, 2), (65_536, 4)):
        row = {name: [0] * length for name in PACKED.names}
        sample = samples_of(pa.RecordBatch.from_pylist([row], PACKED))[0]
        assert sample[24] == 1 << 2 | (width.bit_length() - 1)
        assert int.from_bytes(sample[25 : 25 + width], "little") == length
        assert struct.unpack("<6I", sample[:24])[0] == 1 + width + 8 * length


def test_the_head_of_a_shard_and_its_index() -> None:
    head = shard_head([10, 0, 300])
    assert struct.unpack("<I", head[:4]) == (3,)
    begins = struct.unpack("<4I", head[4:20])
    assert begins == (len(head), len(head) + 10, len(head) + 10, len(head) + 310)
    config = json.loads(head[20:])
    entry = index_entry("shard.00000.mds", 12, "ab", 3)
    assert config.items() <= entry.items()
    assert json.loads(index_json([entry, entry])) == {"version": 2, "shards": [entry, entry]}
    assert (entry["samples"], entry["raw_data"]["bytes"], entry["format"]) == (3, 12, "mds")
    assert config["column_names"] == ["doc_ids", "doc_starts", "input_ids", "labels", "position_ids", "seq_lengths"]
    assert config["column_encodings"] == ["ndarray:int64"] + ["ndarray:int32"] * 5
    assert len(config["column_sizes"]) == 6
    assert np.uint32(len(head) + 310) == begins[-1]
