"""Judges one program: runs its problem's tests in a sandbox, and compares what comes out."""

from dataclasses import dataclass, field
from threading import Event

from ...stages.judge.comparators import Comparator, Rule, Verdict, compare_text, compare_value
from ...stages.judge.problems import Problem, expected_texts
from .sandbox import Execution, ProgramLimits, Sandbox

_CLIP = 2_000
"""Characters of an output or an error that are kept."""


class StoppedError(Exception):
    """The evaluation was asked to stop while a program ran."""


@dataclass(frozen=True, slots=True)
class Judging:
    """How programs are judged: options that decide verdicts."""

    comparator: Comparator = Comparator.tokens_numbers
    limits: ProgramLimits = field(default_factory=ProgramLimits)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What became of one program."""

    verdict: Verdict
    rule: Rule | None = None
    """Of a program that passed: the loosest rule that one of its tests needed."""
    failed_test: int | None = None
    """Index of the first test that failed, which is the last that ran."""
    actual: str | None = None
    """Start of what the program printed or returned in that test."""
    detail: str = ""
    """End of what it wrote to standard error in that test."""
    seconds: float = 0.0
    """By the clock, in all its tests."""


def judge(sandbox: Sandbox, problem: Problem, code: str, judging: Judging, stop: Event) -> Judgement:
    """Run a program on its problem's tests, up to the first that fails.

    Raises:
        SandboxError: the machine failed.
        StoppedError: `stop` was set meanwhile.
    """
    rules: set[Rule] = set()
    seconds = 0.0
    for at, test in enumerate(problem.inputs):
        execution = sandbox.run(code, problem.function, test, judging.limits, stop)
        if stop.is_set():
            raise StoppedError
        seconds = round(seconds + execution.wall_seconds, 6)
        outcome = _judge_test(problem, at, execution, judging.comparator)
        if isinstance(outcome, Verdict):
            said, detail = _shown(problem, execution), execution.stderr[-_CLIP:]
            return Judgement(verdict=outcome, failed_test=at, actual=said, detail=detail, seconds=seconds)
        rules.add(outcome)
    return Judgement(verdict=Verdict.passed, rule=max(rules, key=list(Rule).index), seconds=seconds)


def _judge_test(problem: Problem, at: int, execution: Execution, comparator: Comparator) -> Rule | Verdict:
    """The rule that accepts the outcome of a test, or why it failed."""
    if execution.failed is not None:
        return execution.failed
    expected = problem.expected[at]
    if execution.value is not None:
        return compare_value(expected, execution.value, comparator, wrapped=problem.wrapped) or Verdict.wrong
    output = execution.output.decode("utf-8", "replace")
    rules = [compare_text(text, output, comparator) for text in expected_texts(expected)]
    return next((rule for rule in rules if rule is not None), Verdict.wrong)


def _shown(problem: Problem, execution: Execution) -> str | None:
    data = execution.output if problem.function is None else execution.value
    if data is None:
        return None
    text = data[: 4 * _CLIP].decode("utf-8", "replace")
    return text if len(text) <= _CLIP else f"{text[:_CLIP]}… ({len(data):,} bytes)"
