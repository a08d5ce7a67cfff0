"""An all-reduce among real processes, and a rank that stops in the middle of it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from packtrain.schemas.errors import ConfigError
from packtrain.training.launch.links import check_links

from tests.support import warm

Environs = Callable[[int], list[dict[str, str]]]

STOPS = """
import os, signal
def on_phase(name):
    print(name, flush=True)
    if number == {rank} and name == "{phase}":
        os.kill(os.getpid(), signal.SIGSTOP)
links.check_links({timeout}, on_phase=on_phase)
"""


def test_all_answer(run_ranks: Any, environs: Environs) -> None:
    program = """
found = links.check_links(20)
assert [one.rank for one in found.ranks] == ([0, 1, 2] if number == 0 else [number]) and found.backend == "gloo"
print(found.ranks[0].interface, 0 < found.seconds < 5, found.bytes_per_second > 1e5)
"""
    ended = run_ranks(program, environs(3))
    assert [one.out for one in ended] == ["lo True True\n"] * 3, ended


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["all-reduce", pytest.param("process group", marks=pytest.mark.slow)])
def test_a_rank_that_is_stopped_is_named_by_the_others(run_ranks: Any, environs: Environs, phase: str) -> None:
    ended = run_ranks(STOPS.format(rank=1, phase=phase, timeout=3), environs(3))
    assert ended[1].out.splitlines()[-1] == phase  # so far it came
    for rank in (0, 2):
        assert re.search(f"the {phase} did not end in 3 seconds", ended[rank].err), ended[rank]
        blamed = ended[rank].err.partition("These never began it: ")[2]
        assert blamed.startswith("rank 1 of 3 on ")
        assert "interface lo (127.0.0.1)" in blamed
        assert "rank 2 of 3" not in blamed


@pytest.mark.slow
def test_the_rank_that_keeps_the_store_is_stopped(run_ranks: Any, environs: Environs) -> None:
    ended = run_ranks(STOPS.format(rank=0, phase="all-reduce", timeout=3), environs(2), limit=60)
    assert "does not answer any more: rank 0, which keeps it, hangs or has ended" in ended[1].err, ended[1]


@pytest.mark.slow
def test_the_command_under_torchrun() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command = [*launcher, "packtrain.pipeline.cli", "doctor", "--ranks", "--timeout", "20", "--json"]
    environ = {**os.environ, **warm.python(), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["backend"] == "gloo"
    assert [one["rank"] for one in found["ranks"]] == [0, 1]


def test_it_needs_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node"):
        check_links(1)
