"""Any packed rows: written as Megatron's and MosaicML's files, read as a source, they are the same documents."""

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.inputs import scan as sources
from packtrain.pipeline.inputs.scan import prepare_block, scan_file
from packtrain.schemas.rows import PACKED
from packtrain.stages.exchange import mds
from packtrain.stages.exchange.exchange_rows import ExchangeRows
from packtrain.stages.exchange.megatron import SequenceIndex
from packtrain.stages.prep import make_format
from packtrain.stages.prep.tokenized import TokenizedOptions

from tests.support.examples import examples

Document = list[tuple[int, bool]]
"""(id, whether it is trained) of each token."""


@st.composite
def packed(draw: st.DrawFn) -> list[list[Document]]:
    """The documents of each row."""
    token = st.tuples(st.integers(0, 65_535), st.booleans())
    document = st.lists(token, min_size=1, max_size=9).map(lambda one: [(one[0][0], False), *one[1:]])
    return draw(st.lists(st.lists(document, min_size=1, max_size=5), min_size=1, max_size=9))


def batch_of(rows: list[list[Document]]) -> pa.RecordBatch:
    plain = []
    for documents in rows:
        tokens = [token for one in documents for token in one]
        row: dict[str, Any] = {
            "input_ids": [id for id, _ in tokens],
            "labels": [id if trained else -100 for id, trained in tokens],
            "position_ids": [place for one in documents for place in range(len(one))],
            "seq_lengths": [len(one) for one in documents],
            "doc_starts": [0] * len(documents),
            "doc_ids": list(range(len(documents))),
        }
        plain.append(row)
    return pa.RecordBatch.from_pylist(plain, PACKED)


def write(folder: Path, batches: list[pa.RecordBatch], to: str, dtype: str) -> Path:
    """The rows as an export writes them; returns the file to read."""
    if to == "mds":
        samples = [sample for batch in batches for sample in mds.samples_of(batch)]
        path = folder / "shard.00000.mds"
        path.write_bytes(mds.shard_head([len(sample) for sample in samples]) + b"".join(samples))
        return path
    index, rows = SequenceIndex(), [ExchangeRows.of(batch) for batch in batches]
    for one in rows:
        index.add(one)
    for name, kind in (("train", dtype), ("train-mask", "uint8")):
        (folder / name).mkdir()
        values = [one.ids if name == "train" else one.trained for one in rows]
        (folder / name / "x.bin").write_bytes(b"".join(value.astype(kind).tobytes() for value in values))
        (folder / name / "x.idx").write_bytes(index.to_bytes(np.dtype(kind)))
    return folder / "train" / "x.idx"


@pytest.mark.parametrize("to", ["megatron", "mds"])
@given(rows=packed(), dtype=st.sampled_from(["uint16", "int32"]), cut=st.integers(0, 9), size=st.integers(50, 900))
@examples(100)
def test_documents_come_back(to: str, rows: list[list[Document]], dtype: str, cut: int, size: int) -> None:
    batches = [batch_of(some) for some in (rows[begin:end] for begin, end in pairwise([0, cut, 9])) if some]
    form = make_format("tokenized", TokenizedOptions(lengths_key="seq_lengths"))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr(sources, "BLOCK_BYTES", size)
        file = scan_file("s", "x", write(Path(name), batches, to, dtype), 1 << 20, Path(name) / "cache")
        found = [
            (block.first_line + one.line, one.sub, np.asarray(one.ids).tolist(), np.asarray(one.trained).tolist())
            for block in file.blocks
            for one in prepare_block(file.where(block), block, form, 1 << 20).examples
        ]
    assert found == [
        (line, sub, [id for id, _ in document], [trained for _, trained in document])
        for line, documents in enumerate(rows)
        for sub, document in enumerate(documents)
    ]
