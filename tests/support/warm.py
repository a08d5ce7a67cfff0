"""Processes that are forked from one that has everything imported, so that tests pay the imports once.

A command that is started here differs from one that a shell starts in one thing only: Python and its modules are loaded
already. It has its own process, folder, environment, session and standard streams, and it can be killed. Where a test
is about starting (what is imported, how streams are opened, what the installed script does), it starts the installed
program.

`warm_server` is the other side. All processes of a test session share the servers.
"""

import hashlib
import io
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from json import dumps
from pathlib import Path

PIPELINE = ("packtrain.pipeline.",)
"""What a server imports, and all modules of a name that ends in a dot; but not what they import late, such as torch."""
TRAINING = (*PIPELINE, "warm_training")
"""The same, with torch and everything else that trains."""
UNDER_XDIST = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this process was forked from the server `TRAINING`, which is there then."""
RANKS = (
    TRAINING
    if UNDER_XDIST
    else ("torch.distributed", *(f"packtrain.training.launch.{name}" for name in ("ranks", "doctor")))
)
"""For ranks that only meet."""
TOKENIZER = "packtrain.pipeline.encode.ask_transformers"
OWNER = "PACKTRAIN_TEST_OWNER"
"""The process with which the servers end: that of pytest, or the one that distributes the tests."""
_SIZE = struct.Struct("<I")


class Process:
    """A command that runs, as `subprocess.Popen` has it; text, and both outputs in pipes.

    Args:
        arguments: of packtrain; or `("python", ...)`, as Python takes them.
        stdin: whether it has an input, a pipe; otherwise its input is empty.
        patch: Python that is run before the command, in its process and so in all that it forks.
        modules: what its server has loaded.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        patch: str = "",
        modules: tuple[str, ...] = PIPELINE,
    ) -> None:
        asked = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "patch": patch,
        }
        given, out, ours = os.pipe(), os.pipe(), os.pipe()
        self._server = socket.socket(socket.AF_UNIX)
        _connect(self._server, _start(modules))
        data = dumps(asked).encode()
        handles = [given[0], out[1], ours[1]]
        socket.send_fds(self._server, [_SIZE.pack(len(data))], handles)
        self._server.sendall(data)
        for handle in handles:
            os.close(handle)
        self.stdin = os.fdopen(given[1], "w", encoding="utf-8")
        if not stdin:
            self.stdin.close()
        self.stdout = os.fdopen(out[0], encoding="utf-8", errors="replace")
        self.stderr = os.fdopen(ours[0], encoding="utf-8", errors="replace")
        self.pid: int = _SIZE.unpack(_exactly(self._server, _SIZE.size))[0]
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, minus the signal's number where one ended it; None while it runs."""
        if self.returncode is None:
            asked = select.poll()  # `select` takes no descriptor over 1,023
            asked.register(self._server, select.POLLIN)
            if asked.poll(0):
                self.wait()
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
        """Ends its input. What it wrote, when it and all that hold its streams have ended."""
        self.stdin.close()
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
        """To this process alone. Nothing happens where it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended, and its server has not said so yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stdin.close()
        self.wait()
        self.stdout.close()
        self.stderr.close()


def run(
    arguments: Sequence[object],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = 600,
    modules: tuple[str, ...] = PIPELINE,
) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end, as `subprocess.run` does with both outputs captured as text."""
    process = Process(arguments, cwd=cwd, env=env, modules=modules)
    try:
        out, err = process.communicate(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode is not None
    return subprocess.CompletedProcess([str(argument) for argument in arguments], process.returncode, out, err)


def install(folder: Path, modules: tuple[str, ...] = PIPELINE) -> Path:
    """Write a program `packtrain` that runs its command here, for shells that have the folder on their PATH."""
    program = folder / "packtrain"
    shim = Path(__file__).with_name("shim.py")
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS '{shim}' '{_name(modules)}' \"$@\"\n")
    program.chmod(0o755)
    return program


def python(modules: tuple[str, ...] = TRAINING) -> dict[str, str]:
    """The environment in which every `python PROGRAM`, `python -m MODULE` and `python -c CODE` is forked as well.

    Also those that such a process starts, as torchrun starts its workers. What holds the place of the process, and may
    be killed in its stead, is a Python that waits. Empty on a machine with GPUs, which a server must not touch.
    """
    if Path("/dev/nvidiactl").exists():
        return {}
    site = str(Path(__file__).with_name("site"))
    return {"PACKTRAIN_TEST_PYTHON": _name(modules), "PYTHONPATH": os.environ.get("PYTHONPATH", site)}


def loads_tokenizers() -> str:
    """The server that loads tokenizer folders for runs, whose processes find it as PACKTRAIN_TEST_LOADER.

    Importing transformers takes most of the time of `python -m packtrain.pipeline.encode.ask_transformers`.
    """
    from packtrain.pipeline.encode.tokenizer import ENVIRONMENT

    return _name((TOKENIZER, "without_torch"), tuple(ENVIRONMENT.items()))


def _name(modules: tuple[str, ...], environment: tuple[tuple[str, str], ...] = ()) -> str:
    return _start(modules, environment)[1:].decode()


@cache
def _start(modules: tuple[str, ...], environment: tuple[tuple[str, str], ...] = ()) -> bytes:
    """The address of the server with these modules. The first that wants it starts it; it ends with the session."""
    owner = os.environ.setdefault(OWNER, str(os.getpid()))
    key = hashlib.sha256(repr((modules, environment)).encode()).hexdigest()[:16]
    address = f"\0packtrain-tests-{owner}-{key}".encode()
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address)
        except OSError:
            return address  # another process of this session has started it
        listener.listen(16)
        os.set_inheritable(listener.fileno(), True)
        kept = {name: value for name, value in os.environ.items() if name != "PACKTRAIN_TEST_PYTHON"}
        subprocess.Popen(
            [sys.executable, Path(__file__).with_name("warm_server.py"), str(listener.fileno()), owner, *modules],
            pass_fds=(listener.fileno(),),
            stdin=subprocess.DEVNULL,
            env=kept | {"OPENBLAS_NUM_THREADS": "1"} | dict(environment),
        )
    return address


def _connect(connection: socket.socket, address: bytes) -> None:
    """Wait a moment for a server whose address is taken, but which does not listen yet."""
    for _ in range(3000):
        try:
            return connection.connect(address)
        except ConnectionRefusedError:
            time.sleep(0.02)
    raise EOFError("the server of commands has died; what it printed stands above")


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the server of commands has died; what it printed stands above")
        data += more
    return data
