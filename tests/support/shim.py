"""`packtrain` in a shell of a test: hands the command to the server of `warm` and ends as it ends.

Run as `python -IS shim.py SERVER ARGUMENTS...`; takes some 20 ms. Standard streams, folder and environment are those
of the shell, and signals are passed on.
"""

import json
import os
import signal
import socket
import struct
import sys
from typing import NoReturn

SIZE = struct.Struct("<I")


def number(connection: socket.socket) -> int:
    """The next number of the server."""
    data = b""
    while len(data) < SIZE.size:
        data += connection.recv(SIZE.size - len(data)) or sys.exit("the server of commands has died")
    return int(SIZE.unpack(data)[0])


def hand_over(server: str, arguments: list[str]) -> NoReturn:
    """Send, wait, end."""
    asked = {"arguments": arguments, "cwd": os.getcwd(), "environment": dict(os.environ), "patch": ""}  # noqa: PTH109
    data = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(b"\0" + server.encode())
        socket.send_fds(connection, [SIZE.pack(len(data))], [0, 1, 2])
        connection.sendall(data)
        process = number(connection)
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, lambda received, _: os.kill(process, received))
        status = number(connection)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    hand_over(sys.argv[1], sys.argv[2:])
