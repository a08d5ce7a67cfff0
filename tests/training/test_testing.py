"""The check of resumption: it passes a sound loader, and each kind of fault makes it fail."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from packtrain.training import PackedLoader  # noqa: E402
from packtrain.training.testing import Shape, check_resumption  # noqa: E402

SHAPES = [Shape(1, 3), Shape(2, 4)]


def loader(folder: Path, rank: int, shape: Shape, kind: type[PackedLoader] = PackedLoader, **options: Any) -> Any:
    settings = {"tail": "pad", "num_workers": 0, **options}
    return kind(folder, rows_per_step=shape.rows_per_step, rank=rank, world_size=shape.world_size, **settings)


def test_a_sound_loader_passes(folder: Path) -> None:
    assert check_resumption(lambda rank, shape: loader(folder, rank, shape), SHAPES, every=4) > 20


class CountsWhatWasFetched(PackedLoader):
    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "rows": min(state["rows"] + self.rows_per_step, self.total_rows)}


class StartsAgain(PackedLoader):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "rows": 0, "tokens": 0})


class RepeatsTheFirstBatch(PackedLoader):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        before = None
        for batch in super().__iter__():
            yield before or batch
            before = batch


class KnowsItsRank(PackedLoader):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seed": self.place.rank}


class WritesMuch(PackedLoader):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "mixture": "x" * 1024}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (CountsWhatWasFetched, "counts"),
        (StartsAgain, "counts|missing"),
        (RepeatsTheFirstBatch, "documents of the step at row 0 are missing"),
        (KnowsItsRank, "the ranks have different states"),
        (WritesMuch, "the state takes"),
    ],
)
def test_faults_are_found(folder: Path, kind: type[PackedLoader], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_resumption(lambda rank, shape: loader(folder, rank, shape, kind), SHAPES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda shape: {"seed": shape.world_size}, "missing|seed differs"),
        (lambda shape: {"order": "full" if shape.world_size > 1 else "sequential"}, "missing|order differs"),
    ],
)
def test_orders_that_depend_on_the_shape_are_found(
    folder: Path, options: Callable[[Shape], dict[str, Any]], message: str
) -> None:
    settings = {"first_epoch_sequential": False}
    with pytest.raises((AssertionError, ValueError), match=message):
        check_resumption(
            lambda rank, shape: loader(folder, rank, shape, **{**settings, **options(shape)}), SHAPES, every=4
        )
