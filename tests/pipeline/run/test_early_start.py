"""What starts before the run's modules are imported: the fork server, only for a run that needs it, and the check of an
interrupted run's shards.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.execute.checking import CheckAhead
from packtrain.pipeline.run.early_start import start_early
from packtrain.pipeline.store.checksummed import seal, unseal
from packtrain.schemas.config.config import RunConfig

from tests.support import warm


@pytest.fixture(autouse=True)
def fresh_server() -> Iterator[None]:
    """No fork server runs before the test, nor after it."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def starts(config: dict[str, Any], base: Path) -> bool:
    start_early(RunConfig.model_validate(config), base)
    return forkserver._forkserver._forkserver_pid is not None  # type: ignore[attr-defined]


@pytest.fixture
def new(tiny_tokenizer: Path) -> dict[str, Any]:
    """A run of two workers that finds nothing of an earlier one."""
    return {
        "version": 1,
        "out": "out",
        "cache": "cache",
        "tokenizer": {"path": str(tiny_tokenizer)},
        "sources": [{"name": "rows", "path": "rows.jsonl"}],
        "truncate": {"max_length": 64},
        "run": {"workers": 2},
    }


def test_a_new_run_of_several_workers_starts_it(new: dict[str, Any], tmp_path: Path) -> None:
    assert starts(new, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"run": {"workers": 1}},
        {"run": {"workers": 2, "memory": "1GiB"}},
        {"run": {"workers": 2, "memory": "1MiB"}},
        {"run": {"workers": 2, "executor": "static", "shard": "0/2"}},
        {"run": {"workers": 2, "executor": "ray"}},
        {"run": {"workers": 2, "wait": "1min"}},
        {"out": "s3://bucket/out"},
        {"out": "s3://"},
        {"cache": "s3://bucket/cache"},
        {"tokenizer": {"path": "owner/name"}},
        {"out": "there"},
        {"cache": "there"},
    ],
)
def test_other_runs_do_not(changes: dict[str, Any], new: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "there" / "encoded").mkdir(parents=True)
    assert not starts(new | changes, tmp_path)


def test_a_run_that_fails_leaves_no_process(new: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(json.dumps(new))
    command = [sys.executable, "-m", "packtrain.pipeline.cli", "run", str(path)]
    # It waits until every process that was started has closed the two pipes.
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert "rows.jsonl" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


# Interrupted runs


@pytest.fixture
def interrupted(little: Any, tmp_path: Path) -> dict[str, Any]:
    """The configuration of a run without its manifest."""
    config: dict[str, Any] = json.loads(little.copy(tmp_path).read_text())
    (tmp_path / "out" / "manifest.json").unlink()
    return config


def check(config: dict[str, Any], base: Path) -> CheckAhead | None:
    return start_early(RunConfig.model_validate(config), base)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_shards_of_an_interrupted_run_are_checked(
    interrupted: dict[str, Any], tmp_path: Path, workers: int
) -> None:
    assert starts(interrupted | {"run": {"workers": workers}}, tmp_path) == (workers > 1)
    shards = sorted(path.relative_to(tmp_path / "out").as_posix() for path in tmp_path.glob("out/*/shards/*"))
    assert len(shards) > 3
    flip(tmp_path / "out" / shards[2])
    begun = check(interrupted, tmp_path)
    assert begun is not None
    with begun:
        assert sorted(file.name for file in begun.files) == shards
        assert begun.damaged() == {shards[2]}


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_shard_that_is_found_early_is_made_again(
    little: Any, interrupted: dict[str, Any], tmp_path: Path
) -> None:
    shard = sorted(tmp_path.glob("out/train/shards/*"))[1]
    flip(shard)
    done = warm.run(["run", tmp_path / "run.yaml"])
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{shard} is damaged, and is made again" in done.stdout.replace("\n", " ").replace("  ", " ")
    assert little.files(tmp_path / "out") == little.files()


def a_finished_run(out: Path) -> None:
    (out / "manifest.json").write_text("{}")


def a_run_without_plan(out: Path) -> None:
    (out / "_run" / "plan.json").unlink()


def a_link_that_leads_out(out: Path) -> None:
    (out.parent / "elsewhere").mkdir()
    (out / "train" / "more").symlink_to(out.parent / "elsewhere")


def a_damaged_record(out: Path) -> None:
    flip(out / "_run" / "train" / "shards" / "00000.json")


def a_name_that_leads_out(out: Path) -> None:
    record = out / "_run" / "train" / "shards" / "00000.json"
    content = unseal(record.read_bytes())
    assert content is not None
    record.write_bytes(seal(content.replace(b'"train/shards/', b'"../in/shards/')))


@pytest.mark.parametrize(
    "change", [a_finished_run, a_run_without_plan, a_link_that_leads_out, a_damaged_record, a_name_that_leads_out]
)
def test_other_folders_are_left_to_the_run(
    interrupted: dict[str, Any], tmp_path: Path, change: Callable[[Path], None]
) -> None:
    change(tmp_path / "out")
    assert check(interrupted, tmp_path) is None
