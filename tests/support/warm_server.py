"""Forks a process for each program that `site/sitecustomize.py` sends: python warm_server.py SOCKET OWNER MODULES...

Ends with the process OWNER.
"""

import atexit
import gc
import importlib
import importlib.util
import multiprocessing.util
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from json import loads
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

EXECNET = "import sys;exec(eval(sys.stdin.readline()))"
"""How xdist starts the processes that run tests. What they spawn is not forked."""
SPAWN = multiprocessing.util.spawnv_passfds
_SIZE = struct.Struct("<I")


def _serve(listener: socket.socket, owner: int, modules: Sequence[str]) -> None:
    """Fork for each connection, until the owner has ended."""
    gc.disable()  # what is imported stays
    for name in modules:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            continue  # a package that is not installed
        package = importlib.import_module(name.removesuffix("."))
        for module in pkgutil.walk_packages(package.__path__, name) if name.endswith(".") else ():
            importlib.import_module(module.name)
    if "packtrain.pipeline." in modules:
        importlib.import_module("packtrain.pipeline.cli.main").command()
    gc.collect()
    gc.freeze()  # nothing of this is collected in a child, whose file descriptors are others
    gc.enable()
    # Finalizers are of modules, which end with this process; in a child they cost more than most commands.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    _Children(listener, owner).attend()


class _Children:
    """Starts programs, waits for them, and says how they ended. All in one process: a fork of so much takes a while."""

    def __init__(self, listener: socket.socket, owner: int) -> None:
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(listener, selectors.EVENT_READ, self._accept)
        self._waiting.register(os.pidfd_open(owner), selectors.EVENT_READ, self._end)
        self._listener = listener
        self._children: dict[socket.socket, int] = {}

    def attend(self) -> NoReturn:
        """Until the owner has ended."""
        while True:
            for key, _ in self._waiting.select():
                if key in self._waiting.get_map().values():  # not closed a moment ago
                    key.data()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(30)
        handles: list[int] = []
        try:
            head, handles, _, _ = socket.recv_fds(connection, _SIZE.size, 3)
            program = loads(_exactly(connection, _SIZE.unpack(head)[0]))
        except (OSError, EOFError, struct.error):  # the one that asked is gone
            for handle in [connection.detach(), *handles]:
                os.close(handle)
            return
        child = os.fork()
        if child == 0:
            try:
                # The child serves nothing: what it held open would keep others from noticing that this process ended.
                for key in list(self._waiting.get_map().values()):
                    os.close(key.fd)
                self._waiting.close()
                connection.close()
                _become(program, handles)
            finally:
                os._exit(1)
        for handle in handles:
            os.close(handle)
        self._children[connection] = child
        ended = os.pidfd_open(child)
        self._waiting.register(ended, selectors.EVENT_READ, lambda: self._ended(connection, ended))
        self._waiting.register(connection, selectors.EVENT_READ, lambda: self._kill(connection))
        with suppress(OSError):
            connection.sendall(_SIZE.pack(child))

    def _ended(self, connection: socket.socket, ended: int) -> None:
        _, status = os.waitpid(self._children.pop(connection), 0)
        self._waiting.unregister(ended)
        os.close(ended)
        if connection in self._waiting.get_map():
            self._waiting.unregister(connection)
        with suppress(OSError):
            connection.sendall(_SIZE.pack(status))
        connection.close()

    def _kill(self, connection: socket.socket) -> None:
        """The one that asked is gone."""
        self._waiting.unregister(connection)
        os.kill(self._children[connection], signal.SIGKILL)

    def _end(self) -> NoReturn:
        for child in self._children.values():
            os.kill(child, signal.SIGKILL)
        os._exit(0)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _become(program: dict[str, Any], handles: list[int]) -> NoReturn:
    """In a new process: be that program.

    Args:
        program: its `arguments`, `cwd` and `environment`.
        handles: its standard streams.
    """
    code = 1
    try:
        os.setsid()  # a signal to its group must not reach the server
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
            os.close(handle)
        os.chdir(program["cwd"])
        os.environ.clear()
        os.environ.update(program["environment"])
        time.tzset()
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(  # type: ignore[misc]  # noqa: SIM115
            2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        multiprocessing.util.spawnv_passfds = _fork_python  # type: ignore[assignment]
        code = _call(program["arguments"])
    except BaseException:
        traceback.print_exc()
    _leave(code)


def _call(arguments: list[str]) -> int:
    """Run the program; its exit code."""
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        _python(arguments)
    except SystemExit as leave:
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
            return 1
        return leave.code or 0
    return 0


def _python(arguments: list[str]) -> None:
    """As `python ARGUMENTS` does it: `-c CODE ...`, `-m MODULE ...`, `- ...` or `PROGRAM ...`."""
    while arguments[0] in ("-u", "-B", "-P"):
        if arguments[0] == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        arguments = arguments[1:]
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in more if path and path not in sys.path]
    warnings.filterwarnings("ignore", ".* found in sys.modules after import", RuntimeWarning)
    match arguments:
        case ["-c", code, *rest]:
            sys.argv = ["-c", *rest]
            sys.path[0] = ""
            if code == EXECNET:
                multiprocessing.util.spawnv_passfds = SPAWN
            exec(compile(code, "<string>", "exec"), sys.modules["__main__"].__dict__)
        case ["-m", name, *rest]:
            sys.argv = [name, *rest]
            sys.path[0] = str(Path.cwd())
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        case ["-", *rest]:
            sys.argv = ["-", *rest]
            sys.path[0] = ""
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), sys.modules["__main__"].__dict__)
        case [program, *_]:
            sys.argv = arguments
            sys.path[0] = str(Path(program).resolve().parent)
            runpy.run_path(program, run_name="__main__")


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


_SPAWN: Callable[..., int] = multiprocessing.util.spawnv_passfds


def _fork_python(path: object, arguments: Sequence[object], passed: Sequence[int]) -> int:
    """In place of `multiprocessing.util.spawnv_passfds`: the new Python is a fork of this one.

    It has the file descriptors that were passed and the standard streams, as a new one has. Where an object store was
    used, it is a new one: the threads of obstore do not survive a fork.
    """
    if "obstore" in sys.modules:
        return _SPAWN(path, arguments, passed)
    words = [os.fsdecode(word) if isinstance(word, bytes) else str(word) for word in arguments]
    code = words[words.index("-c") + 1]
    child = os.fork()
    if child:
        return child
    try:
        gc.freeze()  # what is shared with the parent is not copied by a search for garbage
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
    # Ctrl-C in the terminal of pytest is pytest's; this process ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:])
