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
from ...schemas.errors import StoreError
from ...schemas.fingerprint import fingerprint, version
from ...schemas.names import check_name
from ..execute.shares import parse_shard, turns
from ..store.checksummed import seal, unseal
from ..store.local import LocalStore, open_regular
from ..store.open import Store
from . import scan
from .blocks import Block, InputFile, files_note, read_files_note
from .fetch import copy_of
from .find import InputKind
from .scan import SCANS, ToScan, first_rows, inputs_of, scan_one
from .spool import spool_name

if TYPE_CHECKING:
    from ...schemas.config.config import SourceConfig

FORMAT = 5
"""Raised whenever the format of notes or the way of cutting files changes."""
_SECOND = 1_000_000_000
_SETTLED = _SECOND // 10
"""Nanoseconds after which another change certainly gets a different time: file systems count in steps of up to 10 ms,
old ones in seconds."""


def scan_inputs(
    sources: "Iterable[SourceConfig]",
    base: Path,
    scratch: LocalStore,
    *,
    notes: Store | None = None,
    shard: str | None = None,
    trust: bool = True,
) -> list[InputFile]:
    """All files of all sources, in order, hashed and cut.

    Args:
        scratch: this machine's folder for copies, and for blocks of compressed files.
        notes: holds the notes; by default `scratch`.
        shard: `i/N` for a driver that shares the work with others.
        trust: whether to use notes. If not, all files are read, and noted.

    Raises:
        ConfigError, InputError: see `scan.scan_source`.
    """
    noted = _Noted(scratch, notes or scratch, shard, trust)
    return [
        file
        for source in sources
        for file in first_rows(noted.files(source, inputs_of(source, base, scratch.root)), source.max_rows)
    ]


class _Noted:
    """Scans inputs that have no notes. Args: see `scan_inputs`."""

    def __init__(self, scratch: LocalStore, notes: Store, shard: str | None, trust: bool) -> None:
        self._scratch = scratch
        self._notes = notes
        self._share = parse_shard(shard) if shard is not None else None
        self._trust = trust

    def files(self, source: "SourceConfig", inputs: Sequence[ToScan]) -> list[InputFile]:
        """The scanned inputs, in their order."""
        groups = list(_groups(inputs))
        done: dict[int, list[InputFile]] = {}

        def look_or_scan(number: int) -> None:
            name, settled = _name(groups[number], source.max_row_bytes)
            # The first file must be local, to detect formats. Others may be fetched when they are encoded.
            known = self._read(name, groups[number], far=self._share is not None and number > 0)
            if known is None:
                known = [scan_one(source, one, self._scratch.root) for one in groups[number]]
                # Otherwise a file changed meanwhile, or may change unnoticed, and the note would be wrong.
                if name is not None and settled and _name(groups[number], source.max_row_bytes)[0] == name:
                    with suppress(StoreError):  # a read-only cache or a full disk; notes are optional
                        self._notes.replace_bytes(name, seal(files_note(known), name))
            done[number] = [replace(file, source=source.name) for file in known]

        order: Iterable[int] = range(len(groups))
        if self._share is not None:
            index, count = self._share
            order = turns(len(groups), index, count)
        with ThreadPoolExecutor(SCANS) as pool:
            for _ in pool.map(look_or_scan, order):
                pass  # raises errors of the threads
        return [file for number in range(len(groups)) for file in done[number]]

    def _read(self, name: str | None, group: Sequence[ToScan], *, far: bool) -> list[InputFile] | None:
        """The files of a note; None if there is none, or if a file that it needs is not on this machine.

        Args:
            far: whether copies of URLs may be only on other machines.
        """
        if name is None or not self._trust:
            return None
        files = read_files_note(unseal(self._notes.read(name), name))
        if files is None or len(files) != len(group):
            return None
        try:
            out = self._placed(files, group)
        except ValueError:
            return None
        return out if all((far and file.far is not None) or _size(file.path) == file.size for file in out) else None

    def _placed(self, files: Sequence[InputFile], group: Sequence[ToScan]) -> list[InputFile]:
        """The files of a note with this run's names. Copies are in our own folder, whatever path the note has.

        Raises:
            ValueError: a name that leads elsewhere.
        """
        return [
            replace(
                file,
                label=one.label,
                path=one.found.path if one.found.kind is InputKind.LOCAL else copy_of(file.path.name, self._scratch),
                blocks=tuple(map(self._kept, file.blocks)),
                origin=one.origin,
                far=one.far,
            )
            for file, one in zip(files, group, strict=True)
        ]

    def _kept(self, block: Block) -> Block:
        """The block, with the place in our own cache if it is kept there.

        Raises:
            ValueError: it is not there.
        """
        if block.spooled is None:
            return block
        name = spool_name(block.content_hash)
        check_name(name)
        kept = self._scratch.path(name)
        if kept.is_symlink() or not kept.is_file():
            raise ValueError(f"{kept} is not there")
        return msgspec.structs.replace(block, spooled=kept)


def _groups(inputs: Sequence[ToScan]) -> Iterator[list[ToScan]]:
    """The inputs in order, with small neighbours grouped."""
    group, left = list[ToScan](), scan.BLOCK_BYTES
    for one in inputs:
        size = one.found.size if one.found.kind is InputKind.LOCAL else scan.BLOCK_BYTES
        if group and size > left:
            yield group
            group, left = [], scan.BLOCK_BYTES
        group.append(one)
        left -= size
    if group:
        yield group


def _name(group: Sequence[ToScan], max_row_bytes: int) -> tuple[str | None, bool]:
    """The name of the note for some files, and whether any later change of them would change the name. None if changes
    cannot be detected.
    """
    what, settled, now = list[Any](), True, time.time_ns()
    for one in group:
        found = one.found
        if found.kind is InputKind.URL and found.stamp:
            what.append([found.name, found.size, found.stamp])
            continue
        if found.kind is not InputKind.LOCAL:
            return None, False
        stat = _stat(found.path)
        if stat is None:
            return None, False
        what.append([str(found.path.absolute()), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns])
        step = _SETTLED if stat.st_ctime_ns % _SECOND else 2 * _SECOND
        settled = settled and now - stat.st_ctime_ns > step
    how = [max_row_bytes, scan.BLOCK_BYTES, version("pyarrow"), __version__]
    return f"scans/{fingerprint([FORMAT, what, how])}.json", settled


def _stat(path: Path) -> os.stat_result | None:
    """Status of a regular file. It is opened first, because a network file system may otherwise answer from its
    cache."""
    try:
        with open_regular(path) as file:
            return os.fstat(file.fileno())
    except OSError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
