"""Megatron's index, byte by byte."""

import struct

import numpy as np
from packtrain.stages.exchange.exchange_rows import ExchangeRows
from packtrain.stages.exchange.megatron import SequenceIndex


def test_the_index_of_rows_that_came_in_two_batches(rows: ExchangeRows) -> None:
    index = SequenceIndex()
    index.add(rows)
    index.add(rows)
    lengths = [4, 3, 2, 2, 3] * 2
    for name, code, width in (("uint16", 8, 2), ("int32", 4, 4), ("uint8", 1, 1)):
        pointers = [sum(lengths[:at]) * width for at in range(10)]
        assert index.to_bytes(np.dtype(name)) == (
            b"MMIDIDX\0\0"
            + struct.pack("<QBQQ", 1, code, 10, 7)
            + struct.pack("<10i", *lengths)
            + struct.pack("<10q", *pointers)
            + struct.pack("<7q", 0, 2, 3, 5, 7, 8, 10)
        )
