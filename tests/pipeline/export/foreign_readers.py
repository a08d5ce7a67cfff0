"""What other trainers read from an export: through their own packages where those are installed, else after their
sources.

A reader yields rows as (ids, which are trained, lengths of the documents), after its own shift: token i is trained if
the place that predicts it counts for the loss.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support.mosaic import need_streaming

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


def mosaicml(out: Path, split: str, cache: Path) -> Iterator[dict[str, Any]]:
    """mosaicml-streaming's StreamingDataset, with its hashes checked; rows with all columns."""
    need_streaming()
    from streaming.base import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    rows = StreamingDataset(
        remote=str(out), local=str(cache), split=split, shuffle=False, validate_hash="sha256", batch_size=1
    )
    for index in range(rows.num_samples):
        yield {name: values.tolist() for name, values in rows[index].items()}


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


def olmo_core(out: Path, split: str, eos_id: int, pad_id: int, length: int) -> Iterator[ForeignRow]:
    """OLMo-core's NumpyFSLDataset and the labels of its train module, without the padding of the rows."""
    found = pytest.importorskip("olmo_core.data.numpy_dataset", reason="ai2-olmo-core is not installed")
    import torch
    from olmo_core.data.utils import get_labels

    kind = np.uint16 if json.loads((out / "export.json").read_text())["plan"]["dtype"] == "uint16" else np.uint32
    paths = sorted((out / split).glob("*.npy"))
    rows = found.NumpyFSLDataset(
        *paths,
        sequence_length=length,
        pad_token_id=pad_id,
        eos_token_id=eos_id,
        vocab_size=60_000,
        dtype=kind,
        label_mask_paths=sorted((out / f"{split}-mask").glob("*.npy")),
        generate_doc_lengths=True,
    )
    for index in range(len(rows)):
        item = rows[index]
        labels = get_labels({key: item[key][None] for key in ("input_ids", "label_mask")})[0]
        trained = torch.nn.functional.pad(labels != -100, (1, 0))[:-1]
        yield item["input_ids"].tolist(), trained.tolist(), item["doc_lens"].tolist()


def datasets_parquet(out: Path, split: str, cache: Path) -> Iterator[dict[str, Any]]:
    """`datasets.load_dataset` on the folder, as it does on a folder of the Hub; rows with all columns."""
    import datasets

    yield from datasets.load_dataset(str(out), split=split, cache_dir=str(cache))
