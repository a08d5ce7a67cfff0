"""An evaluation from files to numbers, in the real sandbox: verdicts, numbers, resuming, refusals."""

import errno
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.judge.driver import EvaluationRequest, run_evaluation
from packtrain.pipeline.judge.judging import Judging
from packtrain.pipeline.judge.sandbox import open as open_module
from packtrain.pipeline.judge.sandbox.programs import ProgramLimits
from packtrain.pipeline.judge.sections import sections
from packtrain.pipeline.judge.summary import Summary, scores_json
from packtrain.pipeline.store.local import LocalStore, explain, hash_file
from packtrain.schemas.errors import BusyError, ConfigError, InputError, OutputError, PacktrainError, StoreError
from packtrain.schemas.files import lock
from packtrain.stages.judge.comparators import Comparator
from packtrain.stages.prep.apps import fenced

from tests.support import warm
from tests.support.problems import ANSWERS, PROBLEMS, sample_rows, write_problems, write_samples

JUDGING = Judging(limits=ProgramLimits(wall_seconds=10, cpu_seconds=5))
UNTIMED = ("seconds", "cpu_seconds", "slowest_seconds")


def results(folder: Path) -> list[dict[str, Any]]:
    """The results, without times."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in UNTIMED} for line in lines]


def evaluate(folder: Path, out: str = "results", **options: Any) -> Summary:
    """Evaluate the samples in a folder."""
    asked: dict[str, Any] = {"samples": folder / "samples.jsonl", "judging": JUDGING, "jobs": 2} | options
    return run_evaluation(EvaluationRequest(folder / "data.jsonl", folder / out, **asked))


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """A finished evaluation with its calibration, not to be changed."""
    folder = tmp_path_factory.mktemp("evaluated")
    write_problems(folder / "data.jsonl")
    write_samples(folder / "samples.jsonl")
    return folder, evaluate(folder, calibrate=True)


def test_every_sample_has_its_verdict_and_rule(evaluated: tuple[Path, Summary]) -> None:
    folder, _ = evaluated
    found = [(one["id"], one["sample"], one["verdict"], one["rule"]) for one in results(folder / "results")]
    assert found == [
        (id, sample, verdict, rule)
        for id, answers in ANSWERS.items()
        for sample, (_, verdict, rule) in enumerate(answers)
    ]


def test_the_first_failing_test_and_what_came_out_are_noted(evaluated: tuple[Path, Summary]) -> None:
    found = {(one["id"], one["sample"]): one for one in results(evaluated[0] / "results")}
    wrong = found["sum", 2]  # prints 3, which only the first test expects
    assert (wrong["failed_test"], wrong["tests_run"], wrong["tests_passed"], wrong["actual"]) == (1, 2, 1, "3\n")
    assert "ValueError: no" in found["third", 2]["detail"]
    assert found["double", 2]["actual"] == "null"  # what is printed is not what is returned
    assert found["sum", 0]["failed_test"] is None
    assert found["sum", 3]["tests_run"] == 0


def test_the_numbers_are_those_of_the_verdicts(evaluated: tuple[Path, Summary]) -> None:
    _, summary = evaluated
    said = scores_json(summary)
    assert list(said) == ["all", "introductory", "interview", "competition"]
    assert said["all"]["pass@1"] == pytest.approx((0.5 + 0.25 + 0.5 + 0) / 4)
    assert "pass@5" not in said["all"]  # there are four samples each
    assert (said["all"]["problems"], said["all"]["samples"]) == (4, 16)
    assert said["introductory"]["pass@1"] == 0.5
    assert said["competition"]["pass@1"] == 0
    assert said["all"]["references_pass"]["pass@1"] == pytest.approx(1.25 / 3)
    assert said["all"]["references"] == {
        "problems": 4, "problems_passed": 3, "programs": 7, "programs_passed": 5,
    }  # fmt: skip
    assert summary.unusable == Counter(no_tests=1)
    assert [one.id for one in summary.references.values() if not one.usable] == ["broken"]


def test_the_summary_names_what_ran(evaluated: tuple[Path, Summary]) -> None:
    folder, summary = evaluated
    noted = json.loads((folder / "results" / "summary.json").read_text())
    assert noted["scores"] == json.loads(json.dumps(scores_json(summary)))
    assert noted["sandbox"].split()[0] in ("bubblewrap", "sandlock")
    assert noted["evaluation"]["comparator"] == "tokens+numbers"
    assert noted["evaluation"]["limits"]["cpu_seconds"] == 5
    assert noted["rules"] == {"exact": 2, "numbers": 1, "value": 1, "wrapped": 1}
    assert noted["extraction"] == {"fenced": 1, "fenced as Python": 13, "none": 1, "whole answer": 1}
    assert [one["id"] for one in noted["references_failed"]] == ["broken"]
    page = (folder / "results" / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Print the sum of two numbers." in page


def test_the_references_as_samples_give_what_calibration_says(evaluated: tuple[Path, Summary], tmp_path: Path) -> None:
    folder, _ = evaluated
    rows = [
        {"id": one["id"], "row": row, "sample": sample, "text": fenced(code)}
        for row, one in enumerate(PROBLEMS)
        for sample, code in enumerate(one["solutions"])
    ]
    write_problems(tmp_path / "data.jsonl", text=False)
    write_samples(tmp_path / "samples.jsonl", rows)
    evaluate(tmp_path)

    def but_for_extraction(folder: Path) -> list[dict[str, Any]]:
        return [{**one, "extraction": None} for one in results(folder)]

    assert but_for_extraction(tmp_path / "results") == but_for_extraction(folder / "results" / "calibration")


def test_comparing_with_itself_finds_no_difference(evaluated: tuple[Path, Summary]) -> None:
    folder, _ = evaluated
    found = evaluate(folder, compare=folder / "results").compared["all"][1]
    assert (found.value, found.low, found.high, found.p, found.problems) == (0.0, 0.0, 0.0, 1.0, 4)


def test_an_evaluation_that_is_there_is_not_run_again(evaluated: tuple[Path, Summary]) -> None:
    folder, summary = evaluated
    before = (folder / "results" / "results.jsonl").read_bytes()  # with times
    again = evaluate(folder, ks=(2,), calibration=folder / "results" / "calibration")
    assert (folder / "results" / "results.jsonl").read_bytes() == before
    assert again.ks == (2,)
    assert again.calibrated is not None
    assert again.scores[0].passed == summary.scores[0].passed


def test_a_calibration_is_of_references_or_lies_in_an_evaluation(
    evaluated: tuple[Path, Summary], tmp_path: Path
) -> None:
    folder, _ = evaluated
    found = evaluate(folder, calibration=folder / "results")  # it holds samples, and a calibration
    assert found.calibrated is not None
    assert [one.id for one in found.references.values() if not one.usable] == ["broken"]
    shutil.copytree(folder / "results", tmp_path / "samples", ignore=shutil.ignore_patterns("calibration"))
    with pytest.raises(ConfigError, match=r"holds samples of a model, .*eval-apps --calibrate"):
        evaluate(folder, calibration=tmp_path / "samples")


def test_other_options_of_a_calibration_are_named_with_values(evaluated: tuple[Path, Summary], tmp_path: Path) -> None:
    folder, _ = evaluated
    write_samples(tmp_path / "samples.jsonl", sample_rows()[:1])
    other = Judging(Comparator.exact, ProgramLimits(wall_seconds=12, cpu_seconds=6))
    found = run_evaluation(
        EvaluationRequest(folder / "data.jsonl", tmp_path / "out", tmp_path / "samples.jsonl", other,
                          calibration=folder / "results" / "calibration")
    )  # fmt: skip
    (note,) = [one for one in found.notes if "--calibration" in one]
    assert note.endswith(
        "calibration was judged with other options: comparator tokens+numbers, not exact; --timeout 5s, not 6s as here"
    )


def test_the_results_say_why_the_sandbox_is_not_the_first_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_problems(tmp_path / "data.jsonl")
    monkeypatch.setattr(open_module, "find_bubblewrap", lambda: None)
    open_module.open_sandbox.cache_clear()
    try:
        evaluate(tmp_path, samples=None, calibrate=True)
    finally:
        open_module.open_sandbox.cache_clear()
    noted = json.loads((tmp_path / "results" / "summary.json").read_text())["notes"]
    assert noted == ["programs run in sandlock; bubblewrap: not installed"]


def test_samples_of_another_file_are_told_by_their_record(tmp_path: Path) -> None:
    write_problems(tmp_path / "data.jsonl")
    write_samples(tmp_path / "samples.jsonl", sample_rows()[:1])
    record = tmp_path / "samples.jsonl.run.json"
    for data, noted in ((hash_file(tmp_path / "data.jsonl").hash, False), ("0" * 64, True), (None, False)):
        record.write_text(json.dumps({"format": 1, "options": {"data": data}}))
        assert any("was drawn from another file than --data" in one for one in evaluate(tmp_path).notes) is noted
    record.write_text("[")
    assert evaluate(tmp_path).notes == []


def test_a_full_disk_is_a_failure_wherever_it_shows(
    evaluated: tuple[Path, Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: LocalStore, name: str, data: bytes) -> None:
        raise explain(OSError(errno.ENOSPC, "no space"), store.root)

    monkeypatch.setattr(LocalStore, "replace_bytes", full)
    with pytest.raises(StoreError, match=r"is full; free some space, .*run the same command again") as refused:
        evaluate(evaluated[0])
    assert refused.value.exit_code == 1
    assert "cache" not in str(refused.value)


def test_comparators_and_all_tests_decide(tmp_path: Path) -> None:
    write_problems(tmp_path / "data.jsonl")
    write_samples(tmp_path / "samples.jsonl", sample_rows()[:6])
    summary = evaluate(tmp_path, judging=Judging(Comparator.exact, JUDGING.limits, all_tests=True))
    assert "Problems have 2 to 4 samples" in str(sections(summary)[0].blocks)
    found = {(one["id"], one["sample"]): one for one in results(tmp_path / "results")}
    assert found["third", 0]["verdict"] == "wrong"
    assert (found["sum", 2]["tests_run"], found["sum", 2]["tests_passed"]) == (3, 1)
    assert found["sum", 0]["verdict"] == "passed"


# Resuming


def test_a_cut_last_line_is_judged_again(evaluated: tuple[Path, Summary], tmp_path: Path) -> None:
    folder, _ = evaluated
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "results" / "results.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    (tmp_path / "results" / "summary.json").unlink()
    evaluate(tmp_path)
    assert results(tmp_path / "results") == results(folder / "results")
    file.write_bytes(b'{"row": "x"}\n' + file.read_bytes())
    with pytest.raises(OutputError, match="line 1 is damaged"):
        evaluate(tmp_path)


@pytest.mark.slow
def test_a_killed_evaluation_continues(tmp_path: Path) -> None:
    write_problems(tmp_path / "data.jsonl")
    rows = [one | {"sample": one["sample"] + 4 * at} for at in range(3) for one in sample_rows()]
    for one in rows:  # so that no two programs are the same
        one["text"] = one["text"].replace("\n```", f"\n# {one['sample']}\n```")
    write_samples(tmp_path / "samples.jsonl", rows)
    evaluate(tmp_path, "undisturbed")
    line = ["eval-apps", "samples.jsonl", "--data", "data.jsonl", "--out", "killed", "--jobs", 1, "--timeout", "5s"]
    file = tmp_path / "killed" / "results.jsonl"
    for wanted in (1, 10, 20):
        process = warm.Process(line, cwd=tmp_path)
        end = time.monotonic() + 60
        while not (file.exists() and file.read_bytes().count(b"\n") >= wanted):
            assert time.monotonic() < end
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
        assert not (tmp_path / "killed" / "summary.json").exists()
    done = warm.run(line, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "killed") == results(tmp_path / "undisturbed")


def test_another_evaluation_is_refused(evaluated: tuple[Path, Summary], tmp_path: Path) -> None:
    folder, _ = evaluated
    write_problems(tmp_path / "data.jsonl", text=False)  # other bytes
    write_samples(tmp_path / "samples.jsonl", sample_rows()[:4])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    longer = Judging(limits=ProgramLimits(wall_seconds=10, cpu_seconds=6))
    changes: list[tuple[dict[str, Any], str]] = [
        ({"samples": tmp_path / "samples.jsonl"}, "other samples"),
        ({"judging": Judging(Comparator.exact, JUDGING.limits)}, r"comparator tokens\+numbers, not exact"),
        ({"judging": longer}, "--timeout 5s, not 6s"),
        ({"sandbox": "unsafe"}, "not unsafe"),
    ]
    for change, what in changes:
        with pytest.raises(OutputError, match=what):
            evaluate(folder, **change)
    elsewhere = tmp_path / "data.jsonl"
    with pytest.raises(OutputError, match="other data"):
        run_evaluation(EvaluationRequest(elsewhere, folder / "results", folder / "samples.jsonl", JUDGING))
    other = EvaluationRequest(
        elsewhere, tmp_path / "new", folder / "samples.jsonl", JUDGING, compare=folder / "results"
    )  # fmt: skip
    with pytest.raises(ConfigError, match="is an evaluation of other data"):
        run_evaluation(other)
    calibrated = EvaluationRequest(
        elsewhere, tmp_path / "new", folder / "samples.jsonl", JUDGING, calibration=folder / "results"
    )  # fmt: skip
    with pytest.raises(ConfigError, match="is a calibration of other data"):
        run_evaluation(calibrated)
    assert not (tmp_path / "new").exists()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_folder_with_something_else_is_refused(evaluated: tuple[Path, Summary], tmp_path: Path) -> None:
    folder, _ = evaluated
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for out, what in (
        (tmp_path, "holds something else"),
        (tmp_path / "notes.txt" / "x", "is a file, not a folder"),
        (tmp_path / "link", "is a link to nothing"),
    ):
        with pytest.raises(OutputError, match=what):
            run_evaluation(EvaluationRequest(folder / "data.jsonl", out, folder / "samples.jsonl", JUDGING))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "notes.txt"]


def test_two_at_once_do_not_mix(evaluated: tuple[Path, Summary]) -> None:
    folder, _ = evaluated
    descriptor = os.open(folder / "results" / ".evaluation.lock", os.O_RDWR)
    try:
        assert lock.lock(descriptor, wait=False)
        with pytest.raises(BusyError, match="another evaluation is writing"):
            evaluate(folder)
    finally:
        lock.release(descriptor)


# Bad input, before any work

Spoil = Callable[[Path], object]


def other_rows(change: Callable[[list[dict[str, Any]]], object]) -> Spoil:
    def write(folder: Path) -> None:
        rows = sample_rows()
        change(rows)
        write_samples(folder / "samples.jsonl", rows)

    return write


def cut(folder: Path) -> None:
    file = folder / "samples.jsonl"
    file.write_bytes(file.read_bytes()[:-9])


def holds(name: str, data: bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(data)


def without(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def nothing(folder: Path) -> None:
    """Leave the files as they are."""


REFUSED: list[tuple[Spoil, dict[str, Any], type[PacktrainError], str]] = [
    (other_rows(lambda rows: [one.update(id="x") for one in rows[:4]]), {}, InputError, "'x', which .* does not have"),
    (other_rows(lambda rows: [one.update(row=17) for one in rows[:4]]), {}, InputError, "has no row 17"),
    (other_rows(lambda rows: [one.update(row=one["row"] + 1) for one in rows]), {}, InputError, "made from another"),
    (other_rows(lambda rows: rows.append(rows[0])), {}, InputError, "is there twice"),
    (other_rows(lambda rows: rows[0].pop("text")), {}, InputError, "line 1.*`text`"),
    (cut, {}, InputError, "last line is cut short"),
    (holds("samples.jsonl", b"\x00\xff" * 50 + b"\n"), {}, InputError, "line 1: not JSON"),
    (holds("samples.jsonl", b""), {}, InputError, "holds no samples"),
    (holds("data.jsonl", b"\x89PNG\r\n\x1a\n" * 9), {}, InputError, "data.jsonl"),
    (holds("data.jsonl", b""), {}, InputError, "is empty"),
    (holds("data.jsonl", b'{"messages": []}\n'), {}, InputError, "line 1: missing_key"),
    (holds("data.jsonl", b'{"question": "q", "id": "sum"}\n' * 3), {}, InputError, "none of its 3 rows"),
    (nothing, {"ks": (1, 5)}, ConfigError, "-k 5: .* row 0 has 4"),
    (nothing, {"ks": (0,)}, ConfigError, "must be at least 1"),
    (nothing, {"samples": None}, ConfigError, "give a samples file, or --calibrate"),
    (without("data.jsonl"), {}, ConfigError, "no such file"),
    (without("samples.jsonl"), {}, InputError, "cannot be read"),
    (nothing, {"compare": Path("nowhere")}, ConfigError, "--compare nowhere holds no evaluation"),
    (nothing, {"calibration": Path("nowhere")}, ConfigError, "--calibration nowhere"),
    (nothing, {"calibration": Path("x"), "calibrate": True}, ConfigError, "give one of them"),
]


@pytest.mark.parametrize(("spoil", "options", "error", "what"), REFUSED, ids=[what for *_, what in REFUSED])
def test_bad_input_is_refused_before_anything_is_written(
    tmp_path: Path, spoil: Spoil, options: dict[str, Any], error: type[PacktrainError], what: str
) -> None:
    write_problems(tmp_path / "data.jsonl")
    write_samples(tmp_path / "samples.jsonl")
    spoil(tmp_path)
    with pytest.raises(error, match=what) as refused:
        evaluate(tmp_path, **options)
    assert refused.value.exit_code == 2
    assert not (tmp_path / "results").exists()


def test_no_reference_to_calibrate_with(tmp_path: Path) -> None:
    row = {"id": 1, "question": "q", "input_output": {"inputs": ["1"], "outputs": ["1"]}, "solutions": ""}
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="has both tests and solutions"):
        evaluate(tmp_path, samples=None, calibrate=True)
