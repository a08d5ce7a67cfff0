"""Locks exclude, are gone with their holder, and say so where there are none; a dead process is recognised."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from packtrain.schemas.files import lock

HOLD = """
import os, sys
from packtrain.schemas.files import lock
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
assert lock.lock(file)
print("held", flush=True)
sys.stdin.read()
"""


def holder(path: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "file"
    process = holder(path)
    file = os.open(path, os.O_RDWR)
    assert lock.lock(file, wait=False) is False
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert lock.lock(file, wait=False) is True
    lock.release(file)


def test_a_released_lock_is_not_kept_by_a_fork(tmp_path: Path) -> None:
    with lock.alone(tmp_path / "folder" / "file"):
        other = os.open(tmp_path / "folder" / "file", os.O_RDWR)
        assert lock.lock(other, wait=False) is False
        child = os.fork()
        if not child:
            signal.pause()
    try:
        assert lock.lock(other, wait=False) is True
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        lock.release(other)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "file"
    with lock.alone(path) as one, lock.alone(path) as other:
        assert (one, other) == (False, False)


def test_whether_a_process_runs() -> None:
    me = psutil.Process()
    assert lock.process_runs(me.pid)
    assert lock.process_runs(me.pid, me.create_time() + 1)
    assert not lock.process_runs(me.pid, me.create_time() - 60)  # an earlier one of the same number
    process = subprocess.Popen(["true"])
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not lock.process_runs(process.pid)
    process.wait()
    assert not lock.process_runs(process.pid)
