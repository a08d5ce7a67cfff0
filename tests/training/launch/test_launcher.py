"""What launchers say; and the probe of a sharded model, on two ranks."""

import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from packtrain.schemas.errors import ConfigError
from packtrain.training.launch.launcher import check_launch

from tests.support import warm

# Ends without waiting for threads of gloo, some of which abort an orderly end.
RANK = """
import os, sys, traceback
import torch
torch.set_num_threads(1)
try:
    exec(sys.argv[2], {"number": int(sys.argv[1]), "torch": torch})
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
    common = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words = ["python", "-c", RANK, number, program]
    return warm.Process(words, env={**os.environ, **common, **environ}, modules=warm.TRAINING)


def run_ranks(program: str, environs: Sequence[Environ]) -> list[Ended]:
    """Run a program in a process for each environment."""
    ranks = [start(number, program, environ) for number, environ in enumerate(environs)]
    return [Ended(*rank.communicate(timeout=300)) for rank in ranks]


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
        check_launch(environ)
