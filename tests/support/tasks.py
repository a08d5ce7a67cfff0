"""What workers of an executor run in tests: they unpickle functions by the name of their module."""

import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""From where processes find this module."""


def double(number: int) -> int:
    return 2 * number


def modules(_: object) -> list[str]:
    return sorted(sys.modules)


def process(_: object) -> int:
    time.sleep(0.05)
    return os.getpid()


def kill(task: tuple[int, str]) -> int:
    """Dies as often as the file says, which counts down."""
    number, deaths = task
    if deaths:
        left = int(Path(deaths).read_text())
        if left:
            Path(deaths).write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
    return number


def fail(error: Exception | None) -> None:
    if error:
        raise error


def linger(path: str) -> None:
    Path(path).touch()
    time.sleep(60)


def linger_over(task: tuple[str, bool]) -> str:
    path, slow = task
    if slow:
        linger(path)
    return Path(path).name
