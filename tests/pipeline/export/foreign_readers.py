"""What other trainers read from an export: through their own packages, or after the sources of their readers.

A reader yields rows as (ids, which are trained, lengths of the documents), after its own shift: token i is trained if
the place that predicts it counts for the loss.
"""

import gzip
import hashlib
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest

ForeignRow = tuple[list[int], list[bool], list[int]]


def megatron_core(out: Path, split: str) -> Iterator[ForeignRow]:
    """megatron-core's IndexedDataset. Of the mask's twin, GPTDataset's shift takes all but the first place."""
    found = pytest.importorskip("megatron.core.datasets.indexed_dataset", reason="megatron-core is not installed")
    for path in sorted((out / split).glob("*.idx")):
        tokens = found.IndexedDataset(str(path.with_suffix("")))
        mask = found.IndexedDataset(str(out / f"{split}-mask" / path.stem))
        bounds = tokens.document_indices.tolist()
        assert mask.document_indices.tolist() == bounds
        for begin, end in pairwise(bounds):
            pieces = [tokens[index] for index in range(begin, end)]
            flags = np.concatenate([mask[index] for index in range(begin, end)])
            assert set(flags.tolist()) <= {0, 1}
            ids = np.concatenate(pieces)
            yield ids.tolist(), [False, *(flags[1:] == 1).tolist()], [len(piece) for piece in pieces]


def mds(out: Path, split: str) -> Iterator[dict[str, Any]]:
    """MDS after the sources of mosaicml-streaming 0.13.0 (`format/mds/reader.py`, `encodings.py`), hashes checked; rows
    with all columns."""
    about = json.loads((out / split / "index.json").read_text())
    assert about["version"] == 2
    for entry in about["shards"]:
        data = (out / split / entry["raw_data"]["basename"]).read_bytes()
        assert len(data) == entry["raw_data"]["bytes"]
        assert hashlib.sha256(data).hexdigest() == entry["raw_data"]["hashes"]["sha256"]
        assert int.from_bytes(data[:4], "little") == entry["samples"]
        begins = np.frombuffer(data, "<u4", entry["samples"] + 1, 4)
        config = json.loads(data[4 + begins.nbytes : begins[0]])
        assert config.items() <= entry.items()
        assert begins[-1] == len(data)
        for begin, end in pairwise(begins.tolist()):
            sizes = np.frombuffer(data, "<u4", len(config["column_names"]), begin)
            at, row = begin + sizes.nbytes, {}
            for name, encoding, size in zip(
                config["column_names"], config["column_encodings"], sizes.tolist(), strict=True
            ):
                assert data[at] >> 2 == 1, "an array has one dimension"
                width = 1 << (data[at] & 3)
                values = np.frombuffer(data[at + 1 + width : at + size], encoding.removeprefix("ndarray:"))
                assert len(values) == int.from_bytes(data[at + 1 : at + 1 + width], "little")
                at, row[name] = at + size, values.tolist()
            assert at == end
            yield row


def llama_factory(out: Path, split: str) -> Iterator[ForeignRow]:
    """The rules of `SFTDataCollatorWith4DAttentionMask` of LLaMA-Factory 0.9.5: a token sees earlier ones whose
    number in the mask is its own, and positions are stacked as they are. The model shifts labels."""
    rows = datasets.load_from_disk(str(out))["validation" if split == "holdout" else split]
    lengths = {len(column) for row in rows for column in row.values()}
    assert len(lengths) == 1
    assert lengths.pop() % 8 == 0
    for row in rows:
        numbers = np.array(row["attention_mask"])
        ids, labels = np.array(row["input_ids"]), np.array(row["labels"])
        positions = np.array(row["position_ids"])
        kept = numbers > 0
        assert (np.diff(numbers[kept]) >= 0).all()
        assert not kept[kept.sum() :].any(), "padding is at the end"
        assert (labels[~kept] == -100).all()
        assert ((labels == ids) | (labels == -100)).all()
        sizes = np.bincount(numbers[kept])[1:].tolist()
        assert positions[kept].tolist() == np.concatenate([np.arange(size) for size in sizes]).tolist()
        assert positions.max() < len(ids)
        yield ids[kept].tolist(), (labels[kept] != -100).tolist(), sizes


