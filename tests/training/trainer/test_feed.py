"""A step cut into micro-batches: the same rows, and a state that moves with whole steps only."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from packtrain.schemas.errors import ConfigError  # noqa: E402
from packtrain.training import PackedLoader  # noqa: E402
from packtrain.training.trainer.feed import Feed  # noqa: E402

from tests.support.resumption import pieces_of  # noqa: E402


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("tail", ["drop", "pad", "repeat"])
def test_micro_batches_hold_the_rows_of_their_step(folder: Path, workers: int, tail: str) -> None:
    def loader(rank: int, accumulate: int) -> PackedLoader:
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "accumulate": accumulate, "prefetch": workers}
        return PackedLoader(folder, rows_per_step=8, seed=1, tail=tail, **options)

    for rank in range(2):
        whole, parts = loader(rank, 1), loader(rank, 4)
        assert len(parts) == 4 * len(whole) > 8
        batches = iter(parts)
        for number, step in enumerate(whole):
            found: Counter[tuple[bytes, bytes]] = Counter()
            for part in range(4):
                before = parts.state_dict()
                found += pieces_of(next(batches))
                assert (parts.state_dict() != before) == (part == 3)
            assert found == pieces_of(step), number
            assert parts.state_dict() == whole.state_dict()
        assert next(batches, None) is None


def test_rows_that_make_no_whole_micro_batches_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"among 2 ranks with 3 batches each.*take 6 or 12"):
        PackedLoader(folder, rows_per_step=8, rank=0, world_size=2, accumulate=3)


def test_what_counts_are_finished_steps_not_drawn_ones(folder: Path) -> None:
    feed = Feed(PackedLoader(folder, rows_per_step=4, accumulate=2))
    batches = iter(feed.dataloader())
    generator = torch.random.get_rng_state()
    for _ in range(2):
        next(batches)
    feed.drew()
    assert feed.finished["rows"] == 0
    feed.finish()
    assert (feed.finished["rows"], feed.steps) == (4, len(feed) // 2)
    assert feed.epoch == 4 / len(feed.loader.corpus)
    for _ in range(2):  # drawn ahead, and never finished
        next(batches)
    feed.drew()
    assert feed.finished["rows"] == 4
    assert torch.equal(torch.random.get_rng_state(), generator), "drawing batches draws random numbers"
    assert feed.steps_wanted(-1) == feed.steps
    with pytest.raises(ConfigError, match="epochs"):
        feed.steps_wanted(feed.steps + 1)
