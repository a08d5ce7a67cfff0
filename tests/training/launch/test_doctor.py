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
from packtrain.training.launch import doctor
from packtrain.training.launch.doctor import DoctorLine, Level, examine, variables

from tests.support import warm

CLI = [sys.executable, "-m", "packtrain.pipeline.cli"]
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


def levels(environ: dict[str, str]) -> dict[str, Level]:
    return {finding.subject: finding.level for finding in variables(environ)}


def test_this_machine_is_examined_whole() -> None:
    pytest.importorskip("torch")
    findings = examine()
    subjects = {finding.subject for finding in findings}
    assert {"packtrain", "torch", "transformers", "accelerate", "attention", "/dev/shm", "launcher"} <= subjects
    assert all(finding.found for finding in findings)


def test_every_bad_finding_says_what_to_do() -> None:
    with pytest.raises(AssertionError, match="memory"):
        DoctorLine("memory", Level.SLOW, "little", "")


def printed(monkeypatch: pytest.MonkeyPatch, findings: list[DoctorLine], *, as_json: bool) -> tuple[bool, str]:
    said: list[str] = []
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    well = doctor.report(as_json=as_json, width=44, say=said.append)
    return well, "\n".join(said)


def test_a_table_of_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = DoctorLine("torch", Level.GOOD, "2.13.0")
    slow = DoctorLine("/dev/shm", Level.SLOW, "full " * 9, "make room")
    broken = DoctorLine("driver", Level.BROKEN, "old", "upgrade it")
    assert printed(monkeypatch, [torch, slow], as_json=False) == (
        True,
        "torch     good    2.13.0\n"
        "/dev/shm  slow    full full full full full\n"
        "                  full full full full . make\n"
        "                  room\n\n"
        "Nothing is broken. Worth fixing: /dev/shm",
    )
    assert printed(monkeypatch, [broken], as_json=False)[1].endswith("Broken: driver. The fix is beside each")
    well, text = printed(monkeypatch, [torch, broken], as_json=True)
    assert not well
    assert json.loads(text) == {
        "broken": True,
        "findings": [
            {"subject": "torch", "level": "good", "found": "2.13.0", "mend": ""},
            {"subject": "driver", "level": "broken", "found": "old", "mend": "upgrade it"},
        ],
    }


@pytest.mark.parametrize(
    ("environ", "subject", "level"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE", Level.SLOW),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "CUDA_LAUNCH_BLOCKING", Level.SLOW),
        ({"TORCHDYNAMO_DISABLE": "1"}, "TORCHDYNAMO_DISABLE", Level.SLOW),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "TORCH_DISTRIBUTED_DEBUG", Level.SLOW),
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
        ({}, "CUDA_LAUNCH_BLOCKING"),
    ],
)
def test_variables_that_do_not(environ: dict[str, str], subject: str) -> None:
    assert subject not in levels(environ)


def test_versions_that_are_missing_or_too_old() -> None:
    there = {"torch": "2.9.1+cu128", "transformers": "5.23.0"}
    found = {finding.subject: finding for finding in doctor.packages(there.get)}
    assert found["torch"].level is Level.BROKEN
    assert found["torch"].fix == "pip install 'torch>=2.10'"
    assert found["transformers"].level is Level.GOOD
    assert found["accelerate"].level is Level.BROKEN
    assert found["extra train"].level is Level.NOTE
    assert found["extra lora"].found == "peft not installed: low-rank adapters"
    assert found["extra lora"].fix == "pip install 'packtrain[lora]'"
    assert doctor.leading_numbers("2.13.0+cu130") == (2, 13, 0)
    assert doctor.leading_numbers("2.10rc1") == (2, 10)


def test_limits_that_are_small(tmp_path: Path) -> None:
    little = doctor.shared_memory(tmp_path, least=1 << 60)
    assert little.level is Level.SLOW
    assert "--shm-size" in little.fix
    assert doctor.shared_memory(tmp_path / "none").level is Level.SLOW
    assert doctor.shared_memory(tmp_path, least=1).level is Level.GOOD
    (locked,) = doctor.locked_memory(8 << 20, infiniband=tmp_path)
    assert locked.level is Level.BROKEN
    assert doctor.locked_memory(8 << 20, infiniband=tmp_path / "none") == []
    assert doctor.locked_memory(resource.RLIM_INFINITY, infiniband=tmp_path) == []


def test_a_gpu_that_torch_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("torch can use it here")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '| NVIDIA-SMI 580.159.03   Driver Version: 580.159.03   CUDA Version: 13.0 |'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (found,) = doctor.devices()
    assert found.level is Level.BROKEN
    assert "driver 580.159.03" in found.found
    assert "torch's CUDA build" in found.fix
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES= may hide it" in doctor.devices()[0].fix
    tool.write_text("#!/bin/sh\necho no devices were found\nexit 6\n")
    (found,) = doctor.devices()
    assert (found.level, found.found) == (Level.NOTE, "the CPU: there is no GPU driver")


def test_every_extra_of_the_package_is_listed_with_its_packages() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    named = {name: {re.match(r"[\w-]+", one)[0] for one in packages} for name, packages in extras.items()}  # type: ignore[index]
    assert named.pop("all") == {"packtrain"}
    del named["dev"]
    assert named == {name: set(packages) for name, (packages, _) in doctor.EXTRAS.items()}


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
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"}
    done = subprocess.run([*CLI, "doctor", "--json"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    found = {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["torch"]["level"] == "broken"
    assert found["torch"]["mend"] == "pip install 'torch>=2.10'"
    assert "could not be examined: ModuleNotFoundError: " in found["devices"]["found"]
    assert found["/dev/shm"]["found"]


def test_the_command_prints_a_table() -> None:
    pytest.importorskip("torch")
    done = warm.run(["doctor"], modules=warm.RANKS)
    assert done.returncode == (1 if "broken  " in done.stdout else 0), done.stderr
    assert "attention" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(("Nothing is broken", "Broken: "))
