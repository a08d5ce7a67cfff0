"""A program that nothing is known about, the limits it runs under, and what came of each test.

Nothing in here says whether an answer is right: expected outputs never enter a sandbox. They are compared outside.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from threading import Event
from typing import Protocol

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What one test of a program may use."""

    wall_seconds: float = 10.0
    """From the start of the test to its end, sleeping included."""
    cpu_seconds: float = 10.0
    """CPU time of the program's process; the kernel counts whole seconds, so this is rounded up."""
    memory_bytes: int = 1024 * MIB
    """Address space of each process."""
    processes: int = 32
    """Processes and threads at once."""
    file_bytes: int = 64 * MIB
    """The temporary folder, and each file in it."""
    output_bytes: int = 16 * MIB
    """Standard output, or the JSON of a returned value."""
    stop: Event | None = None
    """Ends the test as soon as another thread sets it, as a timeout."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program and the tests to run it on."""

    code: str
    """Python source text."""
    function: str | None
    """None: the program reads stdin. Else what each test calls: a function, or a method of class `Solution`."""
    inputs: tuple[bytes, ...]
    """A test each: its stdin, or the JSON list of the arguments of its call."""


class Ending(StrEnum):
    """How a test ended."""

    finished = "finished"
    """Exit code 0; of a call: it returned a value that JSON can say."""
    error = "error"
    """An exception, an exit code other than 0, a signal, or a call that did not return."""
    timeout = "timeout"
    """Wall or CPU time ran out."""
    memory = "memory"
    """Memory ran out."""
    output_limit = "output_limit"
    """More output, or a larger value, than is allowed."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One test of a program, run."""

    ending: Ending
    output: bytes
    """Standard output, at most `ProgramLimits.output_bytes`."""
    value: bytes | None
    """JSON of what the call returned; None where it did not return, and for programs that read stdin."""
    stderr: str
    """The end of standard error, at most some KiB. Hostile text: escape it before it is printed."""
    wall_seconds: float
    cpu_seconds: float


class Sandbox(Protocol):
    """Runs programs apart from everything else. Safe to use from several threads at once."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Its version, and that of the Python that programs run under."""
        ...

    @property
    def note(self) -> str | None:
        """Why it is not a better one, where that was wanted."""
        ...

    def run(self, program: Program, limits: ProgramLimits) -> Iterator[Execution]:
        """Runs the tests in the order of the inputs, each when asked for. Closing the iterator ends all processes.

        One thread takes all of them: a sandbox ends with the thread that started it.

        Raises SandboxError if the machine failed (the sandbox did not start, the disk is full), which says nothing
        about the program.
        """
        ...
