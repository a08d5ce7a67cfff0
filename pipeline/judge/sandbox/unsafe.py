"""Programs in ordinary processes: limits of time and memory, and no protection. For programs that are trusted."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass

from .interpreter import find_interpreter
from .launch import Launched, SandboxLaunch, Surroundings, driver_source, launched, outside_folder, run_in_launches
from .programs import Execution, Program, ProgramLimits


@dataclass(frozen=True)
class Unsafe:
    """The kind `unsafe`. A program can read what the user can; processes that it moves to another group may survive."""

    note: str | None = None
    name: str = "unsafe"

    @property
    def version(self) -> str:
        return f"Python {find_interpreter().version}"

    def run(self, program: Program, limits: ProgramLimits) -> Iterator[Execution]:
        def launch() -> SandboxLaunch:
            folder = outside_folder()
            python = find_interpreter()

            def start(control: socket.socket) -> Launched:
                return launched(python.command(driver_source()), control, python.environment(str(folder)))

            surroundings = Surroundings(str(folder), must_contain=False, outside=folder)
            return SandboxLaunch(program, limits, surroundings, start)

        return run_in_launches(program, launch)
