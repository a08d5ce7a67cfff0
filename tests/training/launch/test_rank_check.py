"""The rank check and the probe among real processes: all present, one missing, doubled, different or stopped."""

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from packtrain.schemas.errors import ConfigError
from packtrain.training.launch.ranks import read_launch

from tests.support import warm

CALL = "launch.rank_check({seconds}); print('here')"
# Ends without waiting for threads of gloo, some of which abort an orderly end.
RANK = """
import os, sys, traceback
import torch
from packtrain.training.launch import ranks as launch
torch.set_num_threads(1)
try:
    exec(sys.argv[2], {"number": int(sys.argv[1]), "torch": torch, "launch": launch})
except BaseException:
    traceback.print_exc()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""
CLEAR = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PACKTRAIN_RANK_CHECK_SECONDS")


class Ended(NamedTuple):
    """How a rank ended."""

    out: str
    err: str


def run_ranks(program: str, environs: Sequence[Mapping[str, str]], limit: int = 240) -> list[Ended]:
    """Run a program in a process for each environment, with `number`, its place in the list.

    Processes that are stopped are ended as well, when no other can go on.
    """
    common = {name: value for name, value in os.environ.items() if name not in CLEAR}
    common |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        warm.Process(["python", "-c", RANK, number, program], env=common | dict(environ), modules=warm.TRAINING)
        for number, environ in enumerate(environs)
    ]
    ends = time.monotonic() + limit
    while time.monotonic() < ends and not all(map(_over, ranks)):
        time.sleep(0.05)
    for rank in ranks:
        rank.kill()
    return [Ended(*rank.communicate(timeout=120)) for rank in ranks]


def _over(process: warm.Process) -> bool:
    """Whether it has ended, or is stopped."""
    if process.poll() is not None:
        return True
    try:
        return Path(f"/proc/{process.child}/stat").read_text().rpartition(")")[2].split()[0] in "TZ"
    except OSError:
        return True


PORTS = count(20_000 + os.getpid() % 10_000)
"""Below those that Linux gives to whoever asks for any, so that nobody takes one before a rank does."""


def environs(world_size: int) -> list[dict[str, str]]:
    """What a launcher would set for so many ranks of one node, which all meet at one port."""
    common = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(next(filter(_free, PORTS)))}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **common} for rank in range(world_size)]


def _free(port: int) -> bool:
    with socket.socket() as probing:
        return probing.connect_ex(("127.0.0.1", port)) != 0


def test_all_there() -> None:
    ended = run_ranks(CALL.format(seconds=240), environs(3))
    assert [one.out for one in ended] == ["here\n"] * 3, ended


def test_ranks_that_count_differently_many() -> None:
    those = [one | {"WORLD_SIZE": "3" if one["RANK"] == "1" else "2"} for one in environs(2)]
    ended = run_ranks(CALL.format(seconds=240), those)
    assert (ended[0].out, ended[1].out) == ("here\n", "")
    assert "all 2 ranks are there. This is rank 1 of 3 on " in ended[1].err


KEEPER = """
import os, signal
if number == 0:  # as soon as the store is there
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, True, wait_for_workers=False)
    store.wait(["there"])
    os.kill(os.getpid(), signal.SIG{how})
import torch.distributed as dist
dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, False, wait_for_workers=False).set("there", "1")
launch.rank_check(1)
"""


@pytest.fixture(scope="module")
def waited() -> dict[str, list[Ended]]:
    """How ranks end that wait in vain, all at once, because each waits for long."""
    groups = {"missing": (CALL.format(seconds=20), environs(4)[::3])}
    groups |= {how: (KEEPER.format(how=how), environs(3)[:2]) for how in ("KILL", "STOP")}
    with ThreadPoolExecutor() as threads:
        return dict(zip(groups, threads.map(lambda one: run_ranks(one[0], one[1], 120), groups.values()), strict=True))


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_on_every_rank_that_did(waited: dict[str, list[Ended]]) -> None:
    for one in waited["missing"]:
        assert "here" not in one.out
        assert "2 of 4 ranks did not report in 20 seconds: ranks 1-2." in one.err
        assert "Rank 0 saw RANK=0, WORLD_SIZE=4, MASTER_ADDR=127.0.0.1" in one.err


@pytest.mark.slow
@pytest.mark.parametrize("how", ["KILL", "STOP"])
def test_the_keeper_of_the_store_ends_or_freezes(waited: dict[str, list[Ended]], how: str) -> None:
    assert "which rank 0 or its launcher keeps, in 1 seconds, or lost it" in waited[how][1].err, waited[how]


# A sharded model, where every forward pass is collective and ranks have different documents

PROBED = """
import json, sys
sys.path.append({root!r})
from torch.distributed.fsdp import fully_shard
from tests.training.probe.architectures import batch, build
from packtrain.training.attention import use_packed
from packtrain.training.probe import probe
torch.distributed.init_process_group("gloo")
model = build({kind!r})
if {kind!r} != "gpt_oss":
    use_packed(model)
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
mine = batch(*([5, 9, 3] * (1 + 2 * number)), seed=number)
report = probe(model, device="cpu", batch=mine)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):  # and training goes on as ever
    model(**mine).loss.backward()
    optimizer.step()
print(json.dumps(sorted(check.name for check in report.checks if not check.passed)))
torch.distributed.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "failed"), [("gpt_oss", True), ("llama", False)])
def test_the_probe_on_two_ranks(kind: str, failed: bool) -> None:
    for one in run_ranks(PROBED.format(root=str(Path(__file__).parents[3]), kind=kind), environs(2)):
        assert ("isolation" in json.loads(one.out)) == failed, one


# What launchers say


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
