"""An evaluation from files to numbers, in the real sandbox: verdicts, numbers, resuming, refusals."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.judge import evaluation as evaluation_module
from packtrain.pipeline.judge import sandbox as sandbox_module
from packtrain.pipeline.judge.evaluation import run_evaluation
from packtrain.pipeline.judge.sandbox import ProgramLimits, Sandbox, open_sandbox
from packtrain.schemas.errors import ConfigError, InputError, OutputError, PacktrainError, SandboxError

from tests.support.hostile import ACTIVE, EVIL, MARKUP
from tests.support.problems import ANSWERS, sample_rows, write_problems, write_samples

LIMITS = ProgramLimits(wall_seconds=60, cpu_seconds=5)


def results(folder: Path) -> list[dict[str, Any]]:
    """The results in order, without times."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    plain = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    return sorted(plain, key=lambda one: (one["row"], one["sample"]))


def evaluate(folder: Path, out: str = "results", **options: Any) -> dict[str, Any]:
    """Evaluate the samples in a folder."""
    asked: dict[str, Any] = {"samples": folder / "samples.jsonl", "limits": LIMITS, "jobs": 2} | options
    return run_evaluation(folder / "data.jsonl", folder / out, **asked)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A finished evaluation of answers and of references, not to be changed."""
    folder = tmp_path_factory.mktemp("evaluated")
    write_problems(folder / "data.jsonl")
    write_samples(folder / "samples.jsonl")
    evaluate(folder, "references", samples=None)
    return folder, evaluate(folder)


def test_every_sample_has_its_verdict(evaluated: tuple[Path, dict[str, Any]]) -> None:
    found = [(one["id"], one["sample"], one["verdict"]) for one in results(evaluated[0] / "results")]
    assert found == [
        (id, sample, verdict) for id, answers in ANSWERS.items() for sample, (_, verdict) in enumerate(answers)
    ]


def test_the_first_failing_test_and_what_came_out_are_noted(evaluated: tuple[Path, dict[str, Any]]) -> None:
    found = {(one["id"], one["sample"]): one for one in results(evaluated[0] / "results")}
    wrong = found["sum", 2]  # prints 3, which only the first test expects
    assert (wrong["failed_test"], wrong["actual"]) == (1, "3\n")
    assert "ValueError: no" in found["third", 2]["detail"]
    assert found["double", 2]["actual"] == "null"  # what is printed is not what is returned
    assert found["sum", 0]["failed_test"] is None


def test_the_numbers_are_those_of_the_verdicts(evaluated: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = evaluated
    assert summary == json.loads((folder / "results" / "summary.json").read_text())
    said = summary["scores"]
    assert list(said) == ["all", "competition", "interview", "introductory"]
    assert said["all"]["pass@1"]["value"] == pytest.approx((0.5 + 0.25 + 0.5 + 0) / 4)
    assert "pass@5" not in said["all"]  # there are four samples each
    assert (said["all"]["problems"], said["all"]["samples"], said["all"]["passed"]) == (4, 16, 5)
    assert said["introductory"]["pass@1"]["value"] == 0.5
    assert said["competition"]["pass@1"]["value"] == 0
    assert summary["problems_unusable"] == {"no_tests": 1}
    assert summary["evaluation"]["sandbox"] == "bubblewrap"
    assert summary["evaluation"]["limits"]["cpu_seconds"] == 5
    own = json.loads((folder / "references" / "summary.json").read_text())["scores"]["all"]
    assert own == {"problems": 4, "problems_passed": 3, "samples": 7, "passed": 5}  # and no pass@k


def test_an_evaluation_that_is_there_is_not_run_again(
    evaluated: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, summary = evaluated

    def never(*arguments: object) -> None:
        raise AssertionError("a program ran again")

    monkeypatch.setattr(evaluation_module, "judge_sample", never)
    before = (folder / "results" / "results.jsonl").read_bytes()
    again = evaluate(folder, compare=folder / "references")
    assert (folder / "results" / "results.jsonl").read_bytes() == before
    assert again["scores"]["all"]["passed"] == summary["scores"]["all"]["passed"]
    assert list(again["scores"]["all"]["compared"]) == ["pass@1"]  # as its own
    assert again["scores"]["all"]["compared"]["pass@1"]["problems"] == 4


def test_the_page_shows_failures_and_nothing_of_them_is_active(tmp_path: Path) -> None:
    write_problems(tmp_path / "data.jsonl")
    evil = f"```python\nprint({MARKUP + EVIL!r})\nraise ValueError({MARKUP!r})\n```"
    write_samples(tmp_path / "samples.jsonl", [sample_rows()[0] | {"text": evil}])
    evaluate(tmp_path)
    page = (tmp_path / "results" / "report.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "ValueError" in page
    assert "pass@1" in page
    assert not ACTIVE.search(page)


def test_only_references_need_solutions(tmp_path: Path) -> None:
    write_problems(tmp_path / "data.jsonl")
    first, *rest = (tmp_path / "data.jsonl").read_text().splitlines()
    rest[0] = json.dumps(json.loads(rest[0]) | {"solutions": [5]})
    (tmp_path / "data.jsonl").write_text("\n".join([first, *rest]))
    write_samples(tmp_path / "samples.jsonl", sample_rows()[:1])
    assert evaluate(tmp_path)["scores"]["all"]["passed"] == 1
    with pytest.raises(InputError, match=r"line 2: wrong_type: `solutions\[0\]`.* and `solutions`"):
        evaluate(tmp_path, "references", samples=None)
    assert not (tmp_path / "references").exists()


def test_a_machine_without_a_sandbox_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_problems(tmp_path / "data.jsonl")
    write_samples(tmp_path / "samples.jsonl", sample_rows()[:1])
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    for found, said in ((None, "is not installed"), (str(broken), "No permissions to create new namespace")):
        monkeypatch.setattr(sandbox_module, "find_bubblewrap", lambda found=found: found)
        open_sandbox.cache_clear()
        try:
            with pytest.raises(ConfigError, match=said) as refused:
                evaluate(tmp_path)
        finally:
            open_sandbox.cache_clear()
        for advice in ("pip install 'packtrain[eval]'", "seccomp=unconfined", "--unsafe"):
            assert advice in str(refused.value)
        assert refused.value.exit_code == 2
        assert not (tmp_path / "results").exists()


def test_a_failure_of_the_machine_ends_the_evaluation_and_the_same_call_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_problems(tmp_path / "data.jsonl")
    write_samples(tmp_path / "samples.jsonl")
    run, left = Sandbox.run, [4]

    def failing(self: Sandbox, *arguments: Any, **keywords: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise SandboxError("the machine failed")
        return run(self, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(Sandbox, "run", failing)
        with pytest.raises(SandboxError, match="the machine failed") as failed:
            evaluate(tmp_path, jobs=1)
    assert failed.value.exit_code == 1
    assert len(results(tmp_path / "results")) < 16
    assert evaluate(tmp_path)["scores"]["all"]["passed"] == 5


# Resuming


def test_a_cut_last_line_is_judged_again(evaluated: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = evaluated
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "results" / "results.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    evaluate(tmp_path)
    assert results(tmp_path / "results") == results(folder / "results")


@pytest.mark.parametrize(
    ("key", "value"),
    [("failed_test", -1), ("seconds", -0.5), ("seconds", None), ("sample", -1), ("row", 77), ("id", "x")],
)
def test_a_damaged_line_is_refused(
    evaluated: tuple[Path, dict[str, Any]], tmp_path: Path, key: str, value: object
) -> None:
    shutil.copytree(evaluated[0], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "results" / "results.jsonl"
    first, *rest = file.read_bytes().splitlines(keepends=True)
    line = json.dumps(json.loads(first) | {key: value}).encode() + b"\n"
    file.write_bytes(b"".join(rest) + line)
    with pytest.raises(OutputError, match=rf"results\.jsonl, line {len(rest) + 1} is damaged"):
        evaluate(tmp_path)
    (tmp_path / "results" / "results.jsonl.run.json").write_bytes(b"[1]")
    with pytest.raises(OutputError, match=r"results\.jsonl\.run\.json is missing or damaged"):
        evaluate(tmp_path)


def test_another_evaluation_is_refused(evaluated: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = evaluated
    write_problems(tmp_path / "data.jsonl", text=False)  # other bytes
    write_samples(tmp_path / "samples.jsonl", sample_rows()[:4])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    changes: list[tuple[dict[str, Any], str]] = [
        ({"samples": tmp_path / "samples.jsonl"}, "samples: "),
        ({"limits": ProgramLimits(cpu_seconds=7)}, "limits: "),
        ({"unsafe": True}, "sandbox: bubblewrap there, unsafe here"),
    ]
    for change, what in changes:
        with pytest.raises(OutputError, match=rf"is of another command \({what}"):
            evaluate(folder, **change)
    elsewhere = tmp_path / "data.jsonl"
    with pytest.raises(OutputError, match=r"of another command \(data: "):
        run_evaluation(elsewhere, folder / "results", folder / "samples.jsonl", limits=LIMITS)
    with pytest.raises(ConfigError, match=r"judged with other data or options \(data: "):
        run_evaluation(elsewhere, tmp_path / "new", folder / "samples.jsonl", compare=folder / "references")
    assert not (tmp_path / "new").exists()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_link_or_another_thing_in_the_place_of_the_results_is_refused_and_not_followed(
    evaluated: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = evaluated
    victim = tmp_path / "victim"
    victim.write_text('{"comparator": 1}\nmine\ncut')
    out = tmp_path / "out"
    out.mkdir()
    for make in (lambda path: path.symlink_to(victim), os.mkfifo, Path.mkdir):
        make(out / "results.jsonl")
        with pytest.raises(PacktrainError):
            run_evaluation(folder / "data.jsonl", out, folder / "samples.jsonl", limits=LIMITS)
        assert victim.read_text() == '{"comparator": 1}\nmine\ncut'
        (out / "results.jsonl").rmdir() if (out / "results.jsonl").is_dir() else (out / "results.jsonl").unlink()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="holds something else"):
        run_evaluation(folder / "data.jsonl", out, folder / "samples.jsonl", limits=LIMITS)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]
