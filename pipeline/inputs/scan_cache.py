"""Scans inputs with notes in the cache, so that unchanged files are not read again.

A note is valid for files of the same sizes, inodes and times, including the change time (ctime), which no program can
set back; for a URL, the same size and metadata of its store. Inputs without these, such as datasets of the hub, are
scanned each time. Every block's hash is checked again when it is encoded.

Small files share a note, up to the size of a block. Drivers that share a run share the notes: each scans its own share
first, then what the others have not.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ... import __version__
from ...schemas.errors import IntegrityError, StoreError
from ...schemas.fingerprint import fingerprint, version
from ..execute.executor import parse_shard, turns
from ..store.checksummed import get_note, put_note
from ..store.local import LocalStore, open_regular
from ..store.open_store import Store
from . import scan
from .blocks import Block, InputFile
from .fetch import copy_of
from .find import Found, InputKind
from .spool import spool_name

if TYPE_CHECKING:
    from ...schemas.config.config import SourceConfig

FORMAT = 9
"""Raised whenever the format of notes or the way of cutting files changes."""
_THREADS = 4
"""Files scanned at once: hashing and decompressing release Python's lock."""
_SECOND = 1_000_000_000
_SETTLED = _SECOND // 10
"""Nanoseconds after which another change certainly gets a different time: file systems count in steps of up to 10 ms,
old ones in seconds."""
_Group = list[tuple[Found, str]]
"""Inputs that share a note, with their labels."""


class _Note(msgspec.Struct):
    files: list[InputFile]


def scan_inputs(
    sources: "Iterable[SourceConfig]",
    base: Path,
    scratch: LocalStore,
    *,
    notes: Store | None = None,
    shard: str | None = None,
) -> list[InputFile]:
    """All files of all sources, in order, hashed and cut, up to each source's `max_rows`.

    Args:
        scratch: this machine's folder for copies of remote files, and for blocks of compressed ones.
        notes: holds the notes; by default `scratch`.
        shard: `i/N` for a driver that shares the work with others.

    Raises:
        ConfigError: see `find_inputs`.
        InputError: a file is empty, damaged, or cannot be read.
        StoreError: the cache cannot be written, or the disk is full.
    """
    share = parse_shard(shard) if shard is not None else None
    return [
        file
        for source in sources
        for file in scan.first_rows(_scan(source, base, scratch, notes or scratch, share), source.max_rows)
    ]


def _scan(
    source: "SourceConfig", base: Path, scratch: LocalStore, notes: Store, share: tuple[int, int] | None
) -> list[InputFile]:
    groups = list(_groups(scan.inputs_of(source, base, scratch.root)))
    done: dict[int, list[InputFile]] = {}

    def look_or_scan(number: int) -> None:
        group = groups[number]
        name, settled = _name(group, source.max_row_bytes)
        # The first file must be local, to detect formats. Others may be fetched when they are encoded.
        note = get_note(notes, name, _Note) if name is not None else None
        known = _noted(note, group, scratch, far=share is not None and number > 0)
        if known is None:
            known = [scan.scan_one(source, found, label, scratch.root) for found, label in group]
            # Otherwise a file changed meanwhile, or may change unnoticed, and the note would be wrong.
            if name is not None and settled and _name(group, source.max_row_bytes)[0] == name:
                with suppress(StoreError):  # a read-only cache or a full disk; notes are optional
                    put_note(notes, name, _Note(known))
        done[number] = [replace(file, source=source.name) for file in known]

    order = range(len(groups)) if share is None else turns(len(groups), *share)
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(look_or_scan, order):
            pass  # raises errors of the threads
    return [file for number in range(len(groups)) for file in done[number]]


def _noted(note: _Note | None, group: _Group, scratch: LocalStore, *, far: bool) -> list[InputFile] | None:
    """The files of a note with this run's names; None if there is none, or if a file that it needs is not here.

    Copies and blocks are looked for in our own folder, whatever path the note has.

    Args:
        far: whether copies of URLs may be only on other machines.
    """
    out = list[InputFile]()
    if note is None or len(note.files) != len(group):
        return None
    try:
        for file, (found, label) in zip(note.files, group, strict=True):
            path = found.path if found.kind is InputKind.LOCAL else copy_of(file.path.name, scratch)
            if not (far and file.far is not None) and path.stat().st_size != file.size:
                return None
            blocks = tuple(_kept(block, scratch) for block in file.blocks)
            out.append(scan.named(replace(file, label=label, path=path, blocks=blocks), found))
    except (ValueError, OSError, IntegrityError):
        return None
    return out


def _kept(block: Block, scratch: LocalStore) -> Block:
    """The block, with the place in our own cache if it is kept there.

    Raises:
        ValueError: it is not there.
    """
    if block.spooled is None:
        return block
    kept = scratch.path(spool_name(block.content))
    if kept.is_symlink() or not kept.is_file():
        raise ValueError(f"{kept} is not there")
    return msgspec.structs.replace(block, spooled=kept)


def _groups(inputs: Sequence[tuple[Found, str]]) -> Iterator[_Group]:
    """The inputs in order, with small neighbours grouped."""
    group, left = _Group(), scan.BLOCK_BYTES
    for found, label in inputs:
        size = found.size if found.kind is InputKind.LOCAL else scan.BLOCK_BYTES
        if group and size > left:
            yield group
            group, left = [], scan.BLOCK_BYTES
        group.append((found, label))
        left -= size
    if group:
        yield group


def _name(group: _Group, max_row_bytes: int) -> tuple[str | None, bool]:
    """The name of the note for some files, and whether any later change of them would change the name. None if changes
    cannot be detected.
    """
    what, settled, now = list[Any](), True, time.time_ns()
    for found, _ in group:
        if found.kind is InputKind.URL:
            if not found.stamp:
                return None, False
            what.append([found.name, found.size, found.stamp])
            continue
        try:
            with open_regular(found.path) as file:  # a network file system may otherwise answer from its cache
                stat = os.fstat(file.fileno())
        except OSError:
            return None, False
        what.append([str(found.path.absolute()), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns])
        step = _SETTLED if stat.st_ctime_ns % _SECOND else 2 * _SECOND
        settled = settled and now - stat.st_ctime_ns > step
    how = [max_row_bytes, scan.BLOCK_BYTES, version("pyarrow"), __version__]
    return f"scans/{fingerprint([FORMAT, what, how])}.json", settled
