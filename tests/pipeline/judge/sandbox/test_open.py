"""Which sandbox is chosen, for which user, and what is said where there is none."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from packtrain.pipeline.judge.sandbox import bubblewrap, landlock, open
from packtrain.pipeline.judge.sandbox.interpreter import find_interpreter
from packtrain.pipeline.judge.sandbox.open import open_sandbox
from packtrain.pipeline.judge.sandbox.programs import Ending, Program, ProgramLimits
from packtrain.schemas.errors import ConfigError, SandboxError

from tests.pipeline.judge.sandbox.conftest import processes
from tests.support.sources import ROOT

USER = 12_345
PATHS = f"{ROOT / '.types'}:{Path(pytest.__file__).parents[1]}"
SHOW = """
import sys, time
from packtrain.pipeline.judge.sandbox.open import open_sandbox
from packtrain.pipeline.judge.sandbox.programs import Program
from packtrain.pipeline.judge.sandbox.programs import ProgramLimits
sandbox = open_sandbox(sys.argv[1])
print(sandbox.name, "|", sandbox.note, flush=True)
code = "import os\\nprint(os.getuid())\\nfor n in range(99):\\n  if not os.fork(): import time; time.sleep(9)"
for one in sandbox.run(Program(code, None, (b"",)), ProgramLimits()):
    print(one.output.decode(), one.stderr)
