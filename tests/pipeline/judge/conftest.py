"""The sandbox of this machine, and a check that nothing of a program is left after a test."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from packtrain.pipeline.judge import sandbox as sandbox_module
from packtrain.pipeline.judge.sandbox import Execution, ProgramLimits, Sandbox, open_sandbox

MIB = 1 << 20
QUICK = ProgramLimits(wall_seconds=30, cpu_seconds=1, memory_bytes=256 * MIB, threads=16, output_bytes=MIB)
"""Wall time is generous, for a busy machine."""

Run = Callable[..., list[Execution]]


def processes(word: str) -> list[psutil.Process]:
    """All on this machine that have a word in their command line, and are more than zombies."""
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        if one.info["status"] != psutil.STATUS_ZOMBIE and word in " ".join(one.info["cmdline"] or ()):
            found.append(one)
    return found


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Sandbox]:
    """One whose processes and descriptors must all be gone in the end."""
    command = sandbox_module._python()
    marked = (*command[:-1], f"{command[-1]}\n# {tmp_path}")
    monkeypatch.setattr(sandbox_module, "_python", lambda: marked)
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield open_sandbox()
    until = time.monotonic() + 300
    while left := processes(f"# {tmp_path}"):
        assert time.monotonic() < until, left
        time.sleep(0.02)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # what an earlier test left may be closed meanwhile


@pytest.fixture
def run(sandbox: Sandbox) -> Run:
    """`run(code, b"input of a test", …, function=…, limits=…)` gives what came of each test."""

    def call(code: str, *inputs: bytes, function: str | None = None, limits: ProgramLimits = QUICK) -> list[Execution]:
        return [sandbox.run(code, function, test, limits) for test in inputs or (b"",)]

    return call
