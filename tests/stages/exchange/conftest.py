"""Three rows that a person can follow."""

import pyarrow as pa
import pytest
from packtrain.schemas.rows import PACKED
from packtrain.stages.exchange.exchange_rows import ExchangeRows

ROWS = [
    {"input_ids": [11, 12, 13, 9, 21, 22, 9], "labels": [-100, -100, 13, 9, -100, 22, -100], "seq_lengths": [4, 3]},
    {"input_ids": [31, 9], "labels": [-100, 9], "seq_lengths": [2]},
    {"input_ids": [41, 9, 51, 52, 53], "labels": [-100, -100, -100, 52, 53], "seq_lengths": [2, 3]},
]


@pytest.fixture
def batch() -> pa.RecordBatch:
    """The rows, as a slice of a longer batch, so that no column begins at its first value."""
    doc, rows = 0, []
    for row in [ROWS[1], *ROWS, ROWS[0]]:
        positions = [position for length in row["seq_lengths"] for position in range(length)]
        count = len(row["seq_lengths"])
        more = {"position_ids": positions, "doc_starts": [0] * count, "doc_ids": list(range(doc, doc + count))}
        rows.append(row | more)
        doc += count
    return pa.RecordBatch.from_pylist(rows, PACKED).slice(1, 3)


@pytest.fixture
def rows(batch: pa.RecordBatch) -> ExchangeRows:
    """The same as plain arrays."""
    return ExchangeRows.of(batch)
