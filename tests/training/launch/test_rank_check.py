"""The rank check and an all-reduce among real processes: all present, one missing, doubled, different or stopped."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from packtrain.schemas.errors import ConfigError
from packtrain.training.launch.ranks import RankReport, fault_of, read_launch

CALL = "launch.rank_check({seconds}); print('here')"
Environs = Callable[..., list[dict[str, str]]]


def test_all_there(run_ranks: Any, environs: Environs) -> None:
    program = """
roll = launch.rank_check(240)
reports, backend, speed = launch.check_links(60)
print([one.rank for one in roll], [one.rank for one in reports], backend, speed > 0)
"""
    ended = run_ranks(program, environs(3))
    said = [f"{ranks} {ranks} gloo True\n" for ranks in ([0, 1, 2], [1], [2])]
    assert [one.out for one in ended] == said, ended


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_on_every_rank_that_did(run_ranks: Any, environs: Environs) -> None:
    those = environs(4)
    ended = run_ranks(CALL.format(seconds=2), [those[0], those[3]])
    for one in ended:
        assert "here" not in one.out
        assert "2 of 4 ranks did not report in 2 seconds: ranks 1-2." in one.err
        assert "Rank 0 saw RANK=0, WORLD_SIZE=4, MASTER_ADDR=127.0.0.1" in one.err


def test_two_processes_of_one_rank(run_ranks: Any, environs: Environs) -> None:
    those = environs(3)
    ended = run_ranks(CALL.format(seconds=8), [those[0], those[1], those[1] | {"SLURM_NODEID": "1"}])
    for one in ended:
        match = re.search(r"two processes are rank 1: .*process (\d+), .*process (\d+), ", one.err)
        assert match, one.err
        assert match[1] != match[2]
        assert "SLURM_NODEID=1" in one.err


def test_what_must_agree_and_does_not(run_ranks: Any, environs: Environs) -> None:
    program = "launch.rank_check(240, agree={'dataset': 'aaaa' if number else 'bbbb'})"
    for one in run_ranks(program, environs(3)):
        assert "the ranks do not agree on dataset: bbbb on rank 0, aaaa on ranks 1-2" in one.err, one


@pytest.mark.slow
@pytest.mark.parametrize("how", ["KILL", "STOP"])
def test_the_keeper_of_the_store_ends_or_freezes(run_ranks: Any, environs: Environs, how: str) -> None:
    program = f"""
import os, signal, time
if number == 0:  # as soon as the store is there
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, True, wait_for_workers=False)
    store.wait(["there"])
    os.kill(os.getpid(), signal.SIG{how})
import torch.distributed as dist
dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, False, wait_for_workers=False).set("there", "1")
launch.rank_check(1)
"""
    ended = run_ranks(program, environs(3)[:2], limit=120)
    assert "which rank 0 or its launcher keeps, in 1 seconds, or lost it" in ended[1].err, ended[1]


# An all-reduce


@pytest.mark.slow
@pytest.mark.parametrize("where", ["monitored_barrier", "all_reduce"])
def test_no_rank_waits_for_one_that_is_stopped(run_ranks: Any, environs: Environs, where: str) -> None:
    program = f"""
import os, signal
import torch.distributed as dist
if number == 1:
    dist.{where} = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP)
launch.check_links(3)
"""
    for number, one in enumerate(run_ranks(program, environs(3), limit=60)):
        assert number == 1 or f"rank {number} of 3 on " in one.err, one
        assert number == 1 or "the ranks do not reach each other over gloo" in one.err, one


def test_a_wrong_sum_is_reported(run_ranks: Any, environs: Environs) -> None:
    program = """
import torch.distributed as dist
right = dist.all_reduce
dist.all_reduce = lambda tensor, **options: (right(tensor, **options), tensor.view(-1)[7].add_(number))
launch.check_links(20)
"""
    ended = run_ranks(program, environs(2))
    assert "the sum of 1 to 2 over all ranks came out as 4: memory or network damages data" in ended[1].err, ended


# One process, and what launchers say


def report(rank: int, **changes: Any) -> RankReport:
    values: dict[str, Any] = {
        "rank": rank,
        "world_size": 8,
        "host": f"node-{rank // 4}",
        "pid": 100 + rank,
        "device": f"cuda:{rank % 4} of all",
        "agree": {"WORLD_SIZE": "8", "torch": "2.13.0"},
        "variables": {"WORLD_SIZE": "8", "MASTER_ADDR": "node-0", "GROUP_RANK": str(rank // 4)},
    }
    return RankReport(**(values | changes))


def test_what_is_missing_or_differs_is_named() -> None:
    reports = [report(rank) for rank in range(8)]
    assert fault_of(reports, 8, 60) == ""
    missing = fault_of([reports[rank] for rank in (1, 2, 3, 4, 6)], 8, 60)
    assert "ranks 0, 5, 7." in missing
    assert "ranks 1-3 on node-0; ranks 4, 6 on node-1." in missing
    other = [*reports[:2], report(2, agree={"WORLD_SIZE": "8", "torch": "2.11.0"})]
    assert "torch: 2.13.0 on ranks 0-1, 2.11.0 on rank 2" in fault_of(other, 3, 60)


TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "0"}, "RANK=0, but WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "but MASTER_ADDR not set"),
        (TORCHRUN | {"RANK": "$SLURM_PROCID"}, r"RANK=\$SLURM_PROCID, .*inside the quotes"),
        (TORCHRUN | {"RANK": "8"}, "of all nodes together"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "Slurm started 4 tasks.*each task would train alone"),
    ],
)
def test_half_of_it_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_launch(environ)
