"""One launch of a sandbox: a driver inside, reached over a socket, which forks once per test of one program.

What a program can and cannot do to its verdict:

- It is compared outside. Expected outputs never enter the sandbox; the input of a test enters when its turn comes.
- Standard output arrives over a pipe of that test alone. Nothing that is printed can be taken for a result.
- What a call returned comes over another pipe, as a nonce of that test and JSON. A program runs in the same process as
  the code that writes it, so it can find the nonce and write any value: that is no more than returning this value. A
  value counts only if the process then ended by itself with code 0, in time, and its driver says so.
- It cannot reach another test: before the next one, every process of the last is dead, its pipes are closed and its
  temporary folder is gone; programs do not inherit the socket to the driver.
- Where a driver dies during a test, that test is an error of the program, and the next starts in a new launch.
"""

import contextlib
import json
import math
import os
import secrets
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO

import psutil

from ....schemas.errors import SandboxError
from .folders import empty, remove
from .programs import Execution, Program, ProgramLimits
from .seccomp import program_filter
from .watch import GRACE_SECONDS, Watch

START_SECONDS = 30.0
"""How long a sandbox may take to start. It takes some 0.05 s; a busy machine may take long."""


@dataclass(slots=True)
class Launched:
    """A process that leads to a driver, as each kind of sandbox starts it."""

    process: "subprocess.Popen[bytes]"
    """bwrap or the like; its end is the end of the sandbox."""
    stderr: IO[bytes]
    """A file in memory with what it, or a driver that broke, had to say."""
    leader: int | None = None
    """A pidfd of the process to kill: with it, the rest of the sandbox goes. None: the driver ends the rest."""

    def complaint(self) -> str:
        """What it said, or how it ended."""
        self.stderr.seek(0)
        said = self.stderr.read(4096).decode(errors="replace").strip()
        return said or f"no message, exit code {self.process.poll()}"


def launched(
    command: list[str], control: socket.socket, environment: dict[str, str], pass_fds: tuple[int, ...] = ()
) -> Launched:
    """Starts a command with the socket as its descriptor 0."""
    stderr = os.fdopen(os.memfd_create("stderr"), "w+b")
    try:
        process = subprocess.Popen(
            command, stdin=control.fileno(), stdout=subprocess.DEVNULL, stderr=stderr, env=environment, cwd="/",
            pass_fds=pass_fds,
        )  # fmt: skip
    except OSError as error:
        stderr.close()
        raise SandboxError(f"{command[0]} cannot be started: {error}") from error
    kill_first(process.pid)
    return Launched(process, stderr)


def kill_first(pid: int) -> None:
    """Makes the kernel end a process, and what it starts from now on, before others when memory runs out."""
    with contextlib.suppress(OSError):  # it has ended, or this system has no such file
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the driver has to know about the sandbox that it is in."""

    folder: str
    """The writable folder, as the program sees it."""
    mount: bool = False
    """Whether the driver mounts a new, limited `folder` for each test, which takes capabilities."""
    uid: int | None = None
    """The user that programs become; None: the driver's."""
    tasks: int | None = None
    """The limit of processes and threads of this user; None where the user has other processes as well."""
    landlock: bool = False
    """Whether programs get a Landlock domain of their own, which keeps their signals in."""
    must_contain: bool = True
    """Whether the driver must be able to end every process of a test; `unsafe` cannot."""
    outside: Path | None = None
    """The writable folder, if it lies outside: measured and emptied from there, and removed in the end."""


def outside_folder() -> Path:
    """A new writable folder for one launch. SandboxError if it cannot be made."""
    try:
        return Path(tempfile.mkdtemp(prefix="packtrain-"))
    except OSError as error:
        raise SandboxError(f"no temporary folder for the sandbox ({error}); free space, or set TMPDIR") from error


@cache
def driver_source() -> str:
    return Path(__file__).with_name("driver.py").read_text(encoding="utf-8")


