"""What workers of an executor run in tests: they unpickle functions by the name of their module."""

import os
import signal
import sys
import time
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Rendering:
    """A row rendered by a worker, and what the worker computes then."""

    source: str
    seconds: float
    """Processor time that a rendering may take."""
    afterwards: float = 0.0
    """Processor time that is used between two renderings."""

    def at(self, row: int) -> str:
        return f"theirs.jsonl, row {row + 1}"

    def run(self) -> str:
        from packtrain.pipeline.execute import template_watchdog
        from packtrain.stages.template.chat_template import ChatTemplate

        template_watchdog.CPU_SECONDS = self.seconds
        template_watchdog.watch_templates()
        template_watchdog.note_row(7)
        template = ChatTemplate(self.source, {}, "theirs")
        template.render([{"role": "user", "content": "abc"}])
        began = time.process_time()
        while time.process_time() - began < self.afterwards:
            sum(range(10_000))
        return template.render([{"role": "user", "content": "def"}])


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
