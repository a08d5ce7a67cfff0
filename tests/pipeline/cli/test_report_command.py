"""The report as a person asks for it: the command, what every run ends with, and what it leaves alone."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import kit

Command = Callable[..., Any]


def configured(folder: Path, out: object, **keys: Any) -> kit.Config:
    """A run that makes a report of the pairs in a folder."""
    counts = {"name": "counts", "format": "prompt_completion", "path": str(folder / "in.jsonl")}
    config = kit.configure(folder, counts, out=str(out), truncate={"max_length": 128}, run={"report": True})
    return kit.merged(config, keys)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that made its report."""
    folder = tmp_path_factory.mktemp("finished")
    kit.write(folder / "in.jsonl", [*kit.corpus("pairs", 300), {}])
    kit.packed(configured(folder, folder / "out"))
    return folder


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """The same to write in, without its report."""
    shutil.copytree(finished / "out", tmp_path / "out", ignore=shutil.ignore_patterns("report.*"))
    return tmp_path / "out"


def test_every_run_ends_with_a_report(finished: Path) -> None:
    page = (finished / "out" / "report.html").read_bytes()
    assert page.startswith(b"<!DOCTYPE html>")
    assert len(page) < 100_000
    report = json.loads((finished / "out" / "report.json").read_text())
    assert report["absent"] == {}
    assert report["made"]["manifest"] == json.loads((finished / "out" / "manifest.json").read_text())["hash"]


def test_it_is_the_same_run_with_and_without_a_report(finished: Path, tmp_path: Path, packtrain: Command) -> None:
    command = ("run", kit.saved(configured(finished, tmp_path / "out")))
    done = packtrain(*command, "--set", "run.report=false")
    assert done.code == 0, done.err
    assert "report" not in done.out
    assert not (tmp_path / "out" / "report.html").exists()
    again = packtrain(*command).out
    assert "already finished" in again, "a report does not enter the run's identity"
    assert str(tmp_path) in again
    assert packtrain("report", tmp_path / "out").code == 0
    assert "Lengths are compared by the report at the end of a run" in packtrain("report", tmp_path / "out").out
    assert "its report" not in packtrain(*command).out
    shutil.rmtree(tmp_path / "out")
    done = packtrain(*command)
    assert re.search(rf"^report: {tmp_path}/out/report.html\n  \S.+\.$", done.out, re.MULTILINE)


def test_a_report_that_fails_fails_no_run(packtrain: Command, tmp_path: Path, finished: Path) -> None:
    """Something stands where the page should: the run is finished, and says so."""
    command = ("run", kit.saved(configured(finished, tmp_path / "out")))
    assert packtrain(*command).code == 0
    for name in ("manifest.json", "report.html", "report.json"):
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / "report.html").mkdir()
    (tmp_path / "out" / "report.html" / "x").touch()
    done = packtrain(*command)
    assert done.code == 0
    (note,) = [line for line in done.out.splitlines() if line.startswith("the report was not written")]
    assert str(tmp_path) in note
    assert "is finished" in done.out
    assert not re.search(r"^report: (?!done in)", done.out, re.MULTILINE)


def test_a_run_that_shares_its_work_writes_it_once(finished: Path, tmp_path: Path) -> None:
    kit.packed(configured(finished, tmp_path / "out", run={"shard": "0/2"}))
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize("noted", ["the run's", "of another run", "cut short", "with no points"])
def test_lengths_are_those_of_the_runs_report(finished: Path, out: Path, packtrain: Command, noted: str) -> None:
    data = json.loads((finished / "out" / "report.json").read_text())
    data["made"]["manifest"] = "0" * 64 if noted == "of another run" else data["made"]["manifest"]
    data["choice"]["points"] = [] if noted == "with no points" else data["choice"]["points"]
    (out / "report.json").write_text(json.dumps(data)[: -9 if noted == "cut short" else None])
    done = packtrain("report", out)
    assert done.code == 0, done.err
    assert ("At each length, with bfd" in done.out) is (noted == "the run's")
    assert ("Lengths are compared by" in done.out) is (noted != "the run's")
