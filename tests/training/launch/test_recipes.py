"""Shipped files: accelerate reads the configurations, and the Slurm scripts expand on each node what they must."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from packtrain.training.launch import Recipe, recipe

from tests import kit
from tests.support import warm

CONFIGS: tuple[Recipe, ...] = ("ddp", "fsdp2", "zero3")

# Runs the command once a node, side by side, as srun does: what the script exported comes along, and each node's own
# variables are set; but for a node that is MISSING. As with --kill-on-bad-exit, one failure is the whole step's.
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do echo "$1" >> "$RECORD/srun"; shift; done
for node in $(seq 0 $((SLURM_NNODES - 1))); do
    [[ "$node" == "$MISSING" ]] && continue
    SLURM_NODEID=$node SLURM_PROCID=$node SLURMD_NODENAME=node-$node "$@" &
    children+=($!)
done
code=0
for child in "${children[@]}"; do wait "$child" || code=1; done
exit $code
"""
SCONTROL = """#!/bin/bash
[[ "$1 $2" == "show hostnames" ]] && printf 'node-%s\\n' 0 1 2
"""
# In place of Python: writes down what it is started with, on which node.
PYTHON = """#!/bin/bash
{ echo "$*"; env | grep -E '^(OMP_|MASTER_|RANK|WORLD_SIZE|PACK)'; echo; } >> "$RECORD/node-${SLURM_NODEID:-batch}"
[[ "$*" == *"${FAILS:-nothing}"* ]] && exit 3
exit 0
"""


@pytest.mark.parametrize("name", CONFIGS)
def test_accelerate_reads_it_and_wants_the_number_of_processes(name: Recipe, tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    target = tmp_path / f"{name}.yaml"
    target.write_text(recipe(name))
    loaded: Any = load_config_from_file(str(target))  # refuses unknown keys
    assert loaded.num_processes == -1  # accelerate's word for: give it on the command line
    known = {action.dest for action in launch_command_parser()._actions}
    assert (loaded.fsdp_config.keys() | loaded.deepspeed_config.keys()) <= known


def test_bash_and_shellcheck_find_nothing(tmp_path: Path) -> None:
    script = tmp_path / "slurm.sh"
    script.write_text(recipe("slurm"))
    subprocess.run(["bash", "-n", script], check=True)
    if tool := shutil.which("shellcheck"):
        done = subprocess.run([tool, script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def sbatch(
    where: Path, scontrol: str = SCONTROL, **more: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, list[str]]]:
    """Run a script as Slurm would on three nodes of four devices. What each node's Python was started with."""
    tools = where / "tools"
    tools.mkdir(exist_ok=True)
    for tool, text in (("srun", SRUN), ("scontrol", scontrol), ("recorder", PYTHON)):
        (tools / tool).write_text(text)
        (tools / tool).chmod(0o755)
    record = where / "record"
    shutil.rmtree(record, ignore_errors=True)
    record.mkdir()
    script = where / "slurm.sh"
    script.write_text(recipe("slurm"))
    environ = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "RECORD": str(record),
        "PYTHON": "recorder",
        "SLURM_JOB_ID": "1234567",
        "SLURM_NNODES": "3",
        "SLURM_JOB_NODELIST": "node-[0-2]",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_CPUS_PER_TASK": "30",
        **more,
    }
    done = subprocess.run(["bash", script], env=environ, capture_output=True, text=True, timeout=300, check=False)
    return done, {path.name: path.read_text().splitlines() for path in record.iterdir()}


def test_several_nodes(tmp_path: Path) -> None:
    done, record = sbatch(tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(record) == {"srun", "node-0", "node-1", "node-2"}
    assert "--kill-on-bad-exit=1" in record["srun"]
    for node in range(3):
        lines = record[f"node-{node}"]
        meets, prepares, trains = (line for line in lines if line.startswith("-m"))
        assert meets == "-m packtrain.training.launch.ranks"
        expected = "run mix.yaml" if node == 0 else "wait packed --timeout 14400"
        assert prepares == f"-m packtrain.pipeline.cli {expected}"
        assert trains == (
            "-m accelerate.commands.launch --config_file fsdp2.yaml --num_machines 3 --num_processes 12 "
            f"--machine_rank {node} --main_process_ip node-0 --main_process_port 30567 --rdzv_conf timeout=120 "
            "-m packtrain.pipeline.cli train train.yaml"
        )
        # To meet, a node is a rank of its own, at another port than the launcher's.
        assert {f"RANK={node}", "WORLD_SIZE=3", "MASTER_ADDR=node-0", "MASTER_PORT=30568"} <= set(
            lines[: lines.index("")]
        )
        assert "PACKTRAIN_RANK_CHECK_SECONDS=60" in lines
        assert "OMP_NUM_THREADS=8" in lines
        assert f"node {node} of 3: " in done.stdout


def test_a_node_whose_data_fails_does_not_train(tmp_path: Path) -> None:
    for command, node in (("launch.ranks", 2), ("cli run", 0), ("cli wait", 1)):
        done, record = sbatch(tmp_path, FAILS=command)
        assert done.returncode != 0, done
        assert not any("commands.launch" in line for line in record[f"node-{node}"]), record


@pytest.fixture
def job() -> Iterator[int]:
    """The number of a job whose nodes meet at a port that is free, and stays its own."""
    for number in range(12_000):
        with socket.socket() as bound:
            try:
                bound.bind(("127.0.0.1", 20_000 + number + 1))
            except OSError:
                continue
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # from here on a store may listen at it
            yield number
            return


@pytest.mark.slow
def test_a_node_that_is_missing_is_named(job: int, tmp_path: Path) -> None:
    """By packtrain itself, not the recorder: node 1 of three never starts, and no launcher waits for it."""
    (tmp_path / "tools").mkdir()
    here = {"PYTHON": sys.executable, "MISSING": "1", "MEET_SECONDS": "20", "GLOO_SOCKET_IFNAME": "lo", "HOME": "/"}
    here["SLURM_JOB_ID"] = str(job)
    done, _ = sbatch(tmp_path, SCONTROL.replace("node-%s", "127.0.0.1"), **warm.python(), **here)
    assert done.returncode != 0
    assert done.stderr.count("1 of 3 ranks did not report in 20 seconds: rank 1.") == 2, done.stderr
    assert "Present: ranks 0, 2 on " in done.stderr


def test_the_command_prints_them() -> None:
    for name in get_args(Recipe):
        assert kit.cli("train", "--recipe", name).out == recipe(name)


def test_the_report_on_this_machine() -> None:
    said = kit.cli("doctor").out
    for line in (r"torch +good ", r"transformers +good ", r"attention +good +\S", r"/dev/shm +(good|note) +\S.* free"):
        assert re.search(line, said), said
