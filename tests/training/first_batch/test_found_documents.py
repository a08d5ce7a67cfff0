"""Documents are found in batches however a trainer divides, joins and pads rows; what is none is named."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from packtrain.training.first_batch.documents import DocumentFinder
from packtrain.training.packed_rows import PackedRows

from tests import kit

PAD = 0


@pytest.fixture(scope="module", params=["long and short", "short only", "padded", "many shards"])
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PackedRows:
    """Documents of 2 to 90 tokens, of 2 to 5, padded ones, and in many shards."""
    root = tmp_path_factory.mktemp("rows")
    chance = np.random.default_rng(3)
    short = request.param == "short only"
    sizes = chance.integers(2, 6 if short else 90, 500 if short else 150).tolist()
    kit.write(root / "ids.jsonl", [{"input_ids": chance.integers(1, 250, size).tolist()} for size in sizes])
    parallel = {"cp": 2, "layout": "thd"} if request.param == "padded" else None
    sizes *= 20 if request.param == "many shards" else 1
    output = {"shard_bytes": 65536} if request.param == "many shards" else {}
    source = {"name": "ids", "format": "tokenized", "path": "ids.jsonl"}
    keys = {"truncate": {"max_length": 128}, "pack": {"parallel": parallel}, "output": output}
    return PackedRows(kit.packed(kit.configure(root, source, **keys)).folder)


Found = set[tuple[int, int, tuple[int, ...]]]
"""(row of the batch, place in it, tokens) of documents."""


def documents_of(rows: PackedRows, index: int) -> list[list[int]]:
    row = rows.row(index)
    begins = np.cumsum(row.seq_lengths) - row.seq_lengths
    return [row.input_ids[b : b + n].tolist() for b, n in zip(begins, row.own_lengths, strict=True)]


def laid_out(batch: list[list[list[int]]], left: int = 0) -> tuple[NDArray[np.int64], Found]:
    """Lists of documents as rows of a batch, padded to the longest; and where the documents are."""
    flat = [[PAD] * left + [token for document in row for token in document] for row in batch]
    width = max(map(len, flat))
    places: Found = set()
    for number, row in enumerate(batch):
        begin = left
        for document in row:
            places.add((number, begin, tuple(document)))
            begin += len(document)
    return np.array([row + [PAD] * (width - len(row)) for row in flat]), places


def problems_of(rows: PackedRows, ids: NDArray[np.int64]) -> list[str]:
    finder = DocumentFinder(rows)
    return [finder.describe(ids, gap) for gap in finder.find(ids, np.zeros(ids.shape, bool))[1]]


def as_rows(rows: PackedRows) -> list[list[list[int]]]:
    return [documents_of(rows, index) for index in (7, 1, 3)]


def joined(rows: PackedRows) -> list[list[list[int]]]:
    return [documents_of(rows, 4) + documents_of(rows, 0)]


def taken_apart(rows: PackedRows) -> list[list[list[int]]]:
    return [[document] for document in documents_of(rows, 2)]


def mixed(rows: PackedRows) -> list[list[list[int]]]:
    """Documents in another order, of several rows; without short ones, which are found beside their neighbours."""
    documents = [document for index in (5, 6, 1) for document in documents_of(rows, index) if len(document) >= 8]
    return [documents[::-1]]


@pytest.mark.parametrize("left", [0, 5])
@pytest.mark.parametrize("change", [as_rows, joined, taken_apart, mixed])
def test_where_documents_are(rows: PackedRows, change: Callable[[PackedRows], Any], left: int) -> None:
    batch = change(rows)
    if not batch[0]:
        pytest.skip("all documents are short")
    ids, expected = laid_out(batch, left)
    mask = np.zeros(ids.shape, bool)
    documents, gaps = DocumentFinder(rows).find(ids, mask)
    assert gaps == []
    found = {
        (document.row, document.begin, tuple(ids[document.row, document.begin : document.end].tolist()))
        for document in documents
    }
    assert found == expected


def test_a_masked_part_is_padding(rows: PackedRows) -> None:
    ids, _ = laid_out([documents_of(rows, 0)], left=20)
    ids[0, :20] = np.arange(300, 320)
    assert DocumentFinder(rows).find(ids, ids >= 300)[1] == []
    (problem,) = problems_of(rows, ids)
    assert problem == "tokens 0 to 20 of row 0 of the batch are no documents of this dataset"


@pytest.mark.parametrize("edge", [slice(3, None), slice(None, -3), slice(2, -2)], ids=["beginning", "end", "both"])
def test_what_was_cut_is_named(rows: PackedRows, edge: slice) -> None:
    longest = max((document for index in range(8) for document in documents_of(rows, index)), key=len)
    if len(longest) < 8:
        pytest.skip("all documents are short")
    ids = np.array([longest[edge]])
    (problem,) = problems_of(rows, ids)
    what = f"tokens 0 to {ids.size} of row 0 of the batch are a part of a document of {len(longest)} tokens"
    assert problem == f"{what}, which was cut"
