"""Users without rights, for programs that root has run: numbers that no account has, a different one for each launch.

The kernel counts processes by user and does not count root's, so that under root no limit would stop a fork bomb; and
with one user for all launches, one program would use up what another may.
"""

import os
from functools import cache
from pathlib import Path

_WIDE = range(1_900_000_000, 1_900_000_000 + (1 << 22))  # process ids end at 2**22
_NARROW = range(40_000, 60_000)


@cache
def unprivileged_users() -> range | None:
    """A launch takes one by its process id. None if this process is not root, or its namespace knows one user only."""
    if os.geteuid() != 0:
        return None
    lines = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    known = max(int(first) + int(count) for first, _, count in lines)
    return next((users for users in (_WIDE, _NARROW) if users.stop <= known), None)