def ms_swift(out: Path, split: str) -> Iterator[ForeignRow]:
    """The rules of `packing_row` of ms-swift 4.6.0: rows are joined, and documents begin at position 0. The model
    shifts labels."""
    for row in datasets.load_from_disk(str(out / ("validation" if split == "holdout" else split))):
        ids, labels = row["input_ids"], row["labels"]
        assert row["lengths"] == [len(ids)]
        assert row["length"] == len(ids)
        assert all(label in (-100, token) for label, token in zip(labels, ids, strict=True))
        begins = [place for place, position in enumerate(row["position_ids"]) if position == 0]
        sizes = [end - begin for begin, end in pairwise([*begins, len(ids)])]
        yield ids, [label != -100 for label in labels], sizes


def olmo_rules(out: Path, split: str, eos_id: int, length: int) -> Iterator[ForeignRow]:
    """OLMo-core after its sources: rows of one length, cut after every end-of-sequence token; the mask is not shifted.
    What follows the last one is a document with what fills the row."""
    for path in sorted((out / split).glob("*.npy")):
        ids = np.fromfile(path, np.uint32).reshape(-1, length)
        mask = np.fromfile(out / f"{split}-mask" / path.name, np.bool_).reshape(-1, length)
        assert ids.shape == mask.shape
        for row, flags in zip(ids, mask, strict=True):
            ends = [0, *(np.flatnonzero(row == eos_id) + 1).tolist(), length]
            yield row.tolist(), flags.tolist(), [end - start for start, end in pairwise(dict.fromkeys(ends))]


def olmo_bounds(out: Path, split: str) -> Iterator[tuple[list[int], list[bool]]]:
    """The documents, after `iter_document_indices` of OLMo-core 3.0.0 with `use_array_if_local=False`."""
    for path in sorted((out / split).glob("*.npy")):
        ids, mask = np.fromfile(path, np.uint32), np.fromfile(out / f"{split}-mask" / path.name, np.bool_)
        with gzip.open(path.with_suffix(".csv.gz"), "rt") as lines:
            for line in lines:
                begin, end = map(int, line.split(","))
                assert 0 <= begin < end <= len(ids) == len(mask)
                yield ids[begin:end].tolist(), mask[begin:end].tolist()


def megatron_bridge(out: Path, split: str) -> Iterator[ForeignRow]:
    """The rules of `GPTSFTPackedParquetDataset` and `GPTSFTPackedDataset.collate_fn`, answer_only_loss, of
    Megatron-Bridge at commit 067f987; the package needs Transformer Engine, which does not install without CUDA."""
    for path in sorted((out / split).glob("*.parquet")):
        table = pq.read_table(path)
        assert str(table.schema.field("input_ids").type.value_type) == "int32"
        for row in table.to_pylist():
            ids, starts, mask = row["input_ids"], row["seq_start_id"], row["loss_mask"]
            assert starts[0] == 0
            assert len(mask) == len(ids)
            bounds = [*starts, len(ids)]
            trained = []
            for begin, end in pairwise(bounds):
                inputs, labels, counts = ids[begin : end - 1], ids[begin + 1 : end], mask[begin : end - 1]
                assert len(inputs) == len(labels) == len(counts) == end - begin - 1
                trained += [False, *(count == 1 for count in counts)]
            yield ids, trained, np.diff(bounds).tolist()


def datasets_parquet(out: Path, split: str, cache: Path) -> Iterator[dict[str, Any]]:
    """`datasets.load_dataset` on the folder, as it does on a folder of the Hub; rows with all columns."""
    import datasets

    yield from datasets.load_dataset(str(out), split=split, cache_dir=str(cache))
