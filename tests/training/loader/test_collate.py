"""What a batch holds, by eye: flattened, of a fixed shape, padded."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from packtrain.schemas.errors import ConfigError  # noqa: E402
from packtrain.training import PackedLoader  # noqa: E402
from packtrain.training.loader.collate import FixedShape, flatten, padding_share, unpack  # noqa: E402
from packtrain.training.shards.arrow_shard import RowSpan  # noqa: E402
from packtrain.training.testing import pieces_of  # noqa: E402


def strip(*documents: list[int]) -> RowSpan:
    """Documents whose every label but the first is its input id."""
    return RowSpan(
        input_ids=np.array([token for one in documents for token in one], dtype=np.int32),
        labels=np.array([token if i else -100 for one in documents for i, token in enumerate(one)], dtype=np.int32),
        position_ids=np.array([i for one in documents for i, _ in enumerate(one)], dtype=np.int32),
        seq_lengths=np.array([len(one) for one in documents], dtype=np.int32),
    )


ROWS = [strip([1, 2, 3], [4, 5]), strip([6, 7, 8, 9])]


def test_flattened() -> None:
    batch = flatten(ROWS, seq_idx=True)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9]]
    assert batch["labels"].tolist() == [[-100, 2, 3, -100, 5, -100, 7, 8, 9]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3]]
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 3, 5, 9]
    assert batch["seq_idx"].tolist() == [[0, 0, 0, 1, 1, 2, 2, 2, 2]]
    assert (batch["max_length_q"], batch["max_length_k"], batch["use_cache"]) == (4, 4, False)


def test_of_a_fixed_shape() -> None:
    batch = flatten(ROWS, shape=FixedShape(length=6, docs=3, pad_id=99))
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 99, 6, 7, 8, 9, 99, 99]]
    assert batch["labels"].tolist() == [[-100, 2, 3, -100, 5, -100, -100, 7, 8, 9, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 0, 1]]
    # The padding is a document of its own; documents of no tokens fill the room that is left.
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5, 6, 6, 10, 12, 12, 12]
    assert (batch["max_length_q"], batch["use_cache"]) == (6, False)


DOCUMENTS = st.lists(st.lists(st.integers(0, 500), min_size=1, max_size=9), min_size=1, max_size=6)


@given(st.lists(DOCUMENTS, min_size=1, max_size=5))
def test_a_fixed_shape_depends_on_nothing_and_holds_everything(rows: list[list[list[int]]]) -> None:
    strips = [strip(*row) for row in rows]
    flat, fixed = flatten(strips), flatten(strips, shape=FixedShape(length=60, docs=6))
    size = len(rows)
    assert {name: tuple(value.shape) for name, value in fixed.items() if isinstance(value, torch.Tensor)} == {
        "input_ids": (1, 60 * size),
        "labels": (1, 60 * size),
        "position_ids": (1, 60 * size),
        "cu_seq_lens_q": (7 * size + 1,),
        "cu_seq_lens_k": (7 * size + 1,),
    }
    bounds = fixed["cu_seq_lens_q"]
    assert (bounds[1:] >= bounds[:-1]).all()
    assert int(bounds[-1]) == 60 * size
    assert int((bounds[1:] - bounds[:-1]).max()) <= fixed["max_length_q"] == 60
    more = pieces_of(fixed) - pieces_of(flat)
    assert not pieces_of(flat) - pieces_of(fixed)
    assert all(set(np.frombuffer(labels, np.int64)) == {-100} for _, labels in more)
    assert (fixed["labels"] != -100).sum() == (flat["labels"] != -100).sum()


def test_padded() -> None:
    batch = unpack(ROWS, pad_id=99)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 99], [4, 5, 99, 99], [6, 7, 8, 9]]
    assert batch["labels"].tolist() == [[-100, 2, 3, -100], [-100, 5, -100, -100], [-100, 7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert padding_share(ROWS) == pytest.approx(3 / 12)


def test_every_batch_of_a_loader_has_the_same_shape(folder: Path) -> None:
    loader = PackedLoader(folder, rows_per_step=4, tail="pad", static_shapes=True, seq_idx=True)
    shapes = {
        tuple((name, tuple(value.shape) if isinstance(value, torch.Tensor) else value) for name, value in batch.items())
        for batch in loader
    }
    assert len(shapes) == 1
    (shape,) = shapes
    assert dict(shape)["input_ids"] == (1, 4 * loader.corpus.max_length)
    assert dict(shape)["max_length_q"] == loader.corpus.max_length
    most = max(len(loader.corpus.row(row).seq_lengths) for row in range(len(loader.corpus)))
    assert dict(shape)["cu_seq_lens_q"] == (4 * (most + 1) + 1,)


def test_shapes_that_cannot_be(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"static_shapes=1: a row of this dataset has \d+ documents; take"):
        PackedLoader(folder, rows_per_step=1, static_shapes=1)
    with pytest.raises(ConfigError, match="exclude each other"):
        PackedLoader(folder, rows_per_step=1, static_shapes=True, unpacked=True)


def test_a_padded_layout_says_what_it_costs(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = PackedLoader(folder, rows_per_step=4, unpacked=True, order="sequential", balance=None)
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    batches = [batch["attention_mask"] for batch in loader]
    share = 100 * float(np.mean([1 - mask.float().mean() for mask in batches]))
    said = float(message.split("longest of their batch; ")[1].split(" %")[0])
    assert said > 10
    assert abs(said - share) < 5
