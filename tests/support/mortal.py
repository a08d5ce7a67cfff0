"""Commands that are killed at one of their puts, or may not write large files.

A put is what gives a finished file its name: `os.link` and `os.replace`. It is counted in a file, so that all processes
of a command count together.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from os import environ
from pathlib import Path

from tests.support import warm

HOOK = """
import fcntl, os, resource, signal

def counted(call):
    def put(*arguments, **options):
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

os.link, os.replace = counted(os.link), counted(os.replace)
if largest := int(os.environ["LARGEST"]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
"""
"""For every process of a command."""


@dataclass(frozen=True)
class Ended:
    """How a command ended, with all of its processes."""

    code: int
    """The exit code, minus the signal's number where one ended it."""
    said: str
    puts: int


def mortal(
    folder: Path,
    *words: object,
    at: int = 0,
    when: str = "before",
    whom: str = "group",
    how: int = signal.SIGKILL,
    largest: int = 0,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command and wait for all of its processes.

    Args:
        folder: where puts are counted; made if it is missing.
        words: of the command.
        at: the put at which it is killed, counted from 1.
        when: `before` or `after` that put.
        whom: the `group` of its processes, the `driver`, or the one that puts it (`self`).
        how: the signal.
        largest: bytes that a file may have; 0 for any number.
        environment: what is changed in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    puts = folder / "puts"
    puts.write_bytes(b"")
    kill = {"KILL_AT": str(at), "KILL_WHEN": when, "KILL_WHOM": whom, "KILL_HOW": str(int(how))}
    asked = {**environ, **(environment or {}), **kill, "PUTS": str(puts), "LARGEST": str(largest)}
    process = warm.Process(words, env=asked, patch=HOOK)
    out, err = process.communicate(timeout=600)
    return Ended(process.wait(), out + err, puts.stat().st_size)