"""
"""Opens a sandbox, then runs a program that says who it is and forks more than it may."""


def as_user(arguments: list[str], *, forbid_namespaces: bool = False) -> str:
    """What `SHOW` prints, run by an ordinary user, if need be where no more user namespaces can be made."""
    users = [USER] if os.geteuid() == 0 else [None]
    command = [find_interpreter(users[0]).executable, "-c", SHOW, *arguments]
    if forbid_namespaces:
        inside = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
        command = ["unshare", "--user", "--map-root-user", "sh", "-c", inside, "sh", *command]
    done = subprocess.run(
        command, user=users[0], group=users[0], extra_groups=[] if users[0] else None, cwd="/", check=False,
        env={"PYTHONPATH": PATHS, "PATH": os.defpath},
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.fixture
def readable() -> None:
    """Skip what another user runs, where the repository lies in a folder that is closed to others."""
    if os.geteuid() != 0:
        return
    done = subprocess.run(
        [find_interpreter(USER).executable, "-c", "import packtrain, pytest"], user=USER, group=USER, extra_groups=[],
        env={"PYTHONPATH": PATHS}, cwd="/", check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"another user cannot read the repository: {done.stderr[-200:]}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bubblewrap", "sandlock"])
@pytest.mark.usefixtures("readable")
def test_an_ordinary_user_needs_no_rights(kind: str) -> None:
    said = as_user([kind])
    assert said.startswith(f"{kind} | None\n{USER if os.geteuid() == 0 else os.geteuid()}\n"), said
    assert "BlockingIOError" in said  # 99 processes are more than a program may start, and nothing else keeps it


ATTACKS = "bubblewrap and (touched or daemons or everything or small or limited or rights or nothing or empty)"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("readable")
def test_attacks_do_not_succeed_against_an_ordinary_user_either() -> None:
    """There, programs are the same user as the driver and as everything else of that user."""
    done = subprocess.run(
        [find_interpreter(USER).executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", ATTACKS,
         str(Path(__file__).with_name("test_attacks.py"))],
        user=USER, group=USER, extra_groups=[], cwd=Path(__file__).parents[4], check=False,
        capture_output=True, text=True,
        env={"PYTHONPATH": PATHS, "PATH": os.defpath, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-500:]
    assert int(done.stdout.rpartition(" passed")[0].split()[-1]) >= 12, done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("readable")
def test_where_namespaces_are_forbidden_there_is_sandlock() -> None:
    said = as_user(["auto"], forbid_namespaces=True)
    first, _, rest = said.partition("\n")
    assert first.startswith("sandlock | programs run in sandlock; bubblewrap: bubblewrap did not start: ")
    assert "BlockingIOError" in rest


def test_the_first_choice_is_bubblewrap() -> None:
    sandbox = open_sandbox("auto")
    assert (sandbox.name, sandbox.note) == ("bubblewrap", None)
    assert sandbox.version == f"0.11.0, Python {'.'.join(map(str, sys.version_info[:3]))}"
    assert open_sandbox("auto") is sandbox


def test_the_second_choice_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open, "find_bubblewrap", lambda: None)
    open_sandbox.cache_clear()
    try:
        assert open_sandbox("auto").note == "programs run in sandlock; bubblewrap: not installed"
    finally:
        open_sandbox.cache_clear()


@pytest.fixture
def none_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(open, "find_bubblewrap", lambda: None)
    monkeypatch.setattr(open, "sandlock_version", lambda: None)
    open_sandbox.cache_clear()
    yield
    open_sandbox.cache_clear()


@pytest.mark.parametrize("kind", ["auto", "bubblewrap", "sandlock"])
def test_without_a_sandbox_there_is_a_refusal(none_installed: None, kind: open.SandboxKind) -> None:
    with pytest.raises(ConfigError, match=r"no sandbox .*not installed.*pip install 'packtrain\[eval\]'") as refused:
        open_sandbox(kind)
    assert refused.value.exit_code == 2


def test_unsafe_runs_programs_and_says_its_name(temporary: Path) -> None:
    sandbox = open_sandbox("unsafe")
    assert sandbox.name == "unsafe"
    code = "import os, time\nif input() == 'fork' and not os.fork(): time.sleep(60)\nprint(os.getcwd())"
    done = list(sandbox.run(Program(code, None, (b"1", b"fork", b"3")), ProgramLimits(wall_seconds=2)))
    assert [one.ending for one in done] == [Ending.finished] * 3
    assert done[0].output.startswith(str(temporary).encode())


def test_bwrap_that_does_not_start_is_the_machine_s_fault(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    for text, said in (("exit 3", "exit code 3"), ("echo setting up uid map: denied >&2; exit 1", "uid map: denied")):
        broken.write_text(f"#!/bin/sh\n{text}\n")
        broken.chmod(0o755)
        with pytest.raises(SandboxError, match=f"bubblewrap did not start: .*{said}"):
            list(bubblewrap.Bubblewrap(str(broken)).run(Program("", None, (b"",)), ProgramLimits()))
    with pytest.raises(SandboxError, match="cannot be started"):
        list(bubblewrap.Bubblewrap(str(tmp_path / "none")).run(Program("", None, (b"",)), ProgramLimits()))


def test_a_temporary_folder_that_cannot_be_made_is_the_machine_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    with pytest.raises(SandboxError, match="no temporary folder"):
        list(landlock.Landlock().run(Program("", None, (b"",)), ProgramLimits()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bubblewrap", "sandlock"])
def test_a_killed_parent_leaves_no_process(kind: str, temporary: Path) -> None:
    script = (
        "import sys\n"
        "from packtrain.pipeline.judge.sandbox.interpreter import Interpreter\n"
        "from packtrain.pipeline.judge.sandbox.open import open_sandbox\n"
        "from packtrain.pipeline.judge.sandbox.programs import Program, ProgramLimits\n"
        "command = Interpreter.command\n"
        "Interpreter.command = lambda self, code: command(self, code + chr(10) + '# ' + sys.argv[2])\n"
        "code = 'import os, time; os.fork(); time.sleep(60)'\n"
        "list(open_sandbox(sys.argv[1]).run(Program(code, None, (b'',)), ProgramLimits(wall_seconds=60)))"
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, "-c", script, kind, temporary.name], env=environment)
    until = time.monotonic() + 20
    while len(processes(temporary.name)) < 5:  # the parent, bwrap or the launcher, the driver, the program twice
        assert time.monotonic() < until, processes(temporary.name)
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while left := processes(temporary.name):
        assert time.monotonic() < until, left
        time.sleep(0.05)
    while list(temporary.iterdir()):
        assert time.monotonic() < until
        time.sleep(0.05)
