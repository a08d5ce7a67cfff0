"""Batches that are made several at a time are those made one by one, and a loader stops and goes on within them."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from packtrain.schemas.errors import IntegrityError  # noqa: E402
from packtrain.schemas.parallel import ParallelLayout  # noqa: E402
from packtrain.training import PackedLoader  # noqa: E402
from packtrain.training.loader.collate import Collator, FixedShape  # noqa: E402
from packtrain.training.loader.context_parallel import ContextPart  # noqa: E402
from packtrain.training.shards.arrow_shard import RowSpan  # noqa: E402

from tests.training.conftest import MakePacked  # noqa: E402


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Equal to the bit, with the same types and shapes."""
    return list(one) == list(other) and all(
        (value.dtype, value.shape) == (other[name].dtype, other[name].shape) and torch.equal(value, other[name])
        if isinstance(value, torch.Tensor)
        else value == other[name]
        for name, value in one.items()
    )


def span(rows: list[list[int]], first: int) -> RowSpan:
    """Rows of documents of these lengths, with tokens from `first` on, as a part of a chunk that begins earlier."""
    lengths = np.array([length for row in rows for length in row], dtype=np.int32)
    tokens = np.cumsum([7, *map(sum, rows)]).tolist()
    docs = np.cumsum([3, *map(len, rows)]).tolist()
    ids = np.arange(first, first + tokens[-1] - 7, dtype=np.int32)
    labels, own, weights = -ids, lengths - lengths % 2, (ids % 3).astype(np.float32)
    begins = np.cumsum(lengths) - lengths
    labels[begins], weights[begins] = -100, 0  # as in every dataset: no document is trained to follow another
    return RowSpan(ids, labels, ids % 5, lengths, seq_lengths_unpadded=own, loss_weights=weights, bounds=(tokens, docs))


def test_three_batches_by_hand() -> None:
    one, two, three = Collator(weights=False).batches([span([[2, 1], [3]], 10), span([[1, 1]], 50)], 1)
    assert [batch["input_ids"].tolist() for batch in (one, two, three)] == [[[10, 11, 12]], [[13, 14, 15]], [[50, 51]]]
    assert one["labels"].tolist() == [[-100, -11, -100]]
    assert three["position_ids"].tolist() == [[0, 1]]
    assert [batch["cu_seq_lens_q"].tolist() for batch in (one, two, three)] == [[0, 2, 3], [0, 3], [0, 1, 2]]
    assert [batch["max_length_k"] for batch in (one, two, three)] == [2, 3, 1]


ROWS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4)


ALL = Collator(seq_idx=True, weights=True, unpadded=True)
COLLATORS = [
    Collator(weights=False, unpadded=False),
    ALL,
    *(replace(ALL, context=ContextPart(1, 3, layout)) for layout in get_args(ParallelLayout)),
]


@given(ROWS, st.integers(1, 5), st.lists(st.integers(0, 11), max_size=4), st.sampled_from(COLLATORS))
def test_however_rows_are_joined(rows: list[list[int]], batches: int, cuts: list[int], collator: Collator) -> None:
    factor = 1 if collator.context is None else 6
    share, rows = len(rows), [[factor * length for length in row] for row in rows] * batches
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    firsts = np.cumsum([100, *map(sum, rows)]).tolist()
    found = collator.batches([span(rows[begin:end], firsts[begin]) for begin, end in pairwise(edges)], share)
    singles = [replace(span([row], first), bounds=None) for row, first in zip(rows, firsts, strict=False)]
    for number, batch in enumerate(found):
        mine = singles[number * share : (number + 1) * share]
        assert same(batch, collator.batches(mine)[0])
        whole = {
            name: np.concatenate([getattr(one, name) for one in mine])
            for name in ("input_ids", "labels", "position_ids", "seq_lengths")
        }
        bounds = np.cumsum([0, *whole["seq_lengths"]])
        places = np.arange(bounds[-1]) if collator.context is None else collator.context.tokens(bounds)
        assert batch["cu_seq_lens_q"].tolist() == bounds.tolist()
        assert all(batch[name][0].tolist() == whole[name][places].tolist() for name in list(whole)[:3])
        if collator.seq_idx:
            numbers = np.repeat(np.arange(len(bounds) - 1), whole["seq_lengths"])
            assert batch["seq_idx"][0].tolist() == numbers[places].tolist()


