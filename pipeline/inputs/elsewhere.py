"""An input on a machine that did not scan it: a worker of another node finds the file, or makes it there, too.

Three cases. A file that was named by its path lies at the same place on a file system that all machines share. What
came from a URL is copied from there once more, into the scratch folder of the machine. Blocks that a scan has kept in
files of their own (of compressed input, of large row groups) are made again by the same scan.
"""

import fcntl
import socket
from dataclasses import dataclass
from pathlib import Path

from ...schemas.errors import InputError
from .blocks import Block, InputFile


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the file of a block came from. Small: it travels in every task."""

    path: Path
    """The whole file, on the machine that scanned it."""
    url: str
    """What it is a copy of; empty for a file that was named by its path."""
    size: int
    stamp: int
    """See `inputs.paths.Found`."""
    max_row_bytes: int
    """With which it was scanned."""


def origin_of(file: InputFile, max_row_bytes: int) -> Origin:
    """What a task says of its file."""
    size, stamp = file.far or (0, 0)
    return Origin(file.path, file.origin if file.far is not None else "", size, stamp, max_row_bytes)


def here(path: Path, block: Block, origin: Origin | None, scratch: Path) -> Path:
    """The file of this machine that holds a block.

    Args:
        path: where it is on the machine that scanned it.
        scratch: the folder of this machine for copies.

    Raises:
        InputError: it cannot be had here.
    """
    if origin is None or path.exists():
        return path
    if block.spooled is None:
        return _whole(origin, scratch)
    mine = scratch.joinpath(*path.parts[-3:])
    if mine.exists():
        return mine
    from ..sources import scan_file  # which imports this module's neighbours

    folder = scratch / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "scan").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mine.exists():
            scan_file("", "", _whole(origin, scratch), origin.max_row_bytes, scratch)
    if not mine.exists():
        raise InputError(f"{origin.url or origin.path} has changed since it was scanned; run again")
    return mine


def _whole(origin: Origin, scratch: Path) -> Path:
    """The whole file."""
    if origin.path.exists():
        return origin.path
    if origin.url:
        from .remote import fetch

        return fetch(origin.url, origin.size, origin.stamp, scratch)
    raise InputError(
        f"{origin.path} is not on {socket.gethostname()}; where several machines work, inputs must lie on a file "
        "system that all of them share, at the same place, or be named by a URL such as s3://bucket/data.jsonl "
        "(without a password or a signature in it)"
    )
