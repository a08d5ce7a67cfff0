"""Loaded by every Python that the tests start, because the tests put this folder on PYTHONPATH.

A test that kills processes loses nothing without fsync, only one that cuts the power would; and on a busy disk most of
the time of a small run would go there. `PACKTRAIN_TEST_FSYNC=1` leaves it on.

Programs are handed over to a server, where a test has asked for that: see `tests/support/warm.py`.
"""

import os
import sys

_LOADS = ["-P", "-m", "packtrain.pipeline.encode.ask_transformers"]


def _nothing(descriptor: object) -> None:
    """In place of `os.fsync`."""


if not os.environ.get("PACKTRAIN_TEST_FSYNC"):
    os.fsync = _nothing  # type: ignore[assignment]


def _is_program(arguments: list[str]) -> bool:
    """Whether Python with these arguments runs code, a module or a file, rather than serving `multiprocessing`."""
    while arguments and arguments[0] in ("-u", "-B"):
        arguments = arguments[1:]
    if not arguments or arguments[0] == "-c":
        return arguments[1:] != [] and not arguments[1].startswith("from multiprocessing")
    return arguments[0] in ("-", "-m") or not arguments[0].startswith("-")


def _hand_over(server: str) -> None:
    """Send this program to the server, wait, and end as it ends. Returns if the server has died."""
    import contextlib
    import json
    import signal
    import socket
    import struct

    size = struct.Struct("<I")

    def read_number() -> int:
        data = b""
        while len(data) < size.size:
            data += connection.recv(size.size - len(data)) or sys.exit("the server of programs has died")
        return int(size.unpack(data)[0])

    pid_writer = int(os.environ.pop("PACKTRAIN_TEST_PID", "-1"))

    def tell_process(process: int) -> None:
        if pid_writer >= 0:
            os.write(pid_writer, f"{process}\n".encode())
            os.close(pid_writer)

    program = {"arguments": sys.orig_argv[1:], "cwd": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
    data = json.dumps(program).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(b"\0" + server.encode())
        except ConnectionRefusedError:
            return tell_process(os.getpid())
        socket.send_fds(connection, [size.pack(len(data))], [0, 1, 2])
        connection.sendall(data)
        process = read_number()

        def pass_on(received: int, frame: object) -> None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(process, received)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, pass_on)
        tell_process(process)
        status = read_number()
    # To end as it ended is also to be killed by the same signal: callers tell the two apart.
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


_once = os.environ.pop("PACKTRAIN_TEST_ONCE", None)
if sys.orig_argv[1:4] == _LOADS and os.environ.get("PACKTRAIN_TEST_LOADER"):
    _hand_over(os.environ["PACKTRAIN_TEST_LOADER"])
elif _once:
    _hand_over(_once)
elif os.environ.get("PACKTRAIN_TEST_PYTHON") and _is_program(sys.orig_argv[1:]):
    _hand_over(os.environ["PACKTRAIN_TEST_PYTHON"])
