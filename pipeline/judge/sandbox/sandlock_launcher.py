"""Starts a driver under sandlock. A script of its own, so that it can give up root, and so that it ends what is left.

Its one argument is JSON: `command`, `environment`, `packages` (where sandlock is), `readable`, `denied`, `folder`,
`processes` and `users` (first and number; null: stay who we are). Descriptor 0 is the socket to the driver, which
inherits it.
"""

import ctypes
import json
import os
import shutil
import signal
import sys
from pathlib import Path

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36


def main() -> None:
    parent = os.getppid()
    orders = json.loads(sys.argv[1])
    sys.path.append(orders["packages"])
    import sandlock

    libc = ctypes.CDLL(None)
    if orders["users"]:
        first, number = orders["users"]
        user = first + os.getpid() % number
        os.chown(orders["folder"], user, user)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # the supervisor looks at processes of this user
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.chdir(orders["folder"])
    box = sandlock.Sandbox(
        fs_readable=orders["readable"],
        fs_denied=orders["denied"],
        fs_writable=[orders["folder"], os.devnull],
        clean_env=True,
        env=orders["environment"],
        cwd=orders["folder"],
        max_processes=orders["processes"],
        no_coredump=True,
    )
    code = box.run_interactive(orders["command"])
    end_children()
    if os.getppid() != parent:  # which would have removed it
        shutil.rmtree(orders["folder"], ignore_errors=True)
    sys.exit(code)


def end_children() -> None:
    """Ends what a driver that died has left. Its children are ours now, and theirs become ours when they have died."""
    while True:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                    os.kill(int(stat.parent.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
