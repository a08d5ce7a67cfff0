"""All of the standard library is there, whatever was loaded before; and a program that fails says why."""

import pytest
from packtrain.pipeline.judge.sandbox.open import SandboxKind, open_sandbox
from packtrain.pipeline.judge.sandbox.programs import Ending, Execution, Program, ProgramLimits

KINDS: tuple[SandboxKind, ...] = ("bubblewrap", "sandlock", "unsafe")


def run(kind: SandboxKind, code: str, function: str | None = None) -> Execution:
    (done,) = open_sandbox(kind).run(Program(code, function, (b"[]",)), ProgramLimits())
    return done


@pytest.mark.parametrize("kind", KINDS)
def test_modules_that_nothing_has_imported_before_are_there(kind: SandboxKind) -> None:
    done = run(kind, "import fileinput, cProfile, pprint, email.message, sqlite3, zoneinfo\nprint(1)")
    assert (done.ending, done.output) == (Ending.finished, b"1\n"), done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_standard_streams_are_as_in_a_program(kind: SandboxKind) -> None:
    done = run(kind, "import sys\nprint(sys.stdin.mode, sys.stdout.mode, sys.stdin.fileno())\nsys.stdout.close()")
    assert (done.ending, done.output) == (Ending.finished, b"r w 0\n"), done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_shows_the_programs_own_error_alone(kind: SandboxKind) -> None:
    for code, function, error in (
        ("def f():\n    nonlocal x\n", None, "SyntaxError: no binding for nonlocal 'x' found"),
        ("def f():\n    return 1 / 0\n", "f", "ZeroDivisionError: division by zero"),
    ):
        done = run(kind, code, function)
        assert done.ending is Ending.error
        assert done.stderr.strip().splitlines()[-1] == error
        assert "another exception" not in done.stderr
