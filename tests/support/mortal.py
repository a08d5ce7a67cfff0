"""Commands in processes that are killed at one of their puts, or may not write large files.

A put is what gives a finished file its name: `os.link` and `os.replace`, except those of leases. It is counted in a
file, so that all processes of a command count together.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

HOOK = """
import fcntl, os, signal

def counted(call):
    def put(*arguments, **options):
        if "/_run/lease/" in str(arguments[1]):  # how often a run shows that it is alive depends on the machine
            return call(*arguments, **options)
        counter = os.open(os.environ["PUTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        fcntl.flock(counter, fcntl.LOCK_EX)
        os.write(counter, b".")
        mine = os.fstat(counter).st_size == int(os.environ["KILL_AT"])
        os.close(counter)
        if mine and os.environ["KILL_WHEN"] == "before":
            kill()
        result = call(*arguments, **options)
        if mine:
            kill()
        return result
    return put

def kill():
    group, whom, how = os.getpgrp(), os.environ["KILL_WHOM"], int(os.environ["KILL_HOW"])
    os.killpg(group, how) if whom == "group" else os.kill(group if whom == "driver" else os.getpid(), how)
    if how == signal.SIGKILL:
        signal.pause()

if "PUTS" in os.environ:
    os.link, os.replace = counted(os.link), counted(os.replace)
os.fsync = lambda descriptor: None
"""
"""For every Python process of a command. Without fsync, because a kill loses nothing that was written."""

SERVER = """
import ctypes, json, os, resource, sys
import packtrain
from packtrain.pipeline.cli.main import main

packtrain.run  # imports what a run needs
ctypes.CDLL(None).prctl(36, 1)  # orphans become children of this process, which waits for them
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        for descriptor, name in enumerate(("/dev/null", asked["said"], asked["said"])):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
        os.environ.update(asked["environment"])
        if asked["largest"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (asked["largest"],) * 2)
        exec(asked["hook"])
        sys.argv = ["packtrain", *asked["words"]]
        main()
    _, status = os.waitpid(child, 0)
    try:
        while True:
            os.waitpid(-child, 0)
    except ChildProcessError:
        print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Mortal:
    """A process that has imported packtrain and forks for each command."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for what commands say."""
        (folder / "hook").mkdir(parents=True)
        (folder / "hook" / "sitecustomize.py").write_text(HOOK)
        self._said, self._puts = folder / "said", folder / "puts"
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={**os.environ, "PYTHONPATH": str(folder / "hook")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Mortal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.kill()
        self._server.wait()

    def run(
        self,
        *words: object,
        at: int = 0,
        when: str = "before",
        whom: str = "group",
        how: int = signal.SIGKILL,
        largest: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Run a command and wait for all of its processes.

        Args:
            words: of the command.
            at: the put at which it is killed, counted from 1.
            when: `before` or `after` that put.
            whom: the `group` of its processes, the `driver`, or the one that puts it (`self`).
            how: the signal.
            largest: bytes that a file may have; 0 for any number.
            environment: what is changed in it.

        Returns:
            The exit code, minus the signal's number where one ended it; and what was printed.
        """
        for path in (self._puts, self._said):
            path.unlink(missing_ok=True)
        asked: dict[str, Any] = {
            "words": [str(word) for word in words],
            "said": str(self._said),
            "largest": largest,
            "hook": HOOK,
            "environment": {
                **(environment or {}),
                "PUTS": str(self._puts),
                "KILL_AT": str(at),
                "KILL_WHEN": when,
                "KILL_WHOM": whom,
                "KILL_HOW": str(int(how)),
            },
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline()), self._said.read_text()

    @property
    def puts(self) -> int:
        """How many there were in the last command."""
        return self._puts.stat().st_size
