"""The console that commands print to, and a run's progress on it."""

import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from ...schemas.escape import escape
from ...schemas.units import duration, rate
from ..observer import Observer
from ..report.printing import say

QUIET_SECONDS = 1.0
"""Stages shorter than this print nothing."""


class ConsoleObserver(Observer):
    """Progress bars in a terminal, plain lines elsewhere. As a context manager, it restores the terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress: Progress | None = None
        self._task: int = 0
        self._stage = ""
        self._began = 0.0
        self._said = 0.0
        self._total = 0
        self._done = 0
        self._rows = 0
        self._tokens = 0
        self._what = "rows"

    def __enter__(self) -> "ConsoleObserver":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()

    def begin(self, stage: str, total: int, unit: str) -> None:
        """See `Observer`."""
        self._stop()
        self._stage, self._total, self._done, self._rows, self._tokens = stage, total, 0, 0, 0
        self._began = self._said = time.monotonic()
        self._what = unit if unit == "samples" else "rows"
        if self._live():
            columns: list[ProgressColumn] = [TextColumn("{task.description:>7}"), BarColumn()]
            if total:
                columns += [TextColumn("{task.percentage:>3.0f} %"), _Rates(), TimeRemainingColumn()]
            self._progress = Progress(*columns, console=self.console, transient=True)
            self._task = self._progress.add_task(stage, total=total or None, rows=0, tokens=0, what=self._what)
            self._progress.start()

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        """See `Observer`."""
        self._done += done
        self._rows += rows
        self._tokens += tokens
        if self._progress is not None:
            self._progress.update(self._task, advance=done, rows=self._rows, tokens=self._tokens)  # type: ignore[arg-type]
        elif time.monotonic() - self._said >= 5 and self._total:
            self._said = time.monotonic()
            say(self.console, f"{self._stage}: {self._done / self._total:.0%}, {self._rates()}")

    def end(self) -> None:
        """See `Observer`."""
        self._stop()
        if self._stage and time.monotonic() - self._began >= QUIET_SECONDS:
            seconds = time.monotonic() - self._began
            rates = f", {self._rates()}" if self._total else ""
            say(self.console, f"{self._stage}: done in {duration(seconds)}{rates}")
        self._stage = ""

    def note(self, text: str) -> None:
        """See `Observer`."""
        say(self.console, text)

    def _live(self) -> bool:
        # With FORCE_COLOR, rich takes a pipe for a terminal; it asks for colours, not for bars in a log.
        return self.console.is_terminal and not self.console.is_dumb_terminal and self.console.file.isatty()

    def _stop(self) -> None:
        # A bar left running hides the cursor, and is drawn again below an error message.
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _rates(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        tokens = f", {rate(self._tokens / seconds, 'tokens')}" if self._tokens else ""
        return f"{rate(self._rows / seconds, self._what)}{tokens}"


class _Rates(ProgressColumn):
    """Rows, or samples, and tokens per second."""

    def render(self, task: Task) -> Text:
        """See rich."""
        seconds = task.elapsed or 0.0
        if seconds <= 0:
            return Text("")
        rows, tokens = task.fields["rows"] / seconds, task.fields["tokens"] / seconds
        return Text(f"{rate(rows, task.fields['what'])}  {rate(tokens, 'tokens')}", style="cyan")


class EscapingConsole(Console):
    """A console that escapes all text it writes, also inside tables and panels.

    Escape text from data before it gets here: rich measures it before this console escapes it.
    """

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            Segment(escape(text), style, control) if control is None else Segment(text, style, control)
            for text, style, control in buffer
        )


def make_console(stderr: bool = False) -> Console:
    """A console on standard output or standard error, 120 columns wide without a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return EscapingConsole(file=stream, width=None if stream.isatty() else 120)
