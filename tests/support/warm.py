"""A server that has packtrain imported and forks a process for each command, so that tests pay the imports once.

A command that is started here differs from one that a shell starts in one thing only: Python and the modules of a run
are loaded already. It has its own process, folder, environment, session and standard streams, and it can be killed.
Where a test is about starting (what is imported, how streams are opened, what the installed script does), it starts
the installed program.
"""

import atexit
import gc
import importlib
import io
import multiprocessing.util
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from json import dumps, loads
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

PIPELINE = "packtrain.pipeline."
"""A server that loads all modules of this package. What they import late, such as torch, is not loaded."""
_SIZE = struct.Struct("<I")


# The side of the tests


class Process:
    """A command that runs, as `subprocess.Popen` has it; text, and both outputs in pipes.

    Args:
        arguments: of packtrain; or `("-c", code, ...)`, as Python takes them.
        patch: Python that is run before the command, in its process and so in all that it forks.
        modules: what its server has loaded; a name that ends in a dot is a package with all its modules.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        patch: str = "",
        modules: tuple[str, ...] = (PIPELINE,),
    ) -> None:
        asked = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "patch": patch,
        }
        out, ours = os.pipe(), os.pipe()
        with Path(os.devnull).open("rb") as nothing:
            self._server = socket.socket(socket.AF_UNIX)
            self._server.connect(_start(modules))
            data = dumps(asked).encode()
            handles = [nothing.fileno(), out[1], ours[1]]
            socket.send_fds(self._server, [_SIZE.pack(len(data))], handles)
            self._server.sendall(data)
        os.close(out[1])
        os.close(ours[1])
        self.stdout = os.fdopen(out[0], encoding="utf-8", errors="replace")
        self.stderr = os.fdopen(ours[0], encoding="utf-8", errors="replace")
        self.pid: int = _SIZE.unpack(_exactly(self._server, _SIZE.size))[0]
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, minus the signal's number where one ended it; None while it runs."""
        if self.returncode is None:
            ready = selectors.DefaultSelector()
            ready.register(self._server, selectors.EVENT_READ)
            if ready.select(0):
                self.wait()
            ready.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """See `subprocess.Popen.wait`."""
        if self.returncode is None:
            self._server.settimeout(timeout)
            try:
                (status,) = _SIZE.unpack(_exactly(self._server, _SIZE.size))
            except TimeoutError:
                raise subprocess.TimeoutExpired("packtrain", timeout or 0) from None
            self.returncode = os.waitstatus_to_exitcode(status)
            self._server.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote, when it and all that hold its streams have ended."""
        said: dict[str, str] = {"out": "", "err": ""}

        def read(name: str, stream: io.TextIOWrapper) -> None:
            if not stream.closed:
                with stream:
                    said[name] = stream.read()

        readers = [
            threading.Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in (("out", self.stdout), ("err", self.stderr))
        ]
        end = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("packtrain", timeout or 0)
        self.wait(None if end is None else max(0.1, end - time.monotonic()))
        return said["out"], said["err"]

    def send_signal(self, number: int) -> None:
        """To this process alone."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *exc: object) -> None:
        self.wait()
        self.stdout.close()
        self.stderr.close()


