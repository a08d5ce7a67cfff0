"""Whether a batch is well formed: the loader's are, and each way to spoil one is named."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from packtrain.schemas.errors import BatchError
from packtrain.training import PackedLoader
from packtrain.training.attention import check_batch
from packtrain.training.batch import FixedShape, flatten
from packtrain.training.shard import Row

ROW = Row(
    input_ids=np.array([1, 2, 3, 4, 5], dtype=np.int32),
    labels=np.array([-100, 2, 3, -100, 5], dtype=np.int32),
    position_ids=np.array([0, 1, 2, 0, 1], dtype=np.int32),
    seq_lengths=np.array([3, 2], dtype=np.int32),
)


def changed(**keys: Any) -> dict[str, Any]:
    batch = {**flatten([ROW]), **keys}
    return {name: value for name, value in batch.items() if value is not None}


def bounds(*values: int) -> dict[str, Any]:
    cu = torch.tensor(values, dtype=torch.int32)
    return {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu}


@pytest.mark.parametrize("make", [flatten, partial(flatten, shape=FixedShape(length=9, docs=4))])
def test_the_loaders_own(make: Any) -> None:
    check_batch(make([ROW]))
    check_batch(make([ROW, ROW], seq_idx=True))


def test_all_batches_of_a_loader(folder: Path) -> None:
    batches = [*PackedLoader(folder, rows_per_step=4), *PackedLoader(folder, rows_per_step=4, static_shapes=True)]
    assert len(batches) > 4
    for batch in batches:
        check_batch(batch)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attention_mask": torch.ones(1, 5)}, "has an attention_mask"),
        ({"use_cache": None}, "use_cache is None"),
        ({"use_cache": True}, "use_cache is True"),
        ({"input_ids": None}, "no input_ids"),
        ({"input_ids": torch.ones(2, 5)}, "2 rows; packed batches are flattened"),
        ({"cu_seq_lens_q": None}, "no cu_seq_lens_q"),
        ({"cu_seq_lens_k": None}, "no cu_seq_lens_k"),
        ({"cu_seq_lens_q": torch.tensor([0, 3, 5])}, r"cu_seq_lens_q is torch.int64 \[3\]; it should be int32"),
        (bounds(1, 3, 5), "goes from 1 to 5, but the tokens from 0 to 5"),
        (bounds(0, 3), "goes from 0 to 3"),
        (bounds(0, 4, 3, 5), "falls from 4 to 3 at entry 2"),
        ({"max_length_q": torch.tensor(3)}, "max_length_q is tensor"),
        ({"max_length_k": 2}, "max_length_k is 2, but a document has 3 tokens"),
        ({"position_ids": None}, "no position_ids"),
        ({"position_ids": torch.zeros(1, 4)}, "position_ids has 4 entries for 5 tokens"),
        ({**bounds(0, 5), "max_length_q": 5, "max_length_k": 5}, "position_ids jump at token 3"),
    ],
)
def test_what_is_wrong(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(BatchError, match=said):
        check_batch(changed(**keys))


def test_a_piece_of_a_document_may_begin_anywhere() -> None:
    check_batch(changed(position_ids=torch.tensor([[5, 6, 7, 0, 1]])))
