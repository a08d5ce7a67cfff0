"""The rank check among real processes: all present, one missing, one doubled, one different, and rank 0 missing."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from packtrain.training.launch.rank_check import rank_check
from packtrain.training.launch.rank_report import RankReport, absence, disagreement, named

CALL = "rank_check.rank_check({seconds}, agree={{'dataset': 'd' * 8}}); print('here')"
Environs = Callable[..., list[dict[str, str]]]


def test_all_there_and_the_process_group_finds_the_same_store(run_ranks: Any, environs: Environs) -> None:
    program = """
roll = rank_check.rank_check(20)
again = rank_check.rank_check(20)
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(len(roll.reports), len(again.reports), [r.rank for r in roll.reports], total.item())
dist.destroy_process_group()
"""
    ended = run_ranks(program, environs(3))
    assert [one.out for one in ended] == ["3 3 [0, 1, 2] 6.0\n", "1 1 [1] 6.0\n", "1 1 [2] 6.0\n"], ended


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_on_every_rank_that_did(run_ranks: Any, environs: Environs) -> None:
    those = environs(4)
    began = time.monotonic()
    ended = run_ranks(CALL.format(seconds=2), [those[0], those[3]])
    assert time.monotonic() - began < 25
    for one in ended:
        assert "here" not in one.out
        assert "2 of 4 ranks did not report in 2 seconds: ranks 1-2." in one.err
        assert "Rank 0 saw RANK=0, WORLD_SIZE=4, LOCAL_RANK=0, LOCAL_WORLD_SIZE=4, MASTER_ADDR=127.0.0.1" in one.err


def test_two_processes_of_one_rank(run_ranks: Any, environs: Environs) -> None:
    those = environs(3)
    ended = run_ranks(CALL.format(seconds=8), [those[0], those[1], those[1] | {"SLURM_NODEID": "1"}])
    for one in ended:
        match = re.search(
            r"two processes are rank 1: process (\d+) on .*, and process (\d+) on .*the same host", one.err
        )
        assert match, one.err
        assert match[1] != match[2]
        assert "SLURM_NODEID=1" in one.err


@pytest.mark.slow
def test_two_processes_of_rank_0(run_ranks: Any, environs: Environs) -> None:
    those = environs(2)
    ended = run_ranks("import time; time.sleep(number)\n" + CALL.format(seconds=8), [those[0], those[0]])
    for one in ended:
        assert "two processes are rank 0" in one.err, one


def test_what_must_agree_and_does_not(run_ranks: Any, environs: Environs) -> None:
    program = "rank_check.rank_check(10, agree={'dataset': 'aaaa' if number else 'bbbb'})"
    for one in run_ranks(program, environs(3)):
        assert "the ranks do not agree on dataset: bbbb on rank 0, aaaa on ranks 1-2" in one.err, one


@pytest.mark.slow
def test_a_rank_beyond_those_that_rank_0_knows_of(run_ranks: Any, environs: Environs) -> None:
    program = CALL.format(seconds=8) + "; import time; time.sleep(4)"
    ended = run_ranks(program, [*environs(2), environs(3)[2]])
    assert ["here" in one.out for one in ended] == [True, True, False], ended
    assert "the ranks do not agree on WORLD_SIZE: 2 on rank 0, 3 on rank 2" in ended[2].err, ended


@pytest.mark.slow
def test_nobody_at_the_address(run_ranks: Any, environs: Environs) -> None:
    alone = environs(2)[1]
    unknown = alone | {"MASTER_ADDR": "no-such-host.invalid"}
    ended = run_ranks(CALL.format(seconds=2), [alone, unknown])
    assert "rank 1 of 2 on" in ended[0].err
    assert "did not reach 127.0.0.1:" in ended[0].err
    assert "It saw RANK=1, WORLD_SIZE=2" in ended[0].err
    assert "cannot resolve MASTER_ADDR 'no-such-host.invalid'" in ended[1].err


@pytest.mark.parametrize("how", ["KILL", pytest.param("STOP", marks=pytest.mark.slow)])
def test_the_keeper_of_the_store_ends_or_freezes(run_ranks: Any, environs: Environs, how: str) -> None:
    program = f"""
import json, os, signal
rank_check._GRACE = 2.0
open_store = rank_check._open_store

def opened(*arguments):  # by rank 1, once rank 0 has reported
    store = open_store(*arguments)
    os.kill(json.loads(store.get("report/0"))["pid"], signal.SIG{how})
    return store

if number == 1:
    rank_check._open_store = opened
rank_check.rank_check(20 if number == 0 else 3)
"""
    ended = run_ranks(program, environs(3)[:2], limit=60)
    assert "was lost during the rank check" in ended[1].err, ended[1]
    assert "rank 0, which keeps it, has ended or hangs" in ended[1].err


def test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    roll = rank_check(1)
    assert roll.world_size == 1
    assert roll.reports[0].agree["packtrain"] != "not installed"


def report(rank: int, **changes: Any) -> RankReport:
    values: dict[str, Any] = {
        "rank": rank,
        "world_size": 8,
        "host": f"node-{rank // 4}",
        "machine": f"node-{rank // 4}/boot",
        "pid": 100 + rank,
        "device": f"cuda:{rank % 4} of all",
        "agree": {"torch": "2.13.0"},
        "variables": {
            "WORLD_SIZE": "8",
            "LOCAL_WORLD_SIZE": "4",
            "MASTER_ADDR": "node-0",
            "GROUP_RANK": str(rank // 4),
        },
    }
    return RankReport(**(values | changes))


def test_who_is_missing_and_where_the_others_are() -> None:
    text = absence([report(rank) for rank in (1, 2, 3, 4, 6)], 8, 60)
    assert "3 of 8 ranks did not report in 60 seconds: ranks 0, 5, 7." in text
    assert "Present: ranks 1-3 on node-0; ranks 4, 6 on node-1." in text
    assert "Rank 1 saw WORLD_SIZE=8, LOCAL_WORLD_SIZE=4, MASTER_ADDR=node-0, GROUP_RANK=0." in text


def test_ranks_are_named_in_spans() -> None:
    assert named([3]) == "rank 3"
    assert named([5, 0, 1, 2, 7, 8]) == "ranks 0-2, 5, 7-8"


def test_what_differs_is_listed_with_its_ranks() -> None:
    reports = [report(rank) for rank in range(8)]
    assert disagreement(reports) == ""
    reports[5] = report(5, agree={"torch": "2.11.0"})
    reports[7] = report(7, device="cuda:2 of all")
    assert disagreement(reports) == (
        "the ranks do not agree on torch: 2.13.0 on ranks 0-4, 6-7, 2.11.0 on rank 5; give every rank the same; "
        "ranks 6-7 on node-1 would all use cuda:2 of all: LOCAL_RANK must count the processes of one node, "
        "and a node must not start more than it has devices"
    )
    reports = [report(rank, world_size=4 if rank < 4 else 8) for rank in range(8)]
    assert disagreement(reports).startswith("the ranks do not agree on WORLD_SIZE: 4 on ranks 0-3, 8 on ranks 4-7")
