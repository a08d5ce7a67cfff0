"""Describes how a child process ended."""

import signal
from pathlib import Path

_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def exit_reason(code: int, kills_before: int | None) -> str:
    """Describe why a child ended, for example `killed by SIGKILL: ...`.

    Args:
        code: its exit code, negative for a signal, as in `subprocess` and `multiprocessing`.
        kills_before: the result of `out_of_memory_kills` before the child started.
    """
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if -code == signal.SIGKILL:
        killed = out_of_memory_kills()
        if killed is not None and kills_before is not None and killed > kills_before:
            return f"killed by {name}: out of memory, according to the kernel's count of such kills"
        return f"killed by {name}, usually by the kernel when memory runs out"
    if -code in _CRASHES:
        return f"killed by {name}, a crash in a native library"
    return f"killed by {name}"


def out_of_memory_kills() -> int | None:
    """Return how often this machine's kernel has killed a process for lack of memory; None if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
