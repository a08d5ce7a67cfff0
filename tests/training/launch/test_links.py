"""An all-reduce among real processes, and a rank that stops in the middle of it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

from packtrain.schemas.errors import ConfigError
from packtrain.training.launch.ranks import check_links

from tests.training.launch.conftest import free_port

Environs = Callable[..., list[dict[str, str]]]

STOPS = """
import os, signal
import torch.distributed as dist
if number == {rank}:
    dist.{where} = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP)
launch.check_links(3)
"""


def test_all_answer(run_ranks: Any, environs: Environs) -> None:
    program = """
reports, backend, speed = launch.check_links(20)
assert [one.rank for one in reports] == ([0, 1, 2] if number == 0 else [number]) and backend == "gloo"
print(speed > 0)
"""
    ended = run_ranks(program, environs(3))
    assert [one.out for one in ended] == ["True\n"] * 3, ended


@pytest.mark.slow
def test_no_rank_waits_for_one_that_is_stopped(run_ranks: Any, environs: Environs) -> None:
    """In each of these places, all at once, because they wait; and where the one that keeps the store is stopped."""
    places = ("init_process_group", "monitored_barrier", "all_reduce")

    def stopped(rank: int, where: str, world_size: int) -> Any:
        return run_ranks(STOPS.format(rank=rank, where=where), environs(world_size, free_port()), limit=60)

    with ThreadPoolExecutor() as pool:
        keeper = pool.submit(stopped, 0, places[0], 2)
        ended = dict(zip(places, pool.map(lambda where: stopped(1, where, 3), places), strict=True))
    for where in places:
        for rank in (0, 2):
            assert f"rank {rank} of 3 on " in ended[where][rank].err
            assert "the ranks do not reach each other over gloo" in ended[where][rank].err, ended[where][rank]
    assert "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 3000 ms" in ended["monitored_barrier"][0].err
    # Rank 0 may stop before rank 1 has read the verdict, or after it.
    said = ("the ranks do not reach each other over gloo", "which rank 0 keeps, in 3 seconds, or lost it")
    assert any(text in keeper.result()[1].err for text in said), keeper.result()[1]


def test_a_wrong_sum_is_reported(run_ranks: Any, environs: Environs) -> None:
    program = """
import torch.distributed as dist
right = dist.all_reduce
dist.all_reduce = lambda tensor, **options: (right(tensor, **options), tensor.view(-1)[7].add_(number))
launch.check_links(20)
"""
    ended = run_ranks(program, environs(2))
    assert "the sum of 1 to 2 over all ranks came out as 4: memory or network damages data" in ended[1].err, ended


def test_it_needs_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node"):
        check_links(1)