@pytest.mark.parametrize("share", [0, 1])
def test_a_change_in_place_counts_for_its_own_tensor_alone(share: int) -> None:
    batches = Collator(weights=False).batches([span([[2, 1], [3]], 10)], share)
    tensors = [value for batch in batches for value in batch.values() if isinstance(value, torch.Tensor)]
    values = [tensor.tolist() for tensor in tensors]
    versions = [tensor._version for tensor in tensors]
    batches[0]["labels"].add_(1)
    changed = [tensor is batches[0]["labels"] for tensor in tensors]
    assert [tensor._version > version for tensor, version in zip(tensors, versions, strict=True)] == changed
    assert [tensor.tolist() != value for tensor, value in zip(tensors, values, strict=True)] == changed


@given(ROWS)
def test_rows_of_a_fixed_shape_are_alike_alone_and_together(rows: list[list[int]]) -> None:
    collator = replace(ALL, shape=FixedShape(40, 5))
    spans = [replace(span([row], 100 * number), bounds=None) for number, row in enumerate(rows)]
    together = collator.batches(spans, 1)
    assert all(same(one, collator.batches([own])[0]) for one, own in zip(together, spans, strict=True))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("order", ["sequential", "full"])
@pytest.mark.parametrize("shape", [(1, 0, 1, 1), (2, 1, 2, 1), (4, 0, 1, 2), (6, 1, 2, 3)])
def test_every_batch_and_every_state(folder: Path, workers: int, order: str, shape: tuple[int, int, int, int]) -> None:
    rows, rank, world_size, parts = shape

    def make(num_workers: int) -> PackedLoader:
        options: dict[str, Any] = {"order": order, "epochs": 3, "tail": "pad", "accumulate": parts}
        return PackedLoader(
            folder, rows_per_step=rows, rank=rank, world_size=world_size, num_workers=num_workers, **options
        )

    loader = make(workers)
    alone = [
        batch
        for step in range(len(loader) // parts)
        for _, batch in loader._make([loader.steps.at(step * rows)], parts)
    ]
    found, states = [], []
    for batch in loader:  # all are kept, so none may be written over
        found.append(batch)
        states.append(loader.state_dict())
    assert len(found) == len(alone) > 8
    assert all(same(one, other) for one, other in zip(found, alone, strict=True))
    # In the middle of what was made at once, too: the state is that of the last batch of a step that was returned.
    for number in range(0, len(alone) - parts, 3):
        if (number + 1) % parts == 0:
            resumed = make(workers)
            resumed.load_state_dict(states[number])
            rest = list(islice(closing(resumed), 2 * parts))
            expected = alone[number + 1 : number + 1 + 2 * parts]
            assert all(same(one, other) for one, other in zip(rest, expected, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("layout", ["thd", "ring"])
@pytest.mark.parametrize("options", [{}, {"static_shapes": True}], ids=["", "static"])
def test_parts_for_a_device_and_fixed_shapes(
    make_packed: MakePacked, workers: int, layout: str, options: dict[str, Any]
) -> None:
    folder = make_packed("context", 120, parallel={"cp": 2, "layout": "thd"})
    place: dict[str, Any] = {"rank": 0, "world_size": 1, "cp_rank": 1, "cp_size": 2, "cp_layout": layout}
    loader = PackedLoader(folder, rows_per_step=1, order="full", tail="pad", num_workers=workers, **place, **options)
    alone = [loader.batch(step) for step in range(len(loader))]
    found = list(loader)
    assert len(found) == len(alone) > 8
    assert all(same(one, other) for one, other in zip(found, alone, strict=True))


def closing(loader: PackedLoader) -> Iterator[dict[str, Any]]:
    yield from loader


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_comes_at_its_own_batch(folder: Path, tmp_path: Path, workers: int) -> None:
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    shards = json.loads((damaged / "manifest.json").read_bytes())["splits"]["train"]["shards"]
    (damaged / shards[1]["name"]).write_bytes(b"not an Arrow file")
    loader = PackedLoader(damaged, rows_per_step=1, order="sequential", balance=None, num_workers=workers)
    states: list[int] = []
    with pytest.raises(IntegrityError, match="has 17 bytes"):
        states.extend(loader.state_dict()["rows"] for _ in loader)
    assert states == list(range(1, shards[0]["rows"] + 1))
