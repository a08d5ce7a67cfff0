"""Limits of chat templates, which the kernel enforces while one renders.

- Memory: RLIMIT_AS makes an allocation fail, which the template's error says.
- Time: a timer makes the kernel kill the worker, which no instruction can hold up, such as a comparison of deeply
  nested lists. The driver names the row that the worker noted in shared memory.
"""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ...schemas.errors import TemplateError
from ...stages.template.sandbox import watch_by
from .executor import RENDERING_KILLED

SECONDS = 10.0
"""Seconds of processor time per rendering; most take a millisecond."""
SPACE_GROWTH = 2 << 30
"""Bytes of address space that one rendering may add; an allocation beyond fails at once."""
NO_ROW = -1
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Process:
    """What is known of this process."""

    row: Any = SimpleNamespace(value=NO_ROW)
    """`value` is the number of the row that is being rendered; in a worker it is shared with the driver."""
    space = 0
    """Bytes of address space when it was last looked at; 0 if it must be looked at again."""
    kills = False
    """Whether the kernel may kill this process, because it is a worker."""


def note_row(row: int) -> None:
    """Note the row that is rendered next, by a number that the task's `at` understands."""
    _Process.row.value = row


@contextmanager
def rows_of(at: Callable[[int], str]) -> Iterator[None]:
    """Add the file and the noted row to template errors raised inside.

    Args:
        at: names the file and the row of a noted number.

    Raises:
        TemplateError: the same error, with the file and the row in its message.
    """
    note_row(NO_ROW)
    try:
        yield
    except TemplateError as error:
        row = _Process.row.value
        if row == NO_ROW:
            raise
        raise TemplateError(f"{at(row)}: {error}") from error


class Watched:
    """A context whose body may allocate SPACE_GROWTH of memory and, in a worker, use SECONDS of processor time. Not to
    be nested.

    Raises:
        MemoryError: it took too much memory.
    """

    __slots__ = ("_before",)  # entered for every rendering, so it is no generator

    def __enter__(self) -> None:
        self._before = soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        # Only a worker's tasks are short: any other process may have loaded a model since.
        _Process.space = now = (_Process.kills and _Process.space) or _address_space()
        if soft == resource.RLIM_INFINITY or now + SPACE_GROWTH < soft:
            resource.setrlimit(resource.RLIMIT_AS, (now + SPACE_GROWTH, hard))
        if _Process.kills:
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is MemoryError:
            _Process.space = 0
        if _Process.kills:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        resource.setrlimit(resource.RLIMIT_AS, self._before)


def _address_space() -> int:
    """Bytes of address space of the process."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  # asked often
        return int(file.read().split()[0]) * _PAGE


def watch_templates() -> None:
    """Watch every rendering of this process from now on."""
    watch_by(Watched)


def begin_task(row: Any = None) -> None:
    """Let the kernel kill this process, a worker, if a rendering of its next task takes too long.

    Args:
        row: a number in memory that is shared with the driver, for rows that are noted.
    """
    if row is not None:
        _Process.row = row
    signal.signal(RENDERING_KILLED, signal.SIG_DFL)
    _Process.kills = True
    _Process.space = 0  # asking takes a tenth of a rendering, so it is asked once a task
