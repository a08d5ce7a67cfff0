"""Whether what a program gave is what is expected. A large output is parsed in a process of its own, with limits.

Python's lock is held while JSON is parsed: 16 MiB of `[],[],…` took seconds, in which the clocks of all other programs
went on, and so decided over them. What is small is compared at once, in at most a millisecond.
"""

import json
import resource
import subprocess
import sys
from typing import Any

from ...schemas.errors import SandboxError
from ...stages.judge.comparators import same_text, same_value
from ...stages.judge.problems import Problem, expected_texts

AT_ONCE = 1 << 16
"""Bytes of an output that is compared in this process."""
_BYTES = 4 << 30
"""Address space of the other process: 16 MiB of JSON become some hundred MiB of values."""
_SECONDS = 300.0
"""How long it may take; it takes seconds."""
_RIGHT, _WRONG = b"right", b"wrong"


def is_right(problem: Problem, at: int, output: bytes) -> bool:
    """Whether the output of a problem's test is what is expected.

    Args:
        at: index of the test.
        output: standard output, or the JSON of what a call returned.

    Raises:
        SandboxError: the process that compares it failed, which says nothing of the program.
    """
    expected, function = problem.expected[at], problem.function is not None
    if len(output) <= AT_ONCE:
        return _is_right(expected, output, function=function, wrapped=problem.wrapped)
    question = json.dumps([expected, function, problem.wrapped]).encode() + b"\n" + output
    # -P prevents the import of what lies in the working directory.
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(command, input=question, capture_output=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"an output of {len(output):,} bytes cannot be compared: {error}") from error
    if done.stdout not in (_RIGHT, _WRONG):
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:300]
        raise SandboxError(f"an output of {len(output):,} bytes cannot be compared: the process ended with {said!r}")
    return done.stdout == _RIGHT


def _is_right(expected: Any, output: bytes, *, function: bool, wrapped: bool) -> bool:
    if function:
        return same_value(expected, output, wrapped=wrapped)
    text = output.decode("utf-8", "replace")
    return any(same_text(one, text) for one in expected_texts(expected))


def _main() -> None:
    """Answer one question."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = _BYTES if hard == resource.RLIM_INFINITY else min(_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    head, _, output = sys.stdin.buffer.read().partition(b"\n")
    expected, function, wrapped = json.loads(head)
    try:
        right = _is_right(expected, output, function=function, wrapped=wrapped)
    except MemoryError:  # which what is expected does not need
        right = False
    sys.stdout.buffer.write(_RIGHT if right else _WRONG)


if __name__ == "__main__":
    _main()
