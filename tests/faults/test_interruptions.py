"""Ctrl-C, in whatever a command is doing: it answers within a second, nothing is lost, and the next run goes on."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import kit
from tests.support import warm

ANSWER = "packtrain: stopping; the work so far is kept; the same command continues"
SECONDS = 1.0
"""How soon a command ends after Ctrl-C."""
BUSY_SECONDS = 8.0
"""The same where the machine may be busy with other tests."""
TRIES = 4
"""Tries of what depends on the clock: one that is in time shows it."""
READER = """
import signal, time
from pathlib import Path

here = Path(__file__).parent

def rows(row):
    if row["text"] == "slow" and not (here / "go").exists():
        (here / "begun").touch()
        while True:
            try:
                time.sleep(600)
            except BaseException:
                if not (here / "stubborn").exists():
                    raise
    return {"text": row["text"]}
"""
STAGES = """
import os, signal, threading
from packtrain.pipeline.cli.console import ConsoleObserver

begin = ConsoleObserver.begin

def begin_and_interrupt(self, stage, total, unit):
    begin(self, stage, total, unit)
    if stage.startswith(%r):
        timer = threading.Timer(%r, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()

ConsoleObserver.begin = begin_and_interrupt
"""
BUSY = """
import hashlib, sys, time
from packtrain.pipeline.cli import main as cli

cli.command.cache_clear()

@cli.app.command()
def busy() -> None:
    try:
        print("begun", flush=True)
        time.sleep(600)
    finally:
        %s

sys.argv = ["packtrain", "busy"]
cli.main()
"""
IN_C = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"
"""Minutes in C, without a look at signals."""


def interrupt(process: warm.Process, number: int = signal.SIGINT) -> tuple[float, str]:
    """Seconds from the signal to the end, and what was said on standard error."""
    began = time.monotonic()
    os.kill(process.child, number)
    _, said = process.communicate(timeout=60)
    return time.monotonic() - began, said


def begun(code: str) -> warm.Process:
    """A process of this code that is at work."""
    process = warm.Process(("python", "-c", code))
    assert process.stdout.readline() == "begun\n"
    return process


def wait_for(path: Path) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not come"
        time.sleep(0.02)


def require_answer(process: warm.Process, seconds: float, said: str, most: float = BUSY_SECONDS) -> None:
    assert process.returncode == 130, said
    assert said.count(ANSWER) == 1, said
    assert "Traceback" not in said
    assert seconds <= most


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_a_task_of_a_pool(tmp_path: Path, stubborn: bool, number: int) -> None:
    """Its workers end, also one that would not; the next run ends with what an undisturbed one gives."""
    rows = [{"text": f"row {number}"} for number in range(600)] + [{"text": "slow"}]
    kit.write(tmp_path / "rows.jsonl", rows)
    (tmp_path / "slow.py").write_text(READER)
    if stubborn:
        (tmp_path / "stubborn").touch()
    config = kit.configure(tmp_path, {"name": "s", "format": "python:slow:rows", "path": "rows.jsonl"})
    file = kit.saved(config)
    process = warm.Process(("run", file))
    wait_for(tmp_path / "begun")
    workers = psutil.Process(process.child).children(recursive=True)
    seconds, said = interrupt(process, number)
    require_answer(process, seconds, said)
    assert [worker for worker in psutil.wait_procs(workers, timeout=10)[1] if "packtrain" in worker.name()] == []
    if not stubborn:
        assert list(tmp_path.rglob(".tmp-*")) == []
    (tmp_path / "go").touch()
    again = warm.run(("run", file))
    assert again.returncode == 0, again.stderr
    plain = kit.packed(
        kit.configure(tmp_path, {"name": "s", "format": "text", "path": "rows.jsonl"}, out=str(tmp_path / "plain"))
    )
    assert kit.Packed(tmp_path / "out").digest() == plain.digest()


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_while_ray_encodes(tmp_path: Path) -> None:
    """Ray that the run has started ends with it; the next run ends with what an undisturbed one gives."""
    pytest.importorskip("ray")
    rows = [{"text": f"row {number}"} for number in range(600)] + [{"text": "slow"}]
    kit.write(tmp_path / "rows.jsonl", rows)
    (tmp_path / "slow.py").write_text(READER)
    source = {"name": "s", "format": "python:slow:rows", "path": "rows.jsonl"}
    file = kit.saved(kit.configure(tmp_path, source, run={"executor": "ray"}))
    process = warm.Process(("run", file))
    wait_for(tmp_path / "begun")
    started = psutil.Process(process.child).children(recursive=True)
    assert "raylet" in [child.name() for child in started]
    seconds, stderr = interrupt(process)
    require_answer(process, seconds, stderr)
    # Ray's two agents are not ours to end: they miss their raylet, and end within a minute.
    left = [child.name() for child in psutil.wait_procs(started, timeout=10)[1]]
    assert [name for name in left if not name.endswith("Agent")] == []
    (tmp_path / "go").touch()
    again = warm.run(("run", file))
    assert again.returncode == 0, again.stderr
    plain = kit.packed(
        kit.configure(tmp_path, {"name": "s", "format": "text", "path": "rows.jsonl"}, out=str(tmp_path / "plain"))
    )
    assert kit.Packed(tmp_path / "out").digest() == plain.digest()


@contextmanager
def stalled_server() -> Iterator[tuple[str, threading.Event]]:
    """The address of a file that never ends, and an event: its content is being sent."""
    begun, end = threading.Event(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 30))
            self.send_header("ETag", '"one"')
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(b'{"text": "a"}\n' * 10_000)
            self.wfile.flush()
            begun.set()
            end.wait(60)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/rows.jsonl", begun
    finally:
        end.set()
        server.shutdown()


def test_in_a_download(tmp_path: Path) -> None:
    with stalled_server() as (url, begun):
        config = kit.configure(tmp_path, {"name": "s", "format": "text", "path": url})
        process = warm.Process(("run", kit.saved(config)))
        assert begun.wait(60)
        time.sleep(1)  # the first answer only says how large the file is
        seconds, said = interrupt(process)
        require_answer(process, seconds, said)


@pytest.mark.parametrize("stage", ["load inputs", "check the tokenizer", "encode", "plan", "pack", "report"])
def test_in_a_stage_of_a_run(tmp_path: Path, stage: str) -> None:
    """As it begins, and the next run ends with the same dataset."""
    config = kit.configure(tmp_path, "chats", "texts", run={"workers": 2, "report": True})
    file = kit.saved(config)
    process = warm.Process(("run", file), patch=STAGES % (stage, 0.0))
    began = time.monotonic()
    _, said = process.communicate(timeout=120)
    assert time.monotonic() - began < 120
    if process.returncode != 0:  # a stage may have ended before the signal came
        assert process.returncode == 130, said
        assert said.count(ANSWER) == 1, said
        assert "Traceback" not in said
    again = warm.run(("run", file))
    assert again.returncode == 0, again.stderr
    assert kit.Packed(tmp_path / "out").digest() == kit.packed(config | {"out": str(tmp_path / "whole")}).digest()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.05, 0.5])
def test_in_the_plan_of_millions_of_documents(tmp_path: Path, delay: float) -> None:
    rows = [{"input_ids": [5, 6, 7]}] * 300_000
    kit.write(tmp_path / "ids.parquet", rows)
    source = {"name": "ids", "format": "tokenized", "path": "ids.parquet", "repeat": 20}
    config = kit.configure(tmp_path, source, pack={"strategy": "tight"})
    file = kit.saved(config)
    patch = STAGES % ("plan", delay) + "import time\nprint('', end='')\n"
    process = warm.Process(("run", file), patch=patch)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130, said
    assert said.count(ANSWER) == 1


@pytest.mark.parametrize("sleeps", [True, False])
def test_in_work_that_cannot_be_interrupted(sleeps: bool) -> None:
    """A thread answers for it, and ends the process: as it works, or as it cleans up."""
    code = (BUSY % IN_C).replace("time.sleep(600)", "time.sleep(600)" if sleeps else IN_C)
    best = BUSY_SECONDS
    for _ in range(TRIES):
        process = begun(code)
        seconds, said = interrupt(process)
        require_answer(process, seconds, said)
        best = min(best, seconds)
        if best <= SECONDS:
            return
    pytest.fail(f"it took {best:.1f} seconds at best")


def test_a_second_one_ends_it_at_once() -> None:
    """Not when the time to clean up is over."""
    best = BUSY_SECONDS
    for _ in range(TRIES):
        process = begun(BUSY % IN_C)
        os.kill(process.child, signal.SIGINT)
        time.sleep(0.1)
        if psutil.pid_exists(process.child):  # else this process slept for longer
            seconds, said = interrupt(process)
            require_answer(process, seconds, said)
            best = min(best, seconds)
            if best < 0.35:
                return
    pytest.fail(f"it took {best:.1f} seconds at best")


def test_one_that_comes_twice_is_one() -> None:
    """A terminal sends it to all programs, and one that started another passes it on: cleaning up is not cut short."""
    printed = []
    for _ in range(TRIES):
        process = begun(BUSY % "time.sleep(0.3); print('cleaned', flush=True)")
        for _ in range(2):
            os.kill(process.child, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        printed.append(out)
        if out == "cleaned\n":
            return
    pytest.fail(f"it was cut short each time: {printed}")


def test_a_command_that_ignores_signals_still_does(tmp_path: Path) -> None:
    """In the background of a shell, Ctrl-C is not meant for it."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + (BUSY % "pass").replace("600", "1")
    process = begun(code)
    os.kill(process.child, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_finished_command_leaves_the_signals_as_they_were(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threads = threading.active_count()
    assert kit.cli("--version").code == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1
    end = time.monotonic() + 10
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == threads
