"""The items of a dataset for other trainers: every row once, with its labels, documents and padding."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packtrain.schemas.errors import ConfigError
from packtrain.training import PackedDataset
from packtrain.training.packed_rows import PackedRows

Row = tuple[list[int], list[int], list[int]]
"""Tokens, labels as packed, lengths of documents."""


def padded(values: torch.Tensor, length: int, size: int) -> list[int]:
    assert values.dtype == torch.int64
    assert len(values) == length
    return [int(value) for value in values[:size]]


def unshifted(labels: list[int]) -> list[int]:
    return [-100, *labels[:-1]]


def read(trainer: str, item: Any, length: int) -> Row:
    """An item as the trainer's code takes it."""
    match trainer:
        case "torchtune":
            sizes = item["seq_lens"].tolist()
            assert sum(sizes) == length
            bounds = np.cumsum([0, *sizes])
            assert item["input_pos"].tolist() == [k for size in sizes for k in range(size)]
            documents = [
                size for size, begin in zip(sizes, bounds, strict=False) if begin < _size(item["labels"], bounds)
            ]
            size = sum(documents)
            return padded(item["tokens"], length, size), padded(item["labels"], length, size), documents
        case "verl":
            labels = torch.where(item["loss_mask"] == 1, item["input_ids"], -100)
            begins = [*(item["position_ids"] == 0).nonzero().flatten().tolist(), len(labels)]
            return item["input_ids"].tolist(), labels.tolist(), np.diff(begins).tolist()
        case "torchtitan":
            inputs, labels = item
            begins = [*(inputs["positions"] == 0).nonzero().flatten().tolist(), length]
            size = _size(torch.tensor(unshifted(labels.tolist())), np.array(begins))
            documents = [end - begin for begin, end in pairwise(begins) if begin < size]
            return padded(inputs["input"], length, size), unshifted(labels.tolist())[:size], documents
        case _:
            size = int((item["attention_mask"] > 0).sum())
            documents = item["attention_mask"].bincount()[1:].tolist()
            assert sum(item["seq_lens_padded"]) == length
            assert item["seq_lens_padded"][:-1] == documents[:-1]
            assert item["seq_lens"] == documents
            labels = unshifted(padded(item["labels"], length, length))
            return padded(item["input_ids"], length, size), labels[:size], documents


def _size(labels: torch.Tensor, bounds: Any) -> int:
    """Where padding begins: the first bound behind the last label. Every document of these rows has labels."""
    last = int((labels != -100).nonzero().max())
    return int(bounds[np.searchsorted(bounds, last, "right")])


@pytest.mark.parametrize("longer", [0, 9])
@pytest.mark.parametrize("trainer", ["torchtune", "verl", "torchtitan", "nemo-automodel"])
def test_every_row_comes_with_its_labels(trainer: str, longer: int, two_sources: Path) -> None:
    rows = PackedRows(two_sources)
    length = rows.row_length + longer
    dataset = PackedDataset(two_sources, trainer, length=length)
    assert len(dataset) == len(rows) > 10
    for index in range(len(rows)):
        row = rows.row(index)
        expected = (row.input_ids.tolist(), row.labels.tolist(), row.seq_lengths.tolist())
        assert read(trainer, dataset[index], length) == expected
    with pytest.raises(IndexError):
        dataset[len(rows)]


def test_a_loader_stacks_them(two_sources: Path) -> None:
    for trainer in ("torchtune", "torchtitan"):
        items = PackedDataset(two_sources, trainer)
        collate = None if trainer == "torchtitan" else (lambda rows: torch.stack([row["tokens"] for row in rows]))
        batch = next(iter(torch.utils.data.DataLoader(items, batch_size=3, collate_fn=collate)))
        tokens = batch[0]["input"] if trainer == "torchtitan" else batch
        assert tokens.shape == (3, PackedRows(two_sources).row_length)


def test_labels_shift_on_request(two_sources: Path) -> None:
    plain, shifted = (
        PackedDataset(two_sources, "torchtune", shift_labels=shift)[0]["labels"] for shift in (False, True)
    )
    assert torch.equal(shifted[:-1], plain[1:])
    assert shifted[-1] == -100


def test_what_is_refused(two_sources: Path, weighted: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer='torchtun': choose one of .*; did you mean torchtune\?"):
        PackedDataset(two_sources, "torchtun")
    with pytest.raises(ConfigError, match="length=64: rows have up to 128 tokens"):
        PackedDataset(two_sources, "torchtune", length=64)
    with pytest.raises(ConfigError, match=r"has loss_weights, which verl does not know"):
        PackedDataset(weighted, "verl")


@pytest.mark.parametrize("trainer", ["torchtune", "verl", "torchtitan", "nemo-automodel"])
def test_what_a_trainer_would_train_wrongly_is_refused_by_name(trainer: str, pairs: Path, shared: Path) -> None:
    with pytest.raises(ConfigError, match=f"holds preference pairs, which {trainer} does not know: .* rejected"):
        PackedDataset(pairs, trainer)
    with pytest.raises(ConfigError, match=f"documents share tokens .pack.share., which {trainer} does not know"):
        PackedDataset(shared, trainer)
