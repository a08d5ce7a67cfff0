"""The only code of ours inside a sandbox: forks once per test. Standard library only; sent as the text of `python -c`.

It speaks with the parent over a socket at descriptor 0, one message each way at a time:

1. parent: a file with the setup (JSON). Driver: `{"ready": …}`.
2. For each test, parent: 16 bytes of a secret nonce, with the test's stdin, stdout, stderr and (of a call) result as
   descriptors. Driver, when every process of the test has ended: `{"status": …, "wall": …, "cpu": …}`.
3. Parent, any time: `stop`, which ends the test that runs. End of file ends the driver, and everything with it.

What protects the driver from programs: it is process 1 of its namespace (which signals from inside do not reach) or
stands outside the Landlock domain of the programs; a seccomp filter without ptrace and the like; a socket that
programs do not inherit. What it forks gives up capabilities and user first.
"""

import atexit
import builtins
import ctypes
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import types

PRELUDE = (
    "typing", "string", "re", "datetime", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "collections",
)  # fmt: skip
"""What a call-based program finds without importing it, as LeetCode gives it: these modules by name, and all their
public names except those of builtins (`pow`, say). Later modules win; `datetime` is the class."""
WARM = ("fractions", "decimal", "array", "queue", "dataclasses")
"""Of these and the modules above, those that a program names are imported once, before the first fork."""

PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
PR_SET_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 36, 38, 22, 2
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446  # the same on every architecture
MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2
CAPSET = {"x86_64": 126, "aarch64": 91}
STREAMS = (
    (0, "stdin", "rb", "surrogateescape"),
    (1, "stdout", "wb", "surrogateescape"),
    (2, "stderr", "wb", "backslashreplace"),
)
STACK = 512 << 20  # deep recursion through C functions; address space only, bounded by the limit of memory

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


class DriverSetup:
    """What the parent says once: see `launch.py`."""

    def __init__(self, fields: dict) -> None:  # type: ignore[type-arg]
        self.code: str = fields["code"]
        self.function: str | None = fields["function"]
        self.cpu_seconds: int = fields["cpu_seconds"]
        self.memory_bytes: int = fields["memory_bytes"]
        self.tasks: int | None = fields["tasks"]
        self.file_bytes: int = fields["file_bytes"]
        self.folder: str = fields["folder"]
        self.mount: bool = fields["mount"]
        self.uid: int | None = fields["uid"]
        self.landlock: bool = fields["landlock"]
        self.filter = bytes.fromhex(fields["filter"])
        self.contained = False


def main() -> None:
    control = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _, (fd,), *_ = socket.recv_fds(control, 64, 1)
    with os.fdopen(fd, "rb") as file:
        setup = DriverSetup(json.load(file))
    libc.prctl(PR_SET_SUBREAPER, 1, 0, 0, 0)
    setup.contained = is_contained(setup)
    for name in PRELUDE if setup.function is not None else (one for one in (*PRELUDE, *WARM) if one in setup.code):
        importlib.import_module(name)
    gc.freeze()
    control.send(json.dumps({"ready": True, "contained": setup.contained}).encode())
    while True:
        message, fds, *_ = socket.recv_fds(control, 64, 4)
        if not message:
            kill_all(setup)
            return
        if message != b"stop":  # a late one: its test has ended
            try:
                answer = run_test(setup, control, message, fds)
            except OSError as error:
                answer = {"failed": str(error)}
            control.send(json.dumps(answer).encode())


def is_contained(setup: DriverSetup) -> bool:
    """Whether signalling all processes reaches only this sandbox's. Tried: the parent must be out of reach."""
    if os.getpid() == 1:
        return True
    if not setup.landlock:
        return False
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return True
    return False


def kill_all(setup: DriverSetup, pid: int | None = None) -> None:
    try:
        if setup.contained:
            os.kill(-1, signal.SIGKILL)
        elif pid:
            os.kill(pid, signal.SIGKILL)
            os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:  # in a sandbox that shares its process ids, some of them are not ours
        pass


def run_test(setup: DriverSetup, control: socket.socket, nonce: bytes, fds: list[int]) -> dict[str, object]:
    if setup.mount:
        options = f"size={setup.file_bytes},nr_inodes=1024,mode=1777".encode()
        checked(libc.mount(b"tmpfs", setup.folder.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options), "mount")
    started = time.monotonic()
    pid = os.fork()
    if not pid:
        try:
            control.close()
            become_program(setup, nonce, fds)
        finally:
            os._exit(71)
    for fd in fds:
        os.close(fd)
    await_end(pid, control)
    wall = time.monotonic() - started
    kill_all(setup, pid)
    _, status, usage = os.wait4(pid, 0)
    left = reap(setup)
    if setup.mount:
        checked(libc.umount2(setup.folder.encode(), MNT_DETACH), "umount")
    cpu = usage.ru_utime + usage.ru_stime
    return {"status": os.waitstatus_to_exitcode(status), "wall": wall, "cpu": cpu, "left": left}


def await_end(pid: int, control: socket.socket) -> None:
    """Returns when the test's own process has ended, or the parent sends `stop` (which is left for `main`) or goes."""
    process = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(process, select.POLLIN)
    poller.register(control, select.POLLIN)
    poller.poll()
    os.close(process)


def reap(setup: DriverSetup) -> bool:
    """Collects what the program left behind. True if the next test needs a new launch.

    That is because something still runs that cannot be reached, or because sandlock goes on counting processes that
    were killed after their parents had ended.
    """
    found = False
    while True:
        try:
            if os.waitpid(-1, 0 if setup.contained else os.WNOHANG)[0] == 0:
                return True
            found = True
        except ChildProcessError:
            return found and setup.landlock