def run(
    arguments: Sequence[object],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = 120,
) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end, as `subprocess.run` does with both outputs captured as text."""
    process = Process(arguments, cwd=cwd, env=env)
    try:
        out, err = process.communicate(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode is not None
    return subprocess.CompletedProcess([str(argument) for argument in arguments], process.returncode, out, err)


def install(folder: Path) -> Path:
    """Write a program `packtrain` that runs its command here, for shells that have the folder on their PATH."""
    program = folder / "packtrain"
    shim = Path(__file__).with_name("shim.py")
    server = _start((PIPELINE,))[1:].decode()
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS '{shim}' '{server}' \"$@\"\n")
    program.chmod(0o755)
    return program


@cache
def _start(modules: tuple[str, ...]) -> bytes:
    """The address of the server with these modules, started with its first command; it ends with this process."""
    address = f"\0packtrain-tests-{os.getpid()}-{time.monotonic_ns()}".encode()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    read, write = os.pipe()  # `write` stays open for as long as this process lives
    os.set_inheritable(read, True)
    subprocess.Popen(
        [sys.executable, __file__, str(listener.fileno()), str(read), *modules],
        pass_fds=(listener.fileno(), read),
        stdin=subprocess.DEVNULL,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    listener.close()
    os.close(read)
    atexit.register(os.close, write)
    return address


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the server of commands has died; what it printed stands above")
        data += more
    return data


# The side of the server


def _serve(listener: socket.socket, alive: int, modules: Sequence[str]) -> None:
    """Fork for each connection, until nobody holds the other end of `alive`."""
    for name in modules:
        package = importlib.import_module(name.removesuffix("."))
        for module in pkgutil.walk_packages(package.__path__, name) if name.endswith(".") else ():
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # nothing of this is collected in a child, whose file descriptors are others
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(alive, selectors.EVENT_READ)
    while True:
        ready = [key.fileobj for key, _ in waiting.select()]
        if alive in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(alive)
            try:
                _attend(connection)
            finally:
                os._exit(1)
        connection.close()
        while _reaped():
            pass


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] > 0
    except ChildProcessError:
        return False


def _attend(connection: socket.socket) -> NoReturn:
    """Start one command, wait for it, say how it ended. A process of its own, so that many run at once."""
    head, handles, _, _ = socket.recv_fds(connection, _SIZE.size, 3)
    asked = loads(_exactly(connection, _SIZE.unpack(head)[0]))
    child = os.fork()
    if child == 0:
        connection.close()
        _become(asked, handles)
    for handle in handles:
        os.close(handle)
    connection.sendall(_SIZE.pack(child))
    _, status = os.waitpid(child, 0)
    connection.sendall(_SIZE.pack(status))
    os._exit(0)


def _become(asked: dict[str, Any], handles: list[int]) -> NoReturn:
    """In a new process: be that command."""
    code = 1
    try:
        os.setsid()
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
            os.close(handle)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        time.tzset()
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(  # type: ignore[misc]  # noqa: SIM115
            2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        multiprocessing.util.spawnv_passfds = _fork_python  # type: ignore[assignment]
        if asked["patch"]:
            exec(asked["patch"], {"__name__": "patch"})
        code = _call(asked["arguments"])
    except BaseException:
        traceback.print_exc()
    _leave(code)


def _call(arguments: list[str]) -> int:
    """Run the command, or the Python that was given; the exit code."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    try:
        if arguments[:1] == ["-c"]:
            sys.argv = ["-c", *arguments[2:]]
            sys.path.insert(0, "")
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        else:
            from packtrain.pipeline.cli import main as command

            sys.argv = [str(Path(sys.executable).parent / "packtrain"), *arguments]
            command()
    except SystemExit as leave:
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
            return 1
        return leave.code or 0
    return 0


def _leave(code: int) -> NoReturn:
    """End as Python ends: threads, then exit functions, then the streams."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        code = code or 120
    os._exit(code)


def _fork_python(path: object, arguments: Sequence[object], passed: Sequence[int]) -> int:
    """In place of `multiprocessing.util.spawnv_passfds`: the new Python is a fork of this one.

    It has the file descriptors that were passed and the standard streams, as one that is started anew.
    """
    words = [os.fsdecode(word) if isinstance(word, bytes) else str(word) for word in arguments]
    code = words[words.index("-c") + 1]
    child = os.fork()
    if child:
        return child
    try:
        gc.freeze()
        keep = {0, 1, 2, *passed}
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            if int(name) not in keep:
                with suppress(OSError):  # that of the listing itself is closed already
                    os.close(int(name))
        sys.argv = ["-c"]
        main = sys.modules["__main__"] = ModuleType("__main__")
        atexit._clear()
        exec(code, main.__dict__)
    except SystemExit as leave:
        os._exit(leave.code if isinstance(leave.code, int) else 0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN if one == signal.SIGINT else signal.SIG_DFL)
    _serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:])
