"""Limits of chat templates, which the kernel enforces while one renders.

- Memory: RLIMIT_AS makes an allocation fail, which the template's error says.
- Time: a timer makes the kernel kill the worker. A timer in Python would wait for the end of the instruction that runs,
  such as a comparison of deeply nested lists. The main process names the row that the worker noted in shared memory.
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
from .executor import TEMPLATE_TIMEOUT_SIGNAL

CPU_SECONDS = 10.0
"""Processor time that one rendering may use; most take a millisecond."""
ADDRESS_SPACE_GROWTH = 2 << 30
"""Bytes of address space that one rendering may add; an allocation beyond fails at once."""
NO_ROW = -1
"""Stands for a row where none was noted."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _Process:
    """The state of this process."""

    row: Any = SimpleNamespace(value=NO_ROW)
    """`value` is the number of the row that is being rendered; in a worker it is shared with the main process."""
    address_space = 0
    """Bytes of address space when they were last read; 0 if they must be read again."""
    is_worker = False
    """Whether the kernel may kill this process."""


def note_row(row: int) -> None:
    """Note the row that is rendered next, so that the main process can name it if the rendering has to be killed.

    Args:
        row: the number by which the task's method `at` names the row.
    """
    _Process.row.value = row


@contextmanager
def rows_in_errors(at: Callable[[int], str]) -> Iterator[None]:
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


class RenderingLimits:
    """A context whose body may allocate `ADDRESS_SPACE_GROWTH` bytes and, in a worker, use `CPU_SECONDS` of processor
    time. Not to be nested.

    Raises:
        MemoryError: it took too much memory.
    """

    # A class, not a generator, because it is entered for every rendering.
    __slots__ = ("_limits_before",)

    def __enter__(self) -> None:
        """Limit memory for this process, and in a worker start a timer of the kernel for the time."""
        self._limits_before = resource.getrlimit(resource.RLIMIT_AS)
        soft, hard = self._limits_before
        # A worker reads it once a task, as tasks are short. Other processes read it each time, because they may have
        # loaded a model since then.
        if not _Process.is_worker or not _Process.address_space:
            _Process.address_space = _address_space()
        limit = _Process.address_space + ADDRESS_SPACE_GROWTH
        if soft == resource.RLIM_INFINITY or limit < soft:  # a limit of the user's stays if it is lower
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        if _Process.is_worker:
            signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Take the limits away."""
        if kind is MemoryError:
            _Process.address_space = 0  # the failed rendering may have left more mapped, so it is read again
        if _Process.is_worker:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        resource.setrlimit(resource.RLIMIT_AS, self._limits_before)


def _address_space() -> int:
    """Bytes of address space of the process."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  # asked often
        return int(file.read().split()[0]) * _PAGE_BYTES  # its first number: pages of address space


def watch_templates() -> None:
    """Put every rendering of this process under `RenderingLimits` from now on."""
    watch_by(RenderingLimits)


def begin_task(row: Any = None) -> None:
    """Let the kernel kill this process, a worker, if a rendering of its next task takes too long.

    Args:
        row: a number in memory that is shared with the main process, where `note_row` notes rows. None: they are noted
            in this process alone.
    """
    if row is not None:
        _Process.row = row
    signal.signal(TEMPLATE_TIMEOUT_SIGNAL, signal.SIG_DFL)
    _Process.is_worker = True
    # Read once a task, because reading it takes a tenth of a rendering.
    _Process.address_space = 0