@dataclass
class SandboxLaunch:
    """Owns one sandbox. Not for several threads at once. Raises SandboxError where the machine fails."""

    program: Program
    limits: ProgramLimits
    surroundings: Surroundings
    start: Callable[[socket.socket], Launched]
    alive: bool = field(default=False, init=False)
    """Whether it can run a test."""
    _launched: Launched | None = field(default=None, init=False)
    _control: socket.socket | None = field(default=None, init=False)

    def open(self) -> None:
        """Starts the sandbox and waits until its driver is ready."""
        try:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._launched = self.start(theirs)
        except OSError as error:
            self._abandon()
            raise SandboxError(f"the sandbox did not start: {error}") from error
        except BaseException:
            self._abandon()
            raise
        try:
            self._send_setup()
            self._control.settimeout(START_SECONDS)
            said = self._control.recv(4096)
            self._control.settimeout(None)
            if not said:
                raise ConnectionError("its driver has ended")
            if self.surroundings.must_contain and not json.loads(said)["contained"]:
                raise SandboxError("this sandbox does not keep signals in")
        except OSError as error:
            complaint = self._launched.complaint()
            self.close()
            raise SandboxError(f"the sandbox did not start ({error}): {complaint}") from error
        except BaseException:
            self.close()
            raise
        self.alive = True

    def _abandon(self) -> None:
        if self._control:
            self._control.close()
        if self.surroundings.outside:
            remove(self.surroundings.outside)

    def _send_setup(self) -> None:
        assert self._control
        orders = {
            "code": self.program.code,
            "function": self.program.function,
            "cpu_seconds": max(1, math.ceil(self.limits.cpu_seconds)),
            "memory_bytes": self.limits.memory_bytes,
            "tasks": self.surroundings.tasks,
            "file_bytes": self.limits.file_bytes,
            "folder": self.surroundings.folder,
            "mount": self.surroundings.mount,
            "uid": self.surroundings.uid,
            "landlock": self.surroundings.landlock,
            "filter": program_filter(os.uname().machine).hex(),
        }
        with os.fdopen(os.memfd_create("setup"), "wb") as file:
            file.write(json.dumps(orders).encode())
            file.flush()
            file.seek(0)
            socket.send_fds(self._control, [b"setup"], [file.fileno()])

    def close(self) -> None:
        """Ends every process of the sandbox and waits until it has ended. Does nothing the second time."""
        if self._launched is None:
            return
        sandbox, self._launched = self._launched, None
        self.alive = False
        if self._control:
            self._control.close()
        if sandbox.leader is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(sandbox.leader, signal.SIGKILL)
            os.close(sandbox.leader)
        _await(sandbox.process)
        sandbox.stderr.close()
        self._abandon()

    def run_test(self, test: bytes) -> Execution:
        """Runs one test. Where the driver dies meanwhile, the test is an error and `alive` turns false."""
        nonce = secrets.token_hex(16).encode()
        assert self._control
        try:
            ours, theirs = _pipes(call=self.program.function is not None)
        except OSError as error:
            raise SandboxError(f"no pipes for a test: {error}") from error
        outside = self.surroundings.outside
        watch = Watch(self._control, self.limits, outside, test, ours)
        try:
            socket.send_fds(self._control, [nonce], theirs)
        except OSError:
            self.alive = False
        for fd in theirs:
            os.close(fd)
        answer = watch.follow() if self.alive else None
        watch.close()
        if answer and "failed" in answer:
            self.alive = False
            raise SandboxError(f"the sandbox failed: {answer['failed']}")
        if answer is None or answer["left"]:
            self.alive = False
        elif outside is not None:
            empty(outside)
        return watch.execution(answer, nonce)


def _await(process: "subprocess.Popen[bytes]") -> None:
    """Waits for the end of a process without a pause between two looks, and ends one whose driver hangs."""
    watched = os.pidfd_open(process.pid)
    poller = select.poll()
    poller.register(watched, select.POLLIN)
    if not poller.poll(GRACE_SECONDS * 1000):
        for one in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.kill()
    process.wait()
    os.close(watched)


def _pipes(*, call: bool) -> tuple[list[int], list[int]]:
    """Our ends and theirs of stdin, stdout, stderr and, of a call, the result."""
    ours, theirs = [], []
    for number in range(4 if call else 3):
        read, write = os.pipe()
        mine, other = (write, read) if number == 0 else (read, write)
        os.set_blocking(mine, False)
        ours.append(mine)
        theirs.append(other)
    return ours, theirs


def run_in_launches(program: Program, launch: Callable[[], SandboxLaunch]) -> Iterator[Execution]:
    """Runs all tests, in as few launches as their drivers live through."""
    current: SandboxLaunch | None = None
    try:
        for test in program.inputs:
            if current is None or not current.alive:
                if current:
                    current.close()
                current = launch()
                current.open()
            yield current.run_test(test)
    finally:
        if current:
            current.close()