# In the forked process


def become_program(setup: DriverSetup, nonce: bytes, fds: list[int]) -> None:
    """Gives up what the driver has, then runs the program. Does not return."""
    for target, fd in enumerate(fds):  # received above 2, in order: none is overwritten before it is moved
        os.dup2(fd, target, inheritable=target < 3)
    os.closerange(len(fds), 256)
    os.setsid()
    os.chdir(setup.folder)
    confine(setup)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["program.py"]
    for number, name, mode, errors in STREAMS:
        file = io.open(number, mode, 0 if number == 2 else -1, closefd=False)  # noqa: SIM115, UP020
        stream = io.TextIOWrapper(file, "utf-8", errors, write_through=number == 2)
        stream.mode = mode[0]  # type: ignore[misc]  # a common template of fast input reads it
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    add_exit()
    try:
        if setup.function is not None:
            answer(setup.code, setup.function, nonce)
            os._exit(0)  # what the call returned stands; threads that it left do not matter
        run_script(setup.code)
        leave(0)
    except SystemExit as error:
        leave(exit_code(error))
    except BaseException as error:
        tell(error)
        leave(1)


def confine(setup: DriverSetup) -> None:
    wanted = {
        resource.RLIMIT_CPU: setup.cpu_seconds,
        resource.RLIMIT_FSIZE: setup.file_bytes,
        resource.RLIMIT_NPROC: setup.tasks,
        resource.RLIMIT_NOFILE: 128,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_STACK: STACK,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_AS: setup.memory_bytes,
    }
    for limit, soft in wanted.items():
        if soft is not None:
            # CPU: a second more until the signal that cannot be caught.
            hard = soft + 1 if limit == resource.RLIMIT_CPU else soft
            most = resource.getrlimit(limit)[1]
            if most != resource.RLIM_INFINITY:
                soft, hard = min(soft, most), min(hard, most)
            resource.setrlimit(limit, (soft, hard))
    if setup.uid is not None:
        os.setgroups([])
        os.setresgid(setup.uid, setup.uid, setup.uid)
        os.setresuid(setup.uid, setup.uid, setup.uid)
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    checked(libc.syscall(CAPSET[os.uname().machine], header, (ctypes.c_uint32 * 6)()), "capset")
    if setup.landlock:
        # A domain of its own: no signals and no abstract sockets to what is outside, the driver included.
        attributes = (ctypes.c_uint64 * 3)(0, 0, 3)
        ruleset = checked(libc.syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(24), 0), "landlock")
        checked(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock")
        os.close(ruleset)
    code = ctypes.create_string_buffer(setup.filter, len(setup.filter))

    class SockFprog(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = SockFprog(len(setup.filter) // 8, ctypes.addressof(code))
    if setup.filter:
        checked(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def add_exit() -> None:
    """`exit` and `quit`, which `python -S` leaves out."""
    import _sitebuiltins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))


def new_module(name: str) -> dict[str, object]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module.__dict__


def run_script(code: str) -> None:
    exec(compile(code, "program.py", "exec", dont_inherit=True), new_module("__main__"))


def answer(code: str, function: str, nonce: bytes) -> None:
    """Calls the function with the arguments that stand on stdin and writes nonce and JSON to descriptor 3.

    All that this needs is taken before the program's first line runs: it can forge its own value (which is the same as
    returning it), but not by accident.
    """
    write, encode = os.write, json.JSONEncoder().encode
    arguments = json.loads(sys.stdin.buffer.read())
    given: dict[str, object] = {}
    for name in PRELUDE:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [one for one in vars(module) if one[:1] != "_"]
        given.update({one: getattr(module, one) for one in public if not hasattr(builtins, one)})
    given.update({name: sys.modules[name] for name in (*PRELUDE, "sys")})
    given["datetime"] = sys.modules["datetime"].datetime
    # Not in the program's own names: what we give (`gcd`, say) must not pass for a function that it was to write.
    vars(builtins).update(given)
    namespace = new_module("solution")
    exec(compile(code, "program.py", "exec", dont_inherit=True), namespace)
    solution = namespace.get("Solution")
    if isinstance(solution, type) and hasattr(solution, function):
        call = getattr(solution(), function)
    elif function in namespace:
        call = namespace[function]
    else:
        raise NameError(f"the program defines no {function!r}")
    left = memoryview(nonce + encode(call(*arguments)).encode())
    while left:
        left = left[write(3, left) :]


def exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 255
    os.write(2, f"{error.code}\n".encode(errors="backslashreplace"))
    return 1


def tell(error: BaseException) -> None:
    """Writes the traceback without our own frames, as far as the memory that is left allows."""
    try:
        import traceback

        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename == "<string>":
            frames = frames.tb_next
        traceback.print_exception(type(error), error, frames, limit=-20)
    except BaseException:
        os.write(2, type(error).__name__.encode() + b"\n")


def leave(code: int) -> None:
    """Ends as Python ends, without taking modules apart one by one (three milliseconds): what a program must not lose
    is what stands in buffers of its files."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
        atexit._run_exitfuncs()
        flush("stdout")
        if (main := sys.modules["__main__"].__dict__) is not globals():  # a call, or a program that does not compile
            main.clear()
        gc.collect()
        flush("__stdout__")
    except BaseException as error:
        tell(error)
        code = code or 120
    os._exit(code)


def flush(name: str) -> None:
    stream = getattr(sys, name, None)
    if stream is not None and not getattr(stream, "closed", False):
        stream.flush()


if __name__ == "__main__":
    main()
