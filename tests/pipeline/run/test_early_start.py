"""The fork server of a new run starts before the run's modules are imported, and only for a run that needs it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.run.early_start import start_early
from packtrain.schemas.config.config import RunConfig


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
