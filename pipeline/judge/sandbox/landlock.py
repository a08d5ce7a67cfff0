"""Programs under sandlock: Landlock and seccomp, for machines that forbid namespaces. Weaker than bubblewrap.

Processes stay in the machine's own namespaces. What keeps them apart: Landlock lets them read Python alone, write one
folder, and signal only processes of their own domain; seccomp takes sockets and /proc away; as root, each launch has a
user of its own. What is weaker: names, sizes and times of files elsewhere can be found out with `stat`; the size of the
folder is looked at twenty times a second rather than limited; threads are limited by memory alone.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from .interpreter import Interpreter, find_interpreter
from .launch import Launched, SandboxLaunch, Surroundings, driver_source, launched, outside_folder, run_in_launches
from .programs import Execution, Program, ProgramLimits
from .unprivileged import unprivileged_users

_LAUNCHER = Path(__file__).with_name("sandlock_launcher.py")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_OWN_PROCESSES = 1  # the driver
_OWN_TASKS = 64  # the launcher and the threads of its supervisor count for the user, too


def sandlock_version() -> str | None:
    """None if sandlock is not installed."""
    try:
        return version("sandlock")
    except PackageNotFoundError:
        return None


def _python() -> Interpreter:
    users = unprivileged_users()
    return find_interpreter(users[0] if users else None)


def _packages() -> str:
    """The folder that sandlock is installed in, which the launcher's Python may not look into by itself."""
    found = find_spec("sandlock")
    assert found
    assert found.origin
    return str(Path(found.origin).parents[1])


@dataclass(frozen=True)
class Landlock:
    """The kind `sandlock`."""

    note: str | None = None
    name: str = "sandlock"

    @property
    def version(self) -> str:
        return f"{sandlock_version()}, Python {_python().version}"

    def run(self, program: Program, limits: ProgramLimits) -> Iterator[Execution]:
        def launch() -> SandboxLaunch:
            folder = outside_folder()
            tasks = limits.processes + _OWN_TASKS if unprivileged_users() else None
            surroundings = Surroundings(str(folder), landlock=True, tasks=tasks, outside=folder)
            return SandboxLaunch(
                program, limits, surroundings, lambda control: _start(control, folder, limits.processes)
            )

        return run_in_launches(program, launch)


def _start(control: socket.socket, folder: Path, processes: int) -> Launched:
    python, users = _python(), unprivileged_users()
    files = [os.path.realpath(path) for path in (python.executable, *python.objects)]
    orders = {
        "command": python.command(driver_source()),
        "environment": python.environment(str(folder)),
        "readable": [python.library, *files, *_DEVICES],
        "packages": _packages(),
        "denied": python.packages,
        "folder": str(folder),
        "processes": processes + _OWN_PROCESSES,
        "users": [users.start, len(users)] if users else None,
    }
    return launched([sys.executable, "-I", str(_LAUNCHER), json.dumps(orders)], control, {"HOME": str(folder)})
