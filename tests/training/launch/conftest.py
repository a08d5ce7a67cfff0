"""Ranks as processes: each with an environment of its own, all of one program."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import warm

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


@dataclass
class Ended:
    """How a rank ended."""

    out: str
    err: str


RunRanks = Callable[..., list[Ended]]
"""`run_ranks(program, environs, limit=240)`: each process runs the program with `number`, its place in the list."""

CLEAR = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PACKTRAIN_RANK_CHECK_SECONDS")


@pytest.fixture
def run_ranks() -> RunRanks:
    """See `RunRanks`. Processes that are stopped are ended as well, when no other can go on."""

    def run(program: str, environs: Sequence[Mapping[str, str]], limit: int = 240) -> list[Ended]:
        common = {name: value for name, value in os.environ.items() if name not in CLEAR}
        common |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [
            warm.Process(["python", "-c", RANK, number, program], env=common | dict(environ), modules=warm.RANKS)
            for number, environ in enumerate(environs)
        ]
        ends = time.monotonic() + limit
        while time.monotonic() < ends and not all(map(_over, ranks)):
            time.sleep(0.05)
        for rank in ranks:
            rank.kill()
        return [Ended(*rank.communicate(120)) for rank in ranks]

    return run


def _over(process: warm.Process) -> bool:
    """Whether it has ended, or is stopped."""
    if process.poll() is not None:
        return True
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZ"
    except OSError:
        return True


@pytest.fixture
def environs() -> Callable[..., list[dict[str, str]]]:
    """What a launcher would set for so many ranks of one node, which all meet at one port."""
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        port = probing.getsockname()[1]

    def make(world_size: int) -> list[dict[str, str]]:
        return [
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            for rank in range(world_size)
        ]

    return make
