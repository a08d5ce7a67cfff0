"""What running a program's tests in a sandbox costs, beside a bare subprocess for each test.

    PACKTRAIN_REALDATA=… python tests/bench/bench_judge.py [--problems 153] [--tests 10]

Two workloads: a program that prints one number, on 100 tests; and the first solution of each APPS problem that reads
stdin, on its own tests. Each test also runs as `subprocess.run([python, "-I", "-S", file])`, in the same process, with
kinds taking turns. All one at a time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from packtrain.pipeline.judge.programs import Ending, Program, ProgramLimits
from packtrain.pipeline.judge.sandbox import open_sandbox

LIMITS = ProgramLimits()
KINDS = ("bare", "bubblewrap", "unsafe")


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--tests", type=int, default=10)
    parser.add_argument("--trivial", type=int, default=100)
    arguments = parser.parse_args()
    table(f"{arguments.trivial} tests that print one number", [Program("print(1)", None, (b"",) * arguments.trivial)])
    if "PACKTRAIN_REALDATA" in os.environ:
        data = Path(os.environ["PACKTRAIN_REALDATA"], "apps", "train.jsonl")
        programs = list(solutions(data, arguments.tests))[: arguments.problems]
        table(f"{len(programs)} APPS solutions, {sum(len(one.inputs) for one in programs)} tests", programs)


def solutions(data: Path, tests: int) -> Iterator[Program]:
    """The first solution of each problem that reads stdin, with some of its tests."""
    for line in data.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if not row["solutions"] or not row["input_output"]:
            continue
        cases = json.loads(row["input_output"])
        if cases.get("fn_name") is None:
            inputs = (one if isinstance(one, str) else "\n".join(one) for one in cases["inputs"][:tests])
            yield Program(json.loads(row["solutions"])[0], None, tuple(one.encode() for one in inputs))


def table(title: str, programs: list[Program]) -> None:
    """Prints milliseconds a test, by kind."""
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    finished = dict.fromkeys(KINDS, 0)
    for program in programs:
        for kind in KINDS:
            for seconds, ended in bare(program) if kind == "bare" else boxed(kind, program):
                times[kind].append(seconds)
                finished[kind] += ended
    print(f"{title}:\n\n| | median ms a test | finished | all s |\n| --- | --: | --: | --: |")
    for kind, found in times.items():
        print(f"| {kind} | {statistics.median(found) * 1e3:.1f} | {finished[kind]} | {sum(found):.1f} |")
    print()


def bare(program: Program) -> Iterator[tuple[float, bool]]:
    """(seconds, whether it ended well) of each test in an ordinary process."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as file:
        # `-S` leaves out `exit` and `quit`, which many of the programs call.
        file.write(f"from sys import exit, exit as quit\n{program.code}")
        file.flush()
        for test in program.inputs:
            began = time.perf_counter()
            try:
                done = subprocess.run(
                    [os.path.realpath(sys.executable), "-I", "-S", file.name],
                    input=test, capture_output=True, check=False, timeout=LIMITS.wall_seconds,
                )  # fmt: skip
                ended = done.returncode == 0
            except subprocess.TimeoutExpired:
                ended = False
            yield time.perf_counter() - began, ended


def boxed(kind: str, program: Program) -> Iterator[tuple[float, bool]]:
    """As `bare`, in a sandbox."""
    for done in open_sandbox(unsafe=kind == "unsafe").run(program, LIMITS):
        yield done.wall_seconds, done.ending is Ending.finished


if __name__ == "__main__":
    main()
