"""The kinds of batches to compare: the same documents padded, concatenated, or packed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from packtrain.schemas.rows import IGNORE_INDEX
from packtrain.training.batch import flatten, unpack
from packtrain.training.loader import PackedLoader
from packtrain.training.rows import PackedRows
from packtrain.training.shard import Row

KINDS = ("padded", "padded by length", "padding-free", "packed")
MEGA = 50
"""Batches that transformers' group_by_length sorts at once."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one batch holds."""

    lengths: NDArray[np.int64]
    """(D,) tokens of each document, padding left out."""
    computed: int
    """Tokens that the model computes, padding included."""
    trained: int


def endless(kind: str, folder: Path, rows: int, *, fixed: bool, pin: bool) -> tuple[Iterator[dict[str, Any]], int]:
    """Batches of a kind, epoch after epoch, and how many documents each has on average.

    A padded or padding-free batch has as many documents as a packed one has on average, so that a step learns from as
    many, and its tokens are as many on average.

    Args:
        rows: packed rows of a packed batch.
        fixed: of packed batches, one shape for all.
        pin: in page-locked memory.
    """
    packed = PackedRows(folder)
    strips = [strip for number in range(len(packed)) for strip in _apart(packed.row(number))]
    mean = max(1, round(len(strips) * rows / len(packed)))
    if kind == "packed":
        return _packed(folder, rows, fixed=fixed, pin=pin), mean
    return _documents(strips, mean, kind, pin=pin), mean


def counts(batch: dict[str, Any]) -> Counts:
    """Of a batch on the CPU. Padding documents of fixed shapes, in which nothing is trained, do not count."""
    labels = batch["labels"]
    trained = labels != IGNORE_INDEX
    if "attention_mask" in batch:
        lengths = batch["attention_mask"].sum(1).numpy()
    else:
        bounds = batch["cu_seq_lens_q"].numpy().astype(np.int64)
        lengths = np.diff(bounds)
        sums = np.concatenate([[0], np.cumsum(trained[0].numpy())])
        lengths = lengths[sums[bounds[1:]] > sums[bounds[:-1]]]
    return Counts(lengths.astype(np.int64), labels.numel(), int(trained.sum()))


def on_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The batch's tensors on a device, without waiting for it."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


def _packed(folder: Path, rows: int, *, fixed: bool, pin: bool) -> Iterator[dict[str, Any]]:
    seed = 0
    while True:
        yield from PackedLoader(folder, rows_per_step=rows, static_shapes=fixed, pin_memory=pin, seed=seed)
        seed += 1


def _documents(strips: list[Row], size: int, kind: str, *, pin: bool) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(0)
    lengths = np.array([len(strip.input_ids) for strip in strips])
    while True:
        order = random.permutation(len(strips))
        if kind == "padded by length":
            chunks = [order[begin : begin + MEGA * size] for begin in range(0, len(order), MEGA * size)]
            order = np.concatenate([chunk[np.argsort(-lengths[chunk], kind="stable")] for chunk in chunks])
        begins = np.arange(0, len(order) - size + 1, size)
        if kind == "padded by length":
            begins = random.permutation(begins)
        for begin in begins.tolist():
            chosen = [strips[index] for index in order[begin : begin + size].tolist()]
            batch = flatten(chosen) if kind == "padding-free" else unpack(chosen)
            yield _pinned(batch) if pin else batch


def _pinned(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: one.pin_memory() if isinstance(one, torch.Tensor) else one for name, one in batch.items()}


def _apart(row: Row) -> Iterator[Row]:
    begin = 0
    for length in row.seq_lengths.tolist():
        piece = slice(begin, begin + length)
        yield Row(
            row.input_ids[piece],
            row.labels[piece],
            row.position_ids[piece],
            np.array([length], np.int32),
        )
        begin += length
