"""Batches of preference pairs: which document is which side, and what the reference says of it."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from packtrain.schemas.dataset.row_batch import Row
from packtrain.schemas.errors import ConfigError
from packtrain.training.batch import FixedShape, collate, flatten, unpack, untrained
from packtrain.training.context_parts import cp_part

from tests.support.pair_rows import MASKED, Pair, pair_row, random_pairs

Batch = dict[str, Any]
GROUPS = [random_pairs(count, seed) for seed, count in enumerate((2, 1, 3))]
ROWS = [pair_row(pairs) for pairs in GROUPS]
EVERY = [pair for pairs in GROUPS for pair in pairs]
REFERENCE = [-np.arange(1.0, 2 * len(pairs) + 1) - 100 * number for number, pairs in enumerate(GROUPS)]
SHAPE = FixedShape(length=256, docs=8, longest=40, pad_id=3)


def pairs_of(batch: Batch) -> list[Pair]:
    """The pairs of a packed batch, by its sides, labels and bounds alone."""
    ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
    bounds = list(pairwise(batch["cu_seq_lens_q"].tolist()))
    sides = batch["sides"].tolist()
    assert len(sides) == len(bounds)
    completions: dict[int, list[list[int]]] = {0: [], 1: []}
    prompts: dict[int, list[list[int]]] = {0: [], 1: []}
    for side, (begin, end) in zip(sides, bounds, strict=True):
        if side == -1:
            assert set(labels[begin:end]) <= {MASKED}
            continue
        first = next(place for place in range(begin, end) if labels[place] != MASKED)
        assert labels[first:end] == ids[first:end]
        prompts[side].append(ids[begin:first])
        completions[side].append(ids[first:end])
    assert prompts[0] == prompts[1]
    return [Pair(*parts) for parts in zip(prompts[0], completions[0], completions[1], strict=True)]


@pytest.mark.parametrize("shape", [None, SHAPE])
def test_every_pair_comes_back(shape: FixedShape | None) -> None:
    batch = flatten(ROWS, shape=shape, reference=REFERENCE)
    assert pairs_of(batch) == EVERY
    assert (batch["sides"].dtype, batch["reference"].dtype) == (torch.int8, torch.float64)
    assert batch["sides"].shape == batch["reference"].shape == batch["cu_seq_lens_q"][1:].shape
    is_side = batch["sides"] >= 0
    assert batch["reference"][is_side].tolist() == np.concatenate(REFERENCE).tolist()
    assert not batch["reference"][~is_side].any()
    assert bool((~is_side).any()) == (shape is not None)


def test_rows_that_fill_up_a_step_have_no_pairs() -> None:
    rows = [ROWS[0], untrained(ROWS[1]), ROWS[2]]
    for make in (flatten, lambda rows, reference: unpack(rows, 0, reference=reference)):
        batch = make(rows, reference=REFERENCE)
        assert batch["sides"].tolist() == [0, 1, 0, 1, -1, -1, 0, 1, 0, 1, 0, 1]
        assert batch["reference"].tolist() == [*REFERENCE[0], 0, 0, *REFERENCE[2]]
    assert pairs_of(flatten(rows)) == GROUPS[0] + GROUPS[2]


@pytest.mark.parametrize("shares", [False, True])
def test_unpacked_sides_are_whole(shares: bool) -> None:
    rows = [pair_row(pairs, shares=shares) for pairs in GROUPS]
    batch = unpack(rows, 0, reference=REFERENCE)
    assert batch["sides"].tolist() == [0, 1] * len(EVERY)
    assert batch["reference"].tolist() == np.concatenate(REFERENCE).tolist()
    completions = [(pair.prompt, completion) for pair in EVERY for completion in (pair.chosen, pair.rejected)]
    for place, (prompt, completion) in enumerate(completions):
        tokens = batch["attention_mask"][place].bool()
        assert batch["input_ids"][place][tokens].tolist() == prompt + completion
        assert batch["labels"][place][tokens].tolist() == [MASKED] * len(prompt) + completion


def test_sides_that_share_their_prompt_are_pieces_of_their_row() -> None:
    rows = [pair_row(pairs, shares=True) for pairs in GROUPS]
    assert sum(len(row.input_ids) for row in rows) < sum(len(row.input_ids) for row in ROWS)
    batch = flatten(rows, reference=REFERENCE)
    assert batch["sides"].tolist() == [0, 1] * len(EVERY)
    assert len(batch["cu_pieces"]) == len(batch["sides"]) + 1
    assert batch["reference"].tolist() == np.concatenate(REFERENCE).tolist()


def test_rows_without_pairs_have_no_sides() -> None:
    row = replace(pair_row(EVERY), sides=None)
    for batch in (flatten([row]), flatten([row], shape=FixedShape(512, 16, 64, 3)), unpack([row], 0)):
        assert not {"sides", "reference"} & batch.keys()


def example(row: Row) -> dict[str, Any]:
    """A row as `datasets` gives it."""
    names = ("input_ids", "labels", "position_ids", "seq_lengths", "doc_ids", "sides")
    return {name: getattr(row, name).tolist() for name in names}


def test_collate_passes_sides_on() -> None:
    batch = collate([example(row) for row in ROWS])
    expected = flatten(ROWS)
    assert batch.keys() == expected.keys()
    assert torch.equal(batch["sides"], expected["sides"])
    assert batch["sides"].dtype == torch.int8


def test_pairs_are_not_divided_among_devices() -> None:
    with pytest.raises(ConfigError, match="leave context parallelism out"):
        cp_part(flatten(ROWS), 0, 2, "thd")
