"""The report as a person asks for it: the command, what every run ends with, and what it leaves alone."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import packtrain as package
import pytest
from packtrain.pipeline.cli.console import make_console
from packtrain.pipeline.report.collect import report_of
from packtrain.pipeline.report.page import MOST
from packtrain.pipeline.report.sections import QUESTIONS, print_report
from packtrain.schemas.report import Reject, Report

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Path:
    """A folder with a run that made its report."""
    folder = tmp_path_factory.mktemp("finished")
    rows = [{"prompt": f"count to {n}: ", "completion": " ".join(map(str, range(n % 40 + 1)))} for n in range(300)]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    package.run(
        {
            "out": str(folder / "out"),
            "cache": str(folder / "cache"),
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [{"name": "counts", "format": "prompt_completion", "path": str(folder / "in.jsonl")}],
            "truncate": {"max_length": 128},
            "run": {"workers": 1},
        }
    )
    return folder


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """The same to write in, without its report."""
    shutil.copytree(finished / "out", tmp_path / "out", ignore=shutil.ignore_patterns("report.*"))
    return tmp_path / "out"


def test_every_run_ends_with_a_report(finished: Path) -> None:
    page = (finished / "out" / "report.html").read_bytes()
    assert page.startswith(b"<!DOCTYPE html>")
    assert len(page) < MOST
    report = msgspec.json.decode((finished / "out" / "report.json").read_bytes(), type=Report)
    assert report.absent == {}
    assert report.made is not None
    assert report.made.manifest == json.loads((finished / "out" / "manifest.json").read_text())["hash"]


def test_the_command_writes_and_says_the_same(packtrain: Command, out: Path) -> None:
    manifest = (out / "manifest.json").read_bytes()
    done = packtrain("report", out)
    assert (done.code, done.err) == (0, "")
    asked = [question for name, question in QUESTIONS.items() if name != "overlap"]  # nothing was compared
    for question in asked:
        assert question in done.out
    assert QUESTIONS["overlap"] not in done.out
    assert "\x1b" not in done.out
    assert (out / "manifest.json").read_bytes() == manifest
    assert packtrain("report", out).code == 0, "over the earlier one"


def test_nobody_minds_the_files(packtrain: Command, finished: Path) -> None:
    done = packtrain("verify", finished / "out", "--deep")
    assert done.code == 0, done.out
    done = packtrain("verify", "--repair", finished / "out")
    assert done.code == 0, done.out
    assert "0 files rebuilt" in done.out
    assert (finished / "out" / "report.html").exists()
    datasets = pytest.importorskip("datasets")
    assert len(datasets.load_from_disk(str(finished / "out"))) > 0


def test_it_is_the_same_run_with_and_without_a_report(
    finished: Path, tmp_path: Path, packtrain: Command, tiny_tokenizer: Path
) -> None:
    command = (
        "run", "--format", "prompt_completion", "--input", finished / "in.jsonl", "--tokenizer", tiny_tokenizer,
        "--workers", 1, "--max-length", 128, "--set", f"cache={finished / 'cache'}", "--out", tmp_path / "out",
        "--set", "tokenizer.engine=tokenizers",
    )  # fmt: skip
    done = packtrain(*command, "--no-report")
    assert done.code == 0, done.err
    assert "report" not in done.out
    assert not (tmp_path / "out" / "report.html").exists()
    again = packtrain(*command).out
    assert "already finished" in again, "a report does not enter the run's identity"
    assert str(tmp_path) in again
    assert packtrain("report", tmp_path / "out").code == 0
    assert "its report" not in packtrain(*command).out
    shutil.rmtree(tmp_path / "out")
    done = packtrain(*command)
    assert re.search(rf"^report: {tmp_path}/out/report.html\n  \S.+\.$", done.out, re.MULTILINE)


def test_json_is_all_that_is_printed(packtrain: Command, out: Path, tmp_path: Path) -> None:
    done = packtrain("report", out, "--json")
    assert (done.code, done.err) == (0, "")
    report = msgspec.convert(json.loads(done.out), type=Report)
    assert report.packing is not None
    assert report.training is not None
    assert report.training.rows
    assert not (out / "report.html").exists()
    packtrain("report", out, "--json", "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "page.json").exists()


def test_options(packtrain: Command, out: Path) -> None:
    done = packtrain("report", out, "--json", "--lengths", "64,512", "--max-length-limit", 64)
    assert done.code == 0, done.err
    report = msgspec.convert(json.loads(done.out), type=Report)
    assert report.choice is not None
    assert {one.max_length for one in report.choice.points} == {64, 128, 512}
    assert report.choice.advice is not None
    assert report.choice.advice.max_length == 64


def test_a_report_that_fails_fails_no_run(
    packtrain: Command, tmp_path: Path, tiny_tokenizer: Path, finished: Path
) -> None:
    """Something stands where the page should: the run is finished, and says so."""
    command = (
        "run", "--format", "prompt_completion", "--input", finished / "in.jsonl", "--tokenizer", tiny_tokenizer,
        "--workers", 1, "--set", f"cache={finished / 'cache'}", "--out", tmp_path / "out",
    )  # fmt: skip
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


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_summary_keeps_to_its_width(finished: Path, width: int, capsys: pytest.CaptureFixture[str]) -> None:
    console = make_console()
    console.width = width
    print_report(console, report_of(finished / "out"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 40
    assert max(len(line) for line in lines if "rejects.jsonl" not in line) <= width, "a path can be copied whole"


def test_the_summary_is_inert(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever stands in a text of the report, none of it reaches the terminal as a command."""
    hostile = "\x1b[31m[bold]x[/bold]\u202e\x07"

    def poison(value: Any) -> Any:
        if isinstance(value, str):
            return hostile + value
        if isinstance(value, list):
            return [poison(one) for one in value]
        if isinstance(value, dict):
            return {key: poison(one) for key, one in value.items()}
        return value

    plain = msgspec.to_builtins(report_of(finished / "out"))
    plain["flow"]["rejects"] = [msgspec.to_builtins(Reject("s", "f", 1, "r", "d"))]
    plain["flow"]["rejected"] = {hostile: 1}
    plain["flow"]["reasons"] = {hostile: "why"}
    plain["absent"] = {"made": "gone"}
    plain["made"] = None
    report = msgspec.convert(poison(plain), type=Report)
    print_report(make_console(), report)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\x07" not in shown
    assert "[bold]x[/bold]" in shown, "no markup is read"


