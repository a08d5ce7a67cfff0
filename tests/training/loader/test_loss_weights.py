"""Batches hand out the weights that the rows have, in every shape of batch, and say so."""

import logging
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from packtrain.training import PackedDataset, PackedLoader, Source, collate  # noqa: E402
from packtrain.training.loader.collate import flatten  # noqa: E402
from packtrain.training.loader.context_parallel import ContextPart  # noqa: E402
from packtrain.training.shards.arrow_shard import RowSpan  # noqa: E402

X = -100
ROW = RowSpan(
    input_ids=np.array([5, 6, 7, 8, 9, 1, 2, 3], np.int32),
    labels=np.array([X, 6, 7, X, X, X, 2, 3], np.int32),
    position_ids=np.array([0, 1, 2, 3, 0, 1, 2, 3], np.int32),
    seq_lengths=np.array([4, 4], np.int32),
    loss_weights=np.array([0, 0.5, 0.5, 0, 0, 0, 3, 2], np.float32),
)
PLAIN = RowSpan(ROW.input_ids, ROW.labels, ROW.position_ids, ROW.seq_lengths)


def weights(batch: dict[str, Any]) -> list[float]:
    return batch["loss_weights"][0].tolist()  # type: ignore[no-any-return]


def test_rows_without_weights_beside_others_weigh_one() -> None:
    assert "loss_weights" not in flatten([PLAIN])
    assert weights(flatten([ROW, PLAIN])) == [0, 0.5, 0.5, 0, 0, 0, 3, 2, 0, 1, 1, 0, 0, 0, 1, 1]
    assert "loss_weights" not in flatten([ROW], weights=False)


@pytest.mark.parametrize("layout", ["thd", "ring"])
def test_weights_are_divided_and_shifted_as_labels(layout: Any) -> None:
    batch = flatten([ROW, PLAIN])
    parts = [ContextPart(rank, 2, layout) for rank in range(2)]
    shifted: dict[int, tuple[int, float]] = {}
    for part in parts:
        mine = flatten([ROW, PLAIN], context=part)
        places = part.tokens(batch["cu_seq_lens_q"].numpy()).tolist()
        found = zip(mine["shift_labels"][0].tolist(), mine["shift_loss_weights"][0].tolist(), strict=True)
        shifted |= dict(zip(places, found, strict=True))
        assert mine["loss_weights"][0].tolist() == [weights(batch)[place] for place in places]
    whole = [*zip(batch["labels"][0].tolist()[1:], weights(batch)[1:], strict=True), (X, 0.0)]
    assert [shifted[place] for place in range(16)] == whole


def test_every_kind_of_batch_has_them(weighted: Path) -> None:
    options: list[dict[str, Any]] = [
        {}, {"static_shapes": True}, {"unpacked": True}, {"num_workers": 0}, {"pin_memory": False, "seq_idx": True}
    ]  # fmt: skip
    sums = []
    for keys in options:
        loader = PackedLoader(weighted, rows_per_step=4, tail="pad", loss_weights=True, **keys)
        total = 0.0
        for batch in loader:
            assert torch.equal(batch["loss_weights"] > 0, batch["labels"] != X), keys
            assert batch["loss_weights"].dtype == torch.float32
            total += float(batch["loss_weights"].double().sum())
        sums.append(total)
    assert max(sums) == pytest.approx(min(sums), rel=1e-6)
    rows = PackedDataset(weighted, loss_weights=True)
    assert float(collate([rows[0], rows[1]])["loss_weights"].sum()) > 0
    assert sum(float(rows[i]["loss_weights"].double().sum()) for i in range(len(rows))) == pytest.approx(sums[0])


def test_in_a_mixture_the_labels_of_other_data_weigh_one(weighted: Path, folder: Path) -> None:
    loader = PackedLoader([Source(weighted), Source(folder)], rows_per_step=1, loss_weights=True)
    kinds = set()
    for batch in loader:
        each = set(chain.from_iterable(batch["loss_weights"].tolist())) - {0.0}
        kinds.add(each == {1.0})
    assert kinds == {True, False}


def test_documents_weigh_what_they_should(weighted: Path) -> None:
    """Of the normalised dataset, each document of the texts adds up to its row's weight."""
    found = set()
    for batch in PackedLoader(weighted, rows_per_step=1, loss_weights=True):
        for begin, end in pairwise(batch["cu_seq_lens_q"].tolist()):
            found.add(round(float(batch["loss_weights"][0, begin:end].double().sum()), 3))
    assert {0.5, 2.0} <= found


def test_who_says_nothing_is_warned(weighted: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for data, said in ((folder, None), (weighted, True), (weighted, False)):
        loader = PackedLoader(data, rows_per_step=1, loss_weights=said)
        assert ("loss_weights" in next(iter(loader))) == (said is True)
    assert not caplog.records
    PackedLoader(weighted, rows_per_step=1)
    PackedDataset(weighted)
    assert [record.getMessage().startswith("the data has loss_weights") for record in caplog.records] == [True, True]
