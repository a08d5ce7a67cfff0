"""docs/running.md, on several machines: what it tells people to type is what the program takes."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from packtrain.pipeline.dataset.manifests import read_manifest
from packtrain.pipeline.store.local import LocalStore

from tests.support import warm

Command = Callable[..., Any]
PAGE = (Path(__file__).parents[3] / "docs" / "running.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHELL = [text for kind, text in BLOCKS if kind == "sh"]
YAML = [yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml"]


@pytest.fixture
def folder(tmp_path: Path, tiny_tokenizer: Path) -> Path:
    """A folder with the page's configurations, which pack into `packed` if nothing else is said."""
    for number in range(6):
        (tmp_path / f"in-{number}.jsonl").write_text(f'{{"text": "hello world {number}"}}\n' * 20)
    config = {
        "out": "packed",
        "tokenizer": {"path": str(tiny_tokenizer)},
        "sources": [{"name": "a", "format": "text", "path": "in-*.jsonl"}],
        "run": {"workers": 1, "report": False},
    }
    for name in ("config.yaml", "mix.yaml"):
        (tmp_path / name).write_text(yaml.safe_dump(config))
    return tmp_path


def shell(script: str, folder: Path, program: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    path = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    path |= {key: value for key, value in os.environ.items() if key.startswith("PACKTRAIN_") or key == "PYTHONPATH"}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=path | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def bin(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return warm.install(tmp_path / "bin")


def test_every_option_on_the_page_is_one(packtrain: Command) -> None:
    known = {name: set(re.findall(r"--[\w-]+", packtrain(name, "--help").out)) for name in ("run", "wait")}
    used = re.findall(r"packtrain (run|wait)\b([^\n;&']*)", "\n".join(SHELL) + str(YAML))
    assert len(used) >= 10
    for name, rest in used:
        assert set(re.findall(r"(?<!\w)--[\w-]+", rest.partition("#")[0])) <= known[name], rest


def test_the_scripts_are_bash() -> None:
    for script in SHELL:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.slow
def test_the_three_shards_of_the_page_make_one_dataset(folder: Path, bin: Path) -> None:
    (script,) = (script for script in SHELL if "--shard 0/3" in script)
    done = shell(script, folder, bin)
    assert (done.returncode, done.stderr) == (0, "")
    manifest = read_manifest(LocalStore(folder / "three"))
    assert manifest is not None
    (waiting,) = (script for script in SHELL if script.startswith("packtrain wait /shared"))
    line = waiting.splitlines()[0].replace("/shared/packed", "three")
    assert shell(line, folder, bin).stdout == f"three is finished: manifest {manifest.hash[:16]}\n"


@pytest.mark.slow
def test_the_array_and_the_indexed_job_run_what_they_say(folder: Path, bin: Path) -> None:
    (array,) = (script for script in SHELL if "--array" in script)
    command = array.splitlines()[-1].removeprefix("srun ").replace("--workers 16", "--workers 1")
    for index in ("1", "0"):
        done = shell(command, folder, bin, SLURM_ARRAY_TASK_ID=index, SLURM_ARRAY_TASK_COUNT="2")
        assert (done.returncode, done.stderr) == (0, "")
    (job,) = (one for one in YAML if one.get("kind") == "Job")
    spec = job["spec"]["template"]["spec"]
    script = spec["containers"][0]["command"][2].replace("/etc/packtrain/", "")
    assert f"/{job['spec']['completions']}" in script
    done = shell(script, folder, bin, JOB_COMPLETION_INDEX="15")
    assert (done.returncode, done.stderr) == (0, "")
