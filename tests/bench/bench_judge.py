"""What running a program's tests in a sandbox costs, beside a bare subprocess for each test.

    PACKTRAIN_REALDATA=… python tests/bench/bench_judge.py [--problems 153] [--tests 10] [--repeat 3]

Two workloads: a program that prints one number, on 100 tests; and the first solution of each APPS problem that reads
stdin, on its own tests. Each test also runs as `subprocess.run([python, "-I", "-S", file])`, in the same process, with
kinds taking turns. A test's overhead is the time from asking for it to having it, less the time that the program's own
process lived; that of a launch is the time of a first test that prints nothing, less that of a second. All one at a
time, on one core at most twice busy (parent and program).
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

from packtrain.pipeline.judge.sandbox.open import SandboxKind, open_sandbox
from packtrain.pipeline.judge.sandbox.programs import Ending, Program, ProgramLimits

KINDS: tuple[SandboxKind, ...] = ("bubblewrap", "sandlock", "unsafe")
LIMITS = ProgramLimits()
Times = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--tests", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    versions = "; ".join(f"{kind} {open_sandbox(kind).version}" for kind in KINDS)
    print(f"{versions}; {os.cpu_count()} cores\n")
    trivial = [Program("print(1)", None, (b"",) * 100)] * arguments.repeat
    table("100 tests that print one number", trivial)
    if "PACKTRAIN_REALDATA" in os.environ:
        data = Path(os.environ["PACKTRAIN_REALDATA"], "apps", "train.jsonl")
        programs = list(solutions(data, arguments.tests))[: arguments.problems]
        table(f"{len(programs)} APPS solutions, {sum(len(one.inputs) for one in programs)} tests", programs)


def solutions(data: Path, tests: int) -> Iterator[Program]:
    for line in data.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if not row["solutions"] or not row["input_output"]:
            continue
        cases = json.loads(row["input_output"])
        if cases.get("fn_name") is None:
            inputs = (one if isinstance(one, str) else "\n".join(one) for one in cases["inputs"][:tests])
            yield Program(json.loads(row["solutions"])[0], None, tuple(one.encode() for one in inputs))


def table(title: str, programs: list[Program]) -> None:
    wall: Times = {}
    inside: Times = {}
    launches: Times = {}
    finished: dict[str, int] = {}
    totals: dict[str, float] = {}
    for program in programs:
        for box in (None, *KINDS):
            kind = box or "bare"
            began = time.perf_counter()
            results = list(boxed(box, program) if box else bare(program))
            totals[kind] = totals.get(kind, 0) + time.perf_counter() - began
            if kind != "bare":
                launches.setdefault(kind, []).append(results[0][0] - results[0][1])
            rest = results if kind == "bare" else results[1:]
            wall.setdefault(kind, []).extend(one[0] for one in rest)
            inside.setdefault(kind, []).extend(one[1] for one in rest)
            finished[kind] = finished.get(kind, 0) + sum(one[2] for one in rest)
    print(f"{title}:\n")
    print("| | test ms | overhead ms | launch ms | in programs | finished | all s |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for name, times in wall.items():
        over = [(a - b) * 1e3 for a, b in zip(times, inside[name], strict=True)]
        launch = f"{statistics.median(launches[name]) * 1e3:.0f}" if name in launches else "–"
        share = f"{sum(inside[name]) / totals[name]:.0%}" if name != "bare" else "–"
        cost = f"{statistics.median(over):.2f}" if name != "bare" else "–"
        print(
            f"| {name} | {statistics.median(times) * 1e3:.2f} | {cost} | {launch} | {share} | {finished[name]} "
            f"| {totals[name]:.1f} |"
        )
    print()


def bare(program: Program) -> Iterator[tuple[float, float, bool]]:
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
            took = time.perf_counter() - began
            yield took, took, ended


def boxed(kind: SandboxKind, program: Program) -> Iterator[tuple[float, float, bool]]:
    """The first of them stands for the launch: the first test a second time."""
    tests = (program.inputs[0], *program.inputs)
    results = open_sandbox(kind).run(Program(program.code, None, tests), LIMITS)
    for _ in tests:
        began = time.perf_counter()
        done = next(results)
        yield time.perf_counter() - began, done.wall_seconds, done.ending is Ending.finished


if __name__ == "__main__":
    main()
