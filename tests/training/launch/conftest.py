"""Ranks as processes: each with an environment of its own, all of one program."""

import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import warm

pytest.importorskip("torch")

# Forks the ranks.
PARENT = """
import json, os, sys
ranks, program, limit = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
import torch
import torch.distributed
from packtrain.training.launch import ranks as launch
torch.set_num_threads(1)
code = compile(program, "program", "exec")
children = []
for number, environ in enumerate(ranks):
    child = os.fork()
    if child:
        children.append(child)
        continue
    for stream in (1, 2):
        target = os.open(f"{number}.{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, stream)
    os.environ.update(environ)
    import signal
    signal.alarm(limit)
    status = 1
    try:
        exec(code, {"number": number, "torch": torch, "launch": launch})
        status = 0
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush(); sys.stderr.flush()
        os._exit(status)
print(json.dumps(children), flush=True)
for child in children:
    os.waitpid(child, 0)
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
def run_ranks(tmp_path: Path) -> RunRanks:
    """See `RunRanks`. Processes that are stopped are ended as well."""

    def run(program: str, environs: Sequence[Mapping[str, str]], limit: int = 240) -> list[Ended]:
        environ = {name: value for name, value in os.environ.items() if name not in CLEAR}
        environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = ["python", "-c", PARENT, json.dumps(list(environs)), program, str(limit)]
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        parent = warm.Process(command, cwd=folder, env=environ, modules=warm.RANKS)
        children: list[int] = json.loads(parent.stdout.readline())
        ends = time.monotonic() + limit
        while parent.poll() is None and time.monotonic() < ends and not _only_stopped(children):
            time.sleep(0.05)
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        parent.wait(120)
        return [
            Ended(*((folder / f"{number}.{stream}").read_text() for stream in (1, 2)))
            for number in range(len(environs))
        ]

    return run


def _only_stopped(children: Sequence[int]) -> bool:
    """Whether of all that are left none can go on."""
    states = []
    for child in children:
        try:
            states.append(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0])
        except OSError:
            continue  # ended
    return bool(states) and all(state in "TZ" for state in states)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        return int(probing.getsockname()[1])


@pytest.fixture
def environs() -> Callable[..., list[dict[str, str]]]:
    """What a launcher would set for so many ranks of one node. All meet at one port, unless another is given."""
    own = free_port()

    def make(world_size: int, port: int = own) -> list[dict[str, str]]:
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
