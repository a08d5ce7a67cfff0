"""What the doctor finds, on this machine as it is and where something is wrong with it."""

import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packtrain.training.launch import devices, machine, software
from packtrain.training.launch.doctor import examine
from packtrain.training.launch.findings import Finding, Level, as_table, to_json, verdict
from packtrain.training.launch.variables import variables

from tests.support import warm

CLI = [sys.executable, "-m", "packtrain.pipeline.cli"]
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


def levels(environ: dict[str, str]) -> dict[str, Level]:
    return {finding.subject: finding.level for finding in variables(environ)}


def test_this_machine_is_examined_whole() -> None:
    pytest.importorskip("torch")
    findings = examine()
    subjects = {finding.subject for finding in findings}
    assert {"python", "torch", "transformers", "accelerate", "attention", "/dev/shm", "launcher"} <= subjects
    assert all(finding.found for finding in findings)
    assert len(json.loads(json.dumps(to_json(findings)))["findings"]) == len(findings)


def test_every_bad_finding_says_what_to_do() -> None:
    with pytest.raises(AssertionError, match="memory"):
        Finding("memory", Level.SLOW, "little", "")


def test_a_table_of_plain_lines() -> None:
    torch = Finding("torch", Level.GOOD, "2.13.0")
    findings = [torch, Finding("disk", Level.BROKEN, "full " * 12, "make room")]
    assert list(as_table(findings, 44)) == [
        "torch  good    2.13.0",
        "disk   broken  full full full full full full",
        "               full full full full full full",
        "               . make room",
    ]
    assert to_json(findings)["broken"] is True
    assert "disk" in verdict(findings)
    assert to_json([torch])["broken"] is False


@pytest.mark.parametrize(
    ("environ", "subject", "level"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE", Level.SLOW),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "CUDA_LAUNCH_BLOCKING", Level.SLOW),
        ({"TORCHDYNAMO_DISABLE": "1"}, "TORCHDYNAMO_DISABLE", Level.SLOW),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "TORCH_DISTRIBUTED_DEBUG", Level.SLOW),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE", Level.NOTE),
        ({"NCCL_SOCKET_IFNAME": "ib7"}, "NCCL_SOCKET_IFNAME", Level.BROKEN),
        ({"GLOO_SOCKET_IFNAME": "=l"}, "GLOO_SOCKET_IFNAME", Level.BROKEN),
        (TORCHRUN, "OMP_NUM_THREADS", Level.SLOW),
        (TORCHRUN, "launcher", Level.GOOD),
        ({"RANK": "0"}, "launcher", Level.BROKEN),
        ({"SLURM_STEP_NUM_TASKS": "8"}, "launcher", Level.BROKEN),
    ],
)
def test_variables_that_hurt(environ: dict[str, str], subject: str, level: Level) -> None:
    assert levels(environ)[subject] is level


@pytest.mark.parametrize(
    ("environ", "subject"),
    [
        ({"NCCL_P2P_DISABLE": "0"}, "NCCL_P2P_DISABLE"),
        ({"TORCH_DISTRIBUTED_DEBUG": "INFO"}, "TORCH_DISTRIBUTED_DEBUG"),
        ({"NCCL_SOCKET_IFNAME": "lo"}, "NCCL_SOCKET_IFNAME"),
        ({"NCCL_SOCKET_IFNAME": "^docker0"}, "NCCL_SOCKET_IFNAME"),
        ({"GLOO_SOCKET_IFNAME": "=lo,eth9"}, "GLOO_SOCKET_IFNAME"),
        (TORCHRUN | {"OMP_NUM_THREADS": "4"}, "OMP_NUM_THREADS"),
        ({}, "OMP_NUM_THREADS"),
    ],
)
def test_variables_that_do_not(environ: dict[str, str], subject: str) -> None:
    assert subject not in levels(environ)


