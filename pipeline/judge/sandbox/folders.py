"""A temporary folder that a program which is not trusted writes to, measured and emptied from outside."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_ENTRIES = 1024


def is_over(folder: Path, most_bytes: int) -> bool:
    """Whether more lies in a folder than allowed, in bytes on the disk or in entries, or so deep that it hides."""
    size = entries = 0

    def unreadable(error: OSError) -> None:
        if error.errno == errno.ENAMETOOLONG:
            raise error

    try:
        for place, folders, files in os.walk(folder, onerror=unreadable):
            entries += len(folders) + len(files)
            for name in files:
                try:
                    size += os.lstat(os.path.join(place, name)).st_blocks * 512  # noqa: PTH118 - a path may be long
                except FileNotFoundError:
                    continue
            if size > most_bytes or entries > MOST_ENTRIES:
                return True
    except OSError:
        return True
    return False


def empty(folder: Path) -> None:
    """Removes what is in a folder. No process may be at work in it."""
    folder.chmod(0o700)
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            remove(Path(entry.path))
        else:
            Path(entry.path).unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Removes a folder whatever its depth, and although its owner has taken permissions away."""

    def permit(_: Callable[..., Any], path: str, __: object) -> None:
        parent = Path(path).parent
        if parent.is_relative_to(folder):
            parent.chmod(0o700)
        if not Path(path).is_symlink():
            Path(path).chmod(0o700)

    for _ in range(3):  # each goes deeper than the one before, if permissions were missing
        try:
            shutil.rmtree(folder, onerror=permit)
        except (OSError, RecursionError):
            subprocess.run(["rm", "-rf", "--", str(folder)], check=False, capture_output=True)
        if not folder.exists():
            return
