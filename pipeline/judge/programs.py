"""A program that nothing is known about, the limits it runs under, and what came of each test.

Nothing in here says whether an answer is right: expected outputs never enter a sandbox. They are compared outside.
"""

from dataclasses import dataclass
from enum import StrEnum
from threading import Event

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What one test of a program may use."""

    wall_seconds: float = 20.0
    """From the start of the test to its end, sleeping included."""
    cpu_seconds: float = 10.0
    """CPU time; the kernel counts whole seconds, so this is rounded up."""
    memory_bytes: int = 1024 * MIB
    """Address space."""
    threads: int = 32
    output_bytes: int = 16 * MIB
    """Standard output, standard error, or the JSON of a returned value."""
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
    """How a test ended. All but the first have the names of verdicts."""

    finished = "finished"
    """Exit code 0; of a call: it returned a value that JSON can say."""
    error = "runtime error"
    """An exception, an exit code other than 0, a signal, or a call that did not return."""
    timeout = "timeout"
    """Wall or CPU time ran out."""
    memory = "memory"
    """Memory ran out."""
    output_limit = "output limit"
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
