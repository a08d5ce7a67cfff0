"""The rank check and the probe among real processes: all present, one missing, doubled, different or stopped."""

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from packtrain.schemas.errors import ConfigError
from packtrain.training.launch.ranks import read_launch

from tests.support import warm

CALL = "launch.rank_check(); print('here')"
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


Environ = dict[str, str]


class Ended(NamedTuple):
    """How a rank ended."""

    out: str
    err: str


def start(number: int, program: str, environ: Environ) -> warm.Process:
    """Run a program as a rank, with `number`, its place among those that are started."""
    common = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PACKTRAIN_RANK_CHECK_SECONDS": "240"}
    words = ["python", "-c", RANK, number, program]
    return warm.Process(words, env={**os.environ, **common, **environ}, modules=warm.TRAINING)


def ended(ranks: Sequence[warm.Process]) -> list[Ended]:
    """Wait for ranks. Those that are stopped are ended as well, when no other can go on."""
    until = time.monotonic() + 300
    while time.monotonic() < until and not all(map(_over, ranks)):
        time.sleep(0.05)
    for rank in ranks:
        rank.kill()
    return [Ended(*rank.communicate(timeout=120)) for rank in ranks]


def run_ranks(program: str, environs: Sequence[Environ]) -> list[Ended]:
    """Run a program in a process for each environment."""
    return ended([start(number, program, environ) for number, environ in enumerate(environs)])


def _over(process: warm.Process) -> bool:
    """Whether it has ended, or is stopped."""
    if process.poll() is not None:
        return True
    try:
        return Path(f"/proc/{process.child}/stat").read_text().rpartition(")")[2].split()[0] in "TZ"
    except OSError:
        return True


def environs(world_size: int, port: int) -> list[Environ]:
    """What a launcher would set for so many ranks of one node, which all meet at one port."""
    common = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **common} for rank in range(world_size)]


@pytest.fixture
def port() -> Iterator[int]:
    """A port that stays reserved while it is bound here; a store that reuses addresses can still listen at it."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_all_there(port: int) -> None:
    found = run_ranks(CALL, environs(3, port))
    assert [one.out for one in found] == ["here\n"] * 3, found


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_on_every_rank_that_did() -> None:
    """The store is the launcher's, as under torchrun. Rank 0 comes when rank 3 has reported, and waits for seconds."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    those = [one | {"TORCHELASTIC_USE_AGENT_STORE": "True"} for one in environs(4, store.port)]
    before = store.num_keys()
    last = start(3, CALL, those[3])
    while store.num_keys() == before:
        assert last.poll() is None, last.communicate()
        time.sleep(0.05)
    found = ended([start(0, CALL, those[0] | {"PACKTRAIN_RANK_CHECK_SECONDS": "4"}), last])
    for one in found:
        assert "here" not in one.out
        assert "2 of 4 ranks did not report in 4 seconds: ranks 1-2. Present: ranks 0, 3 on " in one.err, one
        assert "Rank 0 saw RANK=0, WORLD_SIZE=4, MASTER_ADDR=127.0.0.1" in one.err


def test_ranks_that_count_differently_many(port: int) -> None:
    those = [one | {"WORLD_SIZE": "3" if one["RANK"] == "1" else "2"} for one in environs(2, port)]
    found = run_ranks(CALL, those)
    assert (found[0].out, found[1].out) == ("here\n", "")
    assert "all 2 ranks are there. This is rank 1 of 3 on " in found[1].err


@pytest.mark.slow
@pytest.mark.parametrize("how", ["KILL", "STOP"])
def test_the_keeper_of_the_store_ends_or_freezes(how: str, port: int) -> None:
    program = f"""
import os, signal, time
if number == 0:  # as soon as the store is there
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, True, wait_for_workers=False)
    store.wait(["there"])
    os.kill(os.getpid(), signal.SIG{how})
import torch.distributed as dist
dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, False, wait_for_workers=False).set("there", "1")
launch.rank_check()
"""
    found = run_ranks(program, [one | {"PACKTRAIN_RANK_CHECK_SECONDS": "1"} for one in environs(3, port)[:2]])
    assert "which rank 0 or its launcher keeps, in 1 seconds, or lost it" in found[1].err, found[1]


# A sharded model, where every forward pass is collective and ranks have different documents

PROBED = """
import json, sys
sys.path.append({root!r})
from torch.distributed.fsdp import fully_shard
from tests.training.probe.architectures import batch, build
from packtrain.training.attention.packed_attention import use_packed
from packtrain.training.attention.isolation_probe import probe
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
def test_the_probe_on_two_ranks(kind: str, failed: bool, port: int) -> None:
    for one in run_ranks(PROBED.format(root=str(Path(__file__).parents[3]), kind=kind), environs(2, port)):
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
