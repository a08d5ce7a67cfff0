"""Locks exclude, are gone with their holder, and say so where there are none."""

import errno
import fcntl
import os
import signal
from pathlib import Path

import pytest
from packtrain.schemas.files import lock


def test_a_released_lock_is_not_kept_by_a_fork(tmp_path: Path) -> None:
    with lock.exclusive(tmp_path / "folder" / "file"):
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


def test_a_lock_is_as_old_as_its_last_use(tmp_path: Path) -> None:
    """`packtrain clean` removes what is old, and two processes could hold a lock whose file is removed."""
    (path := tmp_path / "file").touch()
    os.utime(path, (0, 0))
    with lock.exclusive(path):
        assert path.stat().st_mtime > 0


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "file"
    with lock.exclusive(path) as one, lock.exclusive(path) as other:
        assert (one, other) == (False, False)