def test_nothing_heavy_is_imported_for_it(finished: Path) -> None:
    code = (
        "import sys\n"
        "from packtrain.pipeline.report.collect import report_of\n"
        "from packtrain.pipeline.report.page import report_html\n"
        f"report_html(report_of({str(finished / 'out')!r}))\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "datasets", "pandas", "polars"} & set(done.stdout.split())


def test_a_run_that_shares_its_work_writes_it_once(finished: Path, tmp_path: Path, tiny_tokenizer: Path) -> None:
    config = {
        "out": str(tmp_path / "out"),
        "cache": str(finished / "cache"),
        "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
        "sources": [{"name": "counts", "format": "prompt_completion", "path": str(finished / "in.jsonl")}],
        "run": {"workers": 1, "shard": "0/2"},
    }
    package.run(config)
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.slow
def test_a_dataset_on_an_object_store(
    packtrain: Command, finished: Path, tmp_path: Path, tiny_tokenizer: Path, faulty: Any
) -> None:
    """Its report is made from far away, and written there."""
    place = f"s3://mules/{tmp_path.name}"
    package.run(
        {
            "out": f"{place}/out",
            "cache": f"{place}/cache",
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [{"name": "counts", "format": "prompt_completion", "path": str(finished / "in.jsonl")}],
            "truncate": {"max_length": 128},
            "run": {"workers": 1, "scratch": str(tmp_path / "scratch")},
        }
    )
    written = msgspec.json.decode(faulty.get(f"{tmp_path.name}/out/report.json"), type=Report)
    near = msgspec.json.decode((finished / "out" / "report.json").read_bytes(), type=Report)
    assert written.absent == {}
    assert (written.choice, written.training, written.packing) == (near.choice, near.training, near.packing)
    done = packtrain("report", f"{place}/out")
    assert (done.code, done.err) == (0, "")
    assert str(place) in done.out
