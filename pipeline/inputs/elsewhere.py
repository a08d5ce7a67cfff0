"""Files on a machine that did not scan them, for workers of other nodes.

A file given by path must be on a shared file system, at the same path; a file from a URL is copied again, into the
machine's scratch folder; blocks that a scan keeps in separate files are made again by the same scan.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from ...schemas.errors import InputError
from ...schemas.files.lock import alone
from .blocks import Block, InputFile
from .fetch import fetch
from .scan import scan_file


@dataclass(frozen=True, slots=True)
class InputOrigin:
    """Where the file of a block came from. Small, because it is sent with every task."""

    path: Path
    """The whole file, on the machine that scanned it."""
    url: str
    """The URL that it is a copy of; empty for a file given by path."""
    size: int
    stamp: int
    """See `inputs.find.Found`."""
    max_row_bytes: int
    """The `max_row_bytes` of the scan."""


def origin_of(file: InputFile, max_row_bytes: int) -> InputOrigin:
    """The origin of a file, for tasks."""
    size, stamp = file.far or (0, 0)
    return InputOrigin(file.path, file.origin if file.far is not None else "", size, stamp, max_row_bytes)


def here(path: Path, block: Block, origin: InputOrigin | None, scratch: Path) -> Path:
    """The file on this machine that contains a block.

    Args:
        path: its path on the machine that scanned it.
        scratch: this machine's folder for copies.

    Raises:
        InputError: it is not available here.
    """
    if origin is None or path.exists():
        return path
    if block.spooled is None:
        return _whole(origin, scratch)
    mine = scratch.joinpath(*path.parts[-3:])
    if mine.exists():
        return mine
    with alone(scratch / "locks" / "scan"):
        if not mine.exists():
            scan_file("", "", _whole(origin, scratch), origin.max_row_bytes, scratch)
    if not mine.exists():
        raise InputError(f"{origin.url or origin.path} has changed since it was scanned; run again")
    return mine


def _whole(origin: InputOrigin, scratch: Path) -> Path:
    """The whole file."""
    if origin.path.exists():
        return origin.path
    if origin.url:
        return fetch(origin.url, origin.size, origin.stamp, scratch)
    raise InputError(
        f"{origin.path} is not on {socket.gethostname()}; with several machines, inputs must be on a file "
        "system that all of them share, at the same path, or be given by a URL such as s3://bucket/data.jsonl "
        "(without a password or a signature in it)"
    )
