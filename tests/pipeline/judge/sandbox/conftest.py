"""Sandboxes of both kinds, and a check that nothing of a program is left after a test."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from packtrain.pipeline.judge.sandbox.interpreter import Interpreter
from packtrain.pipeline.judge.sandbox.open import open_sandbox
from packtrain.pipeline.judge.sandbox.programs import Execution, Program, ProgramLimits, Sandbox

MIB = 1 << 20
QUICK = ProgramLimits(
    wall_seconds=1.5, cpu_seconds=1, memory_bytes=256 * MIB, processes=16, file_bytes=8 * MIB, output_bytes=MIB
)

Run = Callable[..., list[Execution]]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made meanwhile, as open as /tmp is. It must be empty in the end."""
    folder = Path(tempfile.mkdtemp(prefix="packtrain-tests-"))
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    left = list(folder.iterdir())
    shutil.rmtree(folder)
    assert left == []


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> Iterator[str]:
    """A word in the command line of every process of a sandbox. None may be left in the end, wherever it hangs."""
    command = Interpreter.command
    monkeypatch.setattr(Interpreter, "command", lambda self, code: command(self, f"{code}\n# {temporary.name}"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield temporary.name
    until = time.monotonic() + 60
    while left := processes(temporary.name):
        assert time.monotonic() < until, left
        time.sleep(0.02)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def processes(word: str) -> list[psutil.Process]:
    """All on this machine that have a word in their command line, and are more than zombies."""
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        if one.info["status"] != psutil.STATUS_ZOMBIE and word in " ".join(one.info["cmdline"] or ()):
            found.append(one)
    return found


@pytest.fixture(params=["bubblewrap", pytest.param("sandlock", marks=pytest.mark.slow)])
def sandbox(request: pytest.FixtureRequest, marked: str) -> Sandbox:
    """One that has run a program already."""
    return open_sandbox(request.param)


@pytest.fixture
def run(sandbox: Sandbox) -> Run:
    """`run(code, b"input of a test", …, function=…, limits=…)` gives what came of each test."""

    def call(code: str, *inputs: bytes, function: str | None = None, limits: ProgramLimits = QUICK) -> list[Execution]:
        return list(sandbox.run(Program(code, function, inputs or (b"",)), limits))

    return call
