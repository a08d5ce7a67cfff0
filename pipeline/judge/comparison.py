"""Whether what a program gave is what is expected. A large output is parsed in a process of its own, with limits.

While Python parses JSON, it holds the interpreter's lock. 16 MiB of `[],[],…` hold it for seconds, in which the time
limits of all other programs run on, so that they would fail for it. An output of up to `MAX_INLINE_BYTES` is compared
in this process, in at most a millisecond.
"""

import json
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from ...schemas.errors import SandboxError
from ...stages.judge.comparators import same_text, same_value

if TYPE_CHECKING:
    # numpy and Arrow come with it. Without them, the comparing process starts with 0.04 s of a core in place of 0.2 s.
    from ...stages.judge.problems import Problem

MAX_INLINE_BYTES = 1 << 16
"""Bytes of the largest output that is compared in this process."""
_ADDRESS_SPACE_BYTES = 4 << 30
"""Limit of the comparing process: 16 MiB of JSON become some hundred MiB of values."""
_TIMEOUT_SECONDS = 300.0
"""Limit of the comparing process, which takes seconds."""
_CORRECT = b"right"
_INCORRECT = b"wrong"


def is_correct(problem: "Problem", test_index: int, output: bytes) -> bool:
    """Whether the output of a test is what the problem expects.

    Args:
        test_index: index of the test in the problem.
        output: standard output, or the JSON of what a call returned.

    Raises:
        SandboxError: the process that compares it failed, which says nothing of the program.
    """
    from ...stages.judge.problems import expected_texts  # here, because the comparing process starts faster without

    expected = problem.expected[test_index]
    if not problem.is_call:
        expected = expected_texts(expected)
    # Most outputs are small, and starting a process would take longer than the program ran.
    if len(output) <= MAX_INLINE_BYTES:
        return _is_expected(expected, output, is_call=problem.is_call, is_wrapped=problem.is_wrapped)
    question = json.dumps([expected, problem.is_call, problem.is_wrapped]).encode() + b"\n" + output
    # -P prevents the import of what lies in the working directory.
    command = [sys.executable, "-P", "-m", __name__]
    try:
        process = subprocess.run(command, input=question, capture_output=True, check=False, timeout=_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"an output of {len(output):,} bytes cannot be compared: {error}") from error
    if process.stdout not in (_CORRECT, _INCORRECT):
        last_line = process.stderr.decode(errors="replace").strip().rpartition("\n")[2][:300]
        raise SandboxError(
            f"an output of {len(output):,} bytes cannot be compared: the process ended with {last_line!r}"
        )
    return process.stdout == _CORRECT


def _is_expected(expected: Any, output: bytes, *, is_call: bool, is_wrapped: bool) -> bool:
    """Whether an output is the expected one.

    Args:
        expected: of a call, the value; else the texts that may be printed.
    """
    if is_call:
        return same_value(expected, output, is_wrapped=is_wrapped)
    printed = output.decode("utf-8", "replace")
    return any(same_text(text, printed) for text in expected)


def _main() -> None:
    """Answer one question of `is_correct`: a line of JSON, then the output to compare."""
    hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    # A process may not ask for more than its hard limit, which a container or a batch system may have lowered.
    limit = _ADDRESS_SPACE_BYTES if hard_limit == resource.RLIM_INFINITY else min(_ADDRESS_SPACE_BYTES, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))
    first_line, _, output = sys.stdin.buffer.read().partition(b"\n")
    expected, is_call, is_wrapped = json.loads(first_line)
    try:
        correct = _is_expected(expected, output, is_call=is_call, is_wrapped=is_wrapped)
    except MemoryError:  # a right answer is as small as the expected one, and fits
        correct = False
    sys.stdout.buffer.write(_CORRECT if correct else _INCORRECT)


if __name__ == "__main__":
    _main()
