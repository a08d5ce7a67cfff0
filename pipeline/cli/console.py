"""The console that commands print to, and a run's progress on it. Text from data is escaped."""

import sys
import time
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ...schemas.escape import escape, escape_line, without_secrets
from ...schemas.report.shown_rows import ShownPiece
from ...schemas.units import duration, large
from ..observer import Observer
from ..report.grid import Grid, Line, clipped

QUIET_SECONDS = 1.0
"""Stages shorter than this print nothing."""
_MAX_UNBROKEN_CHARACTERS = 34
"""Cells of the first column with at most this many characters are kept on one line."""
_PRINT_SECONDS = 5.0
"""Between two lines of progress where there is no terminal: often enough to see life, without filling a log."""


def make_console(stderr: bool = False) -> Console:
    """A console on standard output or standard error, 120 columns wide without a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    # A fixed width: what a pipe or a file gets does not depend on the terminal behind it.
    return Console(file=stream, width=None if stream.isatty() else 120)


def put(console: Console, line: Line) -> None:
    """Print a text, (text, style), pieces of a text of which some are trained, or a table. Text is not wrapped, so that
    a path can be copied.
    """
    if isinstance(line, Grid):
        if line.caption:
            console.print(Text(escape_line(line.caption), style="table.title"), soft_wrap=True)
        console.print(_table(line))
        return
    # As `Text`: in a plain string, rich would take brackets, which may come from the data, for its markup.
    if isinstance(line, str):
        text = Text(escape(line))
    elif isinstance(line, list):
        has_colors = console.color_system is not None and not console.no_color
        text = _marked_text(line, has_colors)
    else:
        words, style = line
        text = Text(escape(words), style)
    console.print(text, soft_wrap=True)


def _marked_text(pieces: Sequence[ShownPiece], has_colors: bool) -> Text:
    """The text of some pieces, in which trained pieces are marked: in green or, without colours, by brackets. Before a
    trained piece stands its weight, unless it is 1. A piece of weight 0 is not trained.
    """
    text = Text()
    for piece in pieces:
        if piece.weight == 0:
            text.append(escape(piece.text), "dim")
            continue
        if piece.weight != 1:
            text.append(f"×{piece.weight:.4g} ", "cyan")
        text.append(escape(piece.text if has_colors else f"⟦{piece.text}⟧"), "bold green")
    return text


def _table(grid: Grid) -> Table:
    """A grid as rich draws it."""
    table = Table(show_edge=False, pad_edge=False)
    for column, name in enumerate(grid.head):
        # Names in the first column are not broken over two lines, where they would be hard to find, unless they are so
        # long that the figures would lose their room.
        keeps_line = column == 0 and all(len(row[0]) <= _MAX_UNBROKEN_CHARACTERS for row in grid.rows)
        head = Text(escape_line(name))
        justify: Literal["left", "right"] = "left" if grid.is_words(column) else "right"
        table.add_column(head, justify=justify, overflow="fold", no_wrap=keeps_line)
    for number, row in enumerate(grid.rows):
        cells = [Text(escape_line(clipped(cell))) for cell in row]
        # Only the row's name, in the first cell, gets the style.
        if grid.styles:
            cells[0].style = grid.styles[number]
        table.add_row(*cells)
    return table


class ConsoleObserver(Observer):
    """Progress bars in a terminal, plain lines elsewhere. As a context manager, it restores the terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress: Progress | None = None
        """Only in a terminal, and while a stage is going on."""
        self._stage = ""
        """What is going on; "" between stages."""
        self._unit = "rows"
        """What is counted per second."""
        self._total = 0
        """All work of the stage, such as bytes; 0 if it is unknown."""
        self._done = 0
        """The work that is done."""
        self._rows = 0
        """Rows that are done."""
        self._tokens = 0
        """Tokens of these rows."""
        self._began_at = 0.0
        """When the stage began, in seconds of the monotonic clock."""
        self._printed_at = 0.0
        """When a line was printed last, in the same seconds."""

    def __enter__(self) -> "ConsoleObserver":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()

    def begin(self, stage: str, total: int, unit: str) -> None:
        """A stage begins: show its bar in a terminal.

        Args:
            total: all work of the stage; 0 if unknown, which shows a bar without a percentage.
            unit: of the work, such as `B`, or `samples`.
        """
        self._stop()
        self._stage = stage
        self._total = total
        self._done = 0
        self._rows = 0
        self._tokens = 0
        self._began_at = time.monotonic()
        self._printed_at = self._began_at
        # Progress is measured in `unit`, such as bytes, but what people want to know per second are rows.
        self._unit = unit if unit == "samples" else "rows"
        # With FORCE_COLOR, rich takes a pipe for a terminal; it asks for colours, not for bars in a log.
        if self.console.is_terminal and not self.console.is_dumb_terminal and self.console.file.isatty():
            columns: list[ProgressColumn] = [TextColumn("{task.description:>7}"), BarColumn()]
            if total:
                rates = TextColumn("{task.fields[rates]}", style="cyan")
                columns += [TextColumn("{task.percentage:>3.0f} %"), rates, TimeRemainingColumn()]
            self._progress = Progress(*columns, console=self.console, transient=True)
            self._progress.add_task(stage, total=total or None, rates="")  # rates: a field that the column above shows
            self._progress.start()

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        """Part of the stage is done: move the bar or, without a terminal, print a line now and then."""
        self._done += done
        self._rows += rows
        self._tokens += tokens
        if self._progress is not None:
            only_bar = self._progress.task_ids[0]
            self._progress.update(only_bar, advance=done, rates=self._rates())
        elif time.monotonic() - self._printed_at >= _PRINT_SECONDS and self._total:
            self._printed_at = time.monotonic()
            put(self.console, f"{self._stage}: {self._done / self._total:.0%}, {self._rates()}")

    def end(self) -> None:
        """The stage is over: remove its bar, and say how long it took."""
        self._stop()
        seconds = time.monotonic() - self._began_at
        # Not for a stage that was over at once, nor if another one has ended before.
        if self._stage and seconds >= QUIET_SECONDS:
            rates = f", {self._rates()}" if self._total else ""
            put(self.console, f"{self._stage}: done in {duration(seconds)}{rates}")
        self._stage = ""

    def note(self, text: str) -> None:
        """Print a note, without passwords."""
        put(self.console, without_secrets(text))

    def _rates(self) -> str:
        """Rows, or samples, and tokens per second."""
        seconds = max(time.monotonic() - self._began_at, 1e-9)
        tokens = f", {large(self._tokens / seconds)} tokens/s" if self._tokens else ""
        return f"{large(self._rows / seconds)} {self._unit}/s{tokens}"

    def _stop(self) -> None:
        """Take the bar of a stage off the terminal, if there is one."""
        # A bar left running hides the cursor, and is drawn again below an error message.
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
