"""The loop: failures of the machine, equal programs, and what a stop leaves."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from packtrain.pipeline.judge import judging
from packtrain.pipeline.judge.attempts import attempts_of_samples
from packtrain.pipeline.judge.evaluation import Evaluation, evaluate
from packtrain.pipeline.judge.judging import Judging
from packtrain.pipeline.judge.problem_file import open_problems
from packtrain.pipeline.judge.results_file import SampleResult, read_results
from packtrain.pipeline.judge.sandbox.open import open_sandbox
from packtrain.pipeline.judge.sandbox.programs import Execution, Program, ProgramLimits
from packtrain.pipeline.judge.summary import summarise
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.samples.samples_file import read_samples
from packtrain.schemas.errors import OutputError, SandboxError
from packtrain.stages.judge.verdicts import Verdict

from tests.support.problems import SUM, sample_rows, write_problems, write_samples


@dataclass
class FailingSandbox:
    """A real sandbox on a machine that fails for some programs: the first times that they are run, or always."""

    failures: dict[str, int]
    """Text in a program → how often it fails to run."""
    name: str = "unsafe"
    version: str = "on a bad machine"
    note: str | None = None
    after: int = 1
    """Tests that a program runs before the machine fails."""
    runs: list[str] = field(default_factory=list)

    def run(self, program: Program, limits: ProgramLimits) -> Iterator[Execution]:
        """See `Sandbox`."""
        self.runs.append(program.code)
        tests = open_sandbox("unsafe").run(program, limits)
        for text in self.failures:
            if text in program.code and self.failures[text]:
                self.failures[text] -= 1
                for _ in range(self.after):
                    yield next(tests)
                raise SandboxError("the disk is full")
        yield from tests


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow one another at once."""
    monkeypatch.setattr(judging, "_PAUSE_SECONDS", 0.001)


def run(folder: Path, sandbox: FailingSandbox, rows: list[dict[str, object]]) -> dict[tuple[int, int], SampleResult]:
    """Evaluate samples; returns the results, of which the summary is checked on the way."""
    samples = write_samples(folder / "samples.jsonl", rows)
    with open_problems(write_problems(folder / "data.jsonl")) as problems:
        attempts = attempts_of_samples(read_samples(samples), samples, problems)
        evaluation = Evaluation(folder / "results", problems, attempts, "0" * 64, Judging(), sandbox, 1)
        results = evaluate(evaluation, Silent())
        summary = summarise(evaluation, results, (1,), "samples.jsonl")
    failed = sum(one.outcome.verdict is Verdict.machine_failure for one in results.values())
    assert summary.machine_failures == failed
    assert summary.scores[0].samples == len(rows) - failed
    return results


def test_a_machine_that_fails_now_and_then_changes_nothing(tmp_path: Path) -> None:
    sandbox = FailingSandbox({SUM: 2})
    results = run(tmp_path, sandbox, sample_rows()[:2])
    assert {one.outcome.verdict for one in results.values()} == {Verdict.passed}
    assert len(sandbox.runs) == 3


def test_what_the_machine_cannot_run_is_left_out_and_tried_again_later(tmp_path: Path) -> None:
    rows = sample_rows()[:3]
    results = run(tmp_path, FailingSandbox({SUM: 3}), rows)
    assert [results[0, at].outcome.verdict for at in range(3)] == [
        Verdict.machine_failure, Verdict.machine_failure, Verdict.wrong,
    ]  # fmt: skip
    assert results[0, 0].outcome.detail == "the disk is full"
    again = FailingSandbox({})
    results = run(tmp_path, again, rows)
    assert [results[0, at].outcome.verdict for at in range(3)] == [Verdict.passed, Verdict.passed, Verdict.wrong]
    assert again.runs == [SUM]
    assert read_results(tmp_path / "results", {0: "sum"}) == results


def test_a_machine_that_always_fails_ends_the_evaluation(tmp_path: Path) -> None:
    rows = [one | {"text": f"```python\nprint({at})\n```"} for at, one in enumerate(sample_rows())]
    with pytest.raises(SandboxError, match="failed for 8 programs in a row: the disk is full"):
        run(tmp_path, FailingSandbox({"print": 10**6}, after=0), rows)
    results = run(tmp_path, FailingSandbox({}), rows)
    assert len(results) == len(rows)


def test_equal_programs_for_a_problem_run_once(tmp_path: Path) -> None:
    code = "```python\nprint(input())\n```"
    rows = [one | {"text": code} for one in sample_rows()]
    sandbox = FailingSandbox({})
    results = run(tmp_path, sandbox, rows)
    assert len(results) == 16
    assert len(sandbox.runs) == 4  # one for each problem


def test_a_sandbox_that_stops_early_is_a_failure_of_the_machine(tmp_path: Path) -> None:
    class EarlySandbox(FailingSandbox):
        def run(self, program: Program, limits: ProgramLimits) -> Iterator[Execution]:
            yield next(open_sandbox("unsafe").run(program, limits))

    results = run(tmp_path, EarlySandbox({}), sample_rows()[:1])
    assert results[0, 0].outcome.verdict is Verdict.machine_failure
    assert "after 1 of 3 tests" in results[0, 0].outcome.detail


def test_a_result_of_another_problem_is_refused(tmp_path: Path) -> None:
    rows = sample_rows()[:2]
    run(tmp_path, FailingSandbox({}), rows)
    file = tmp_path / "results" / "results.jsonl"
    first, second = file.read_text().splitlines(keepends=True)
    file.write_text(first + second.replace('"row":0', '"row":999'))
    with pytest.raises(OutputError, match=r"results.jsonl, line 2 is damaged .*another problem in row 999, or none"):
        run(tmp_path, FailingSandbox({}), rows)