def test_versions_that_are_missing_or_too_old() -> None:
    there = {"torch": "2.9.1+cu128", "transformers": "5.23.0"}
    found = {finding.subject: finding for finding in software.software(there.get)}
    assert found["torch"].level is Level.BROKEN
    assert found["torch"].fix == "pip install 'torch>=2.10'"
    assert found["transformers"].level is Level.GOOD
    assert found["accelerate"].level is Level.BROKEN
    assert found["extra train"].level is Level.NOTE
    assert found["extra lora"].found == "peft not installed: low-rank adapters"
    assert found["extra lora"].fix == "pip install 'packtrain[lora]'"
    assert software.parsed("2.13.0+cu130") == (2, 13, 0)
    assert software.parsed("2.10rc1") == (2, 10)


def test_limits_that_are_small(tmp_path: Path) -> None:
    assert machine._shared(tmp_path, least=1 << 60).level is Level.SLOW
    assert "--shm-size" in machine._shared(tmp_path, least=1 << 60).fix
    assert machine._shared(tmp_path / "none").level is Level.SLOW
    assert machine._files(1024).level is Level.SLOW
    assert machine._files(resource.RLIM_INFINITY).level is Level.GOOD
    assert machine._locked(8 << 20, infiniband=True).level is Level.BROKEN
    assert machine._locked(8 << 20, infiniband=False).level is Level.GOOD
    assert machine._locked(resource.RLIM_INFINITY, infiniband=True).level is Level.GOOD
    assert machine.disk("temporary", tmp_path / "a" / "b", "point TMPDIR elsewhere", least=1 << 60).level is Level.SLOW
    assert machine.disk("here", tmp_path, "make room", least=1).level is Level.GOOD


def test_a_gpu_that_torch_cannot_use() -> None:
    assert devices._no_gpu(None, "580.1", {}).level is Level.BROKEN
    assert devices._no_gpu("13.0", "535.1", {}).level is Level.BROKEN
    assert "hides every GPU" in devices._no_gpu("13.0", "580.1", {"CUDA_VISIBLE_DEVICES": ""}).found
    assert devices._no_gpu("13.0", None, {}).level is Level.NOTE
    assert devices._no_gpu(None, None, {}).level is Level.NOTE


def test_the_driver_is_asked_of_its_own_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '| NVIDIA-SMI 580.159.03   Driver Version: 580.159.03   CUDA Version: 13.0 |'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = {finding.subject: finding for finding in devices.devices({})}
    assert found["driver"].found == "580.159.03"
    tool.write_text("#!/bin/sh\necho no devices were found\nexit 6\n")
    assert "driver" not in {finding.subject for finding in devices.devices({})}


def test_every_extra_of_the_package_is_listed_with_its_packages() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    named = {name: {re.match(r"[\w-]+", one)[0] for one in packages} for name, packages in extras.items()}  # type: ignore[index]
    assert named.pop("all") == {"packtrain"}
    del named["dev"]
    assert named == {name: set(packages) for name, (packages, _) in software.EXTRAS.items()}


def test_without_torch_it_runs_and_says_so(tmp_path: Path) -> None:
    """Packages that training needs are not there; the command's own are."""
    block = tmp_path / "sitecustomize.py"
    block.write_text(
        "import sys\n"
        "from importlib import metadata\n"
        "real = metadata.version\n"
        "def version(name):\n"
        "    if name in ('torch', 'accelerate'):\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
        "sys.modules['torch'] = sys.modules['accelerate'] = None\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "NO_COLOR": "1"}
    done = subprocess.run([*CLI, "doctor", "--json"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    found = {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["torch"]["level"] == "broken"
    assert found["torch"]["mend"] == "pip install 'torch>=2.10'"
    assert "torch cannot be imported" in found["devices"]["found"]
    assert found["open files"]["found"]


def test_the_command_prints_a_table() -> None:
    pytest.importorskip("torch")
    done = warm.run(["doctor"], modules=warm.RANKS)
    assert done.returncode == (1 if "broken  " in done.stdout else 0), done.stderr
    assert "attention" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(("Nothing is broken", "Broken: "))
