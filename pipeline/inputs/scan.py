"""The inputs of a run, cut into blocks that one task each can encode.

1. Find: what `path` names → files, URLs, datasets (`inputs/find.py`).
2. Fetch: remote files → the cache (`inputs/fetch.py`).
3. Scan: each file → blocks of about `BLOCK_BYTES`, hashed by content. Small neighbouring files may share one.
4. Read: block → rows (`inputs/read.py`).

Where a block begins depends only on the data before it, so appending to a file changes only the last block.

A source whose files have the same sizes and times as before is not read again: a note in the cache says how they were
cut. The time is that of the last change (ctime), which no program can set back; for a URL, the metadata of its store.
Every block's hash is checked again when it is encoded.
"""

import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ... import __version__
from ...schemas.errors import ConfigError, InputError, StoreError
from ...schemas.files.foreign import open_regular
from ...schemas.fingerprint import fingerprint, hash_bytes, version
from ..store.local import LocalStore, hash_file
from ..store.open_store import is_url
from ..store.sealed_notes import get_note, put_note
from .blocks import Block, FoundInput, InputFile
from .fetch import fetch
from .file_kinds import HEAD_BYTES, TEXT_KINDS, Container, detect
from .find import find_inputs, unique_labels
from .lines import scan_lines
from .spool import scan_spooled, spool_name
from .tables import scan_table

if TYPE_CHECKING:
    from ...schemas.config.config import SourceConfig

BLOCK_BYTES = 4 << 20
"""Most bytes of rows in a block; a larger row or row group is a block of its own."""
NOT_TAKEN = "not_taken"
"""The ledger's reason for rows beyond `max_rows`."""
SMALL_BYTES = 256 << 10
"""Files of at most this many bytes are joined."""
MEAN_BYTES = 1 << 20
"""Average bytes of a group of joined files; a group has at most BLOCK_BYTES."""
FILE_BYTES = 4 << 10
"""Added to the bytes of each joined file, so that a group of the tiniest files has at most BLOCK_BYTES / FILE_BYTES of
them: 1,024."""
FORMAT = 14
"""Raised whenever the format of notes or the way of cutting files changes."""
_THREADS = 4
"""Large files scanned at once: hashing and decompressing release Python's lock."""
_SETTLED_NANOSECONDS = 2_000_000_000
"""After so long, another change certainly gets a different time: some file systems count in seconds."""


class _Note(msgspec.Struct):
    """How the files of a source were cut, kept in the cache."""

    files: list[InputFile]


def scan_inputs(sources: "Sequence[SourceConfig]", base: Path, scratch: LocalStore) -> list[InputFile]:
    """All files of all sources, in order, hashed and cut, up to each source's `max_rows`.

    Args:
        scratch: this machine's folder for notes, for copies of remote files, and for blocks of inputs without random
            access.

    Raises:
        ConfigError: a file is missing, or would be read twice in the same way; `path` or `split` names nothing.
        InputError: a file is empty, damaged, or cannot be read.
        StoreError: the cache cannot be written, or the disk is full.
    """
    files: list[InputFile] = []
    for source in sources:
        files += first_rows(_scan(source, base, scratch), source.max_rows)
    # Within one source, `find_inputs` has refused files that are listed twice.
    if len(sources) > 1:
        _refuse_files_read_twice(sources, files)
    return files


def _refuse_files_read_twice(sources: "Sequence[SourceConfig]", files: Sequence[InputFile]) -> None:
    """Raise ConfigError if two sources that are alike but for their names read the same file: its rows would count
    twice. Sources that do different things with its rows may share it.
    """
    settings = {source.name: source.model_dump_json(exclude={"name", "path"}) for source in sources}
    # (device, inode, settings) → the first source's view of the file.
    readers: dict[tuple[int, int, str], InputFile] = {}
    for file in files:
        status = file.path.stat()
        first = readers.setdefault((status.st_dev, status.st_ino, settings[file.source]), file)
        if first.source != file.source:
            raise ConfigError(
                f"sources.{file.source}.path: {file.origin or file.path} is also read by source {first.source}, in the "
                "same way; its rows would count twice. Leave one out; `repeat` uses rows several times"
            )


def _scan(source: "SourceConfig", base: Path, scratch: LocalStore) -> list[InputFile]:
    """The files of one source, from a note if nothing has changed since they were scanned."""
    start_time = time.time_ns()
    inputs = find_inputs(source, base, scratch.root)
    states = [(entry.name, entry.size, entry.stamp) for entry in inputs]
    # All else that a note depends on: what decides how files are cut, and where relative names lead.
    cutting = [FORMAT, str(base.absolute()), source.max_row_bytes, BLOCK_BYTES, version("pyarrow"), __version__]
    note = f"scans/{fingerprint([states, cutting])}.json"
    with _scanning_pool() as pool:
        paths = _fetch_all(inputs, scratch, pool)
        files = _files_of_note(get_note(scratch, note, _Note), paths, scratch)
        if files is None:
            files = _scan_all(source, inputs, paths, scratch, pool)
            # A file that was written just before the scan may change again within the same tick of its clock, unseen.
            # The stamp of a URL is no time, but a hash of what its server says of the version.
            if all(is_url(entry.name) or start_time - entry.stamp > _SETTLED_NANOSECONDS for entry in inputs):
                with suppress(StoreError):  # a read-only cache or a full disk; notes are optional
                    put_note(scratch, note, _Note(files))
    # Labels come from the names that the user knows, not from those of copies in the cache.
    labels = unique_labels([entry.alias or entry.place for entry in inputs])
    return [
        replace(file, source=source.name, label=label, origin=entry.origin)
        for file, entry, label in zip(files, inputs, labels, strict=True)
    ]


@contextmanager
def _scanning_pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that fetch and scan. After an error, no other file is begun."""
    pool = ThreadPoolExecutor(_THREADS)
    try:
        yield pool
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)  # a download may take hours
        raise
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def _fetch_all(inputs: Sequence[FoundInput], scratch: LocalStore, pool: ThreadPoolExecutor) -> list[Path]:
    """The path of each input: its own, or that of a copy of a remote file."""
    copies = {entry.name: pool.submit(fetch, entry, scratch.root) for entry in inputs if is_url(entry.name)}
    return [copies[entry.name].result() if entry.name in copies else Path(entry.name) for entry in inputs]


def _scan_all(
    source: "SourceConfig",
    inputs: Sequence[FoundInput],
    paths: Sequence[Path],
    scratch: LocalStore,
    pool: ThreadPoolExecutor,
) -> list[InputFile]:
    """Scan each input; large ones in threads, because a thread costs more than reading a small file."""
    scans = [partial(_scan_input, source, entry, path, scratch.root) for entry, path in zip(inputs, paths, strict=True)]
    large = {index: pool.submit(scans[index]) for index, entry in enumerate(inputs) if entry.size > SMALL_BYTES}
    # Small ones are scanned here, meanwhile. If several fail, the first in order is reported, whichever failed earlier.
    return [large[index].result() if index in large else scan() for index, scan in enumerate(scans)]


def _scan_input(source: "SourceConfig", entry: FoundInput, path: Path, cache: Path) -> InputFile:
    """Scan one input. Messages name a remote file by its URL, not by the copy in the cache."""
    try:
        return scan_file(source.name, path, source.max_row_bytes, cache, entry.place)  # whose suffix says the kind
    except InputError as error:
        raise InputError(str(error).replace(str(path), entry.origin or entry.name)) from error


def _files_of_note(note: _Note | None, paths: Sequence[Path], scratch: LocalStore) -> list[InputFile] | None:
    """The files of a note; None if there is none, or if a block that it needs is not in the cache.

    The paths in a note are replaced by those of this scan: what somebody writes into a cache must not lead out of it.
    """
    if note is None or len(note.files) != len(paths):
        return None
    files: list[InputFile] = []
    for file, path in zip(note.files, paths, strict=True):
        blocks = []
        for block in file.blocks:
            spooled = scratch.path(spool_name(block.content)) if block.spooled is not None else None
            if spooled is not None and not spooled.is_file():
                return None
            blocks.append(msgspec.structs.replace(block, path=path, spooled=spooled))
        files.append(replace(file, path=path, blocks=tuple(blocks)))
    return files


def scan_file(source: str, path: Path, max_row_bytes: int, cache: Path, name: str = "") -> InputFile:
    """Hash a file and cut it into blocks, in bounded memory. It has no label yet.

    Args:
        name: the name whose suffix says the kind of file, if `path` is a copy; "" if `path` says it.

    Raises:
        InputError: it is empty, damaged, of an unknown kind, or cannot be read.
        StoreError: the cache cannot be written, or the disk is full.
    """
    try:
        with BufferedReader(open_regular(path)) as file:
            status_before = os.fstat(file.fileno())
            container, compression = detect(name or str(path), str(path), file.peek(HEAD_BYTES)[:HEAD_BYTES])
            if container is Container.JSONL and compression is None:
                # Hashed as it is cut, so that it is read once; other files are read twice.
                blocks, size, digest = scan_lines(file, BLOCK_BYTES, max_row_bytes)
            else:
                size_and_hash = hash_file(path)
                size = size_and_hash.bytes
                digest = size_and_hash.hash
                if container in TEXT_KINDS:
                    blocks = scan_spooled(file, str(path), container, compression, BLOCK_BYTES, max_row_bytes, cache)
                else:
                    blocks = scan_table(path, container, BLOCK_BYTES, cache)
                _require_unchanged(path, status_before)
    except StoreError:  # is an OSError, too: it is the cache that cannot be written
        raise
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}; fix that, or leave it out of sources.{source}.path"
        ) from error
    if not blocks:
        raise InputError(f"{path} has no rows; fill it, or leave it out (source {source})")
    blocks_with_path = tuple(msgspec.structs.replace(block, path=path) for block in blocks)
    return InputFile(source, label="", path=path, size=size, hash=digest, blocks=blocks_with_path)


def _require_unchanged(path: Path, before: os.stat_result) -> None:
    """Refuse a file that was written between two readings: its hash would not be that of its blocks.

    Args:
        before: its status before the first reading.

    Raises:
        InputError: its size or its time is another one.
    """
    status = path.stat()
    if (status.st_size, status.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise InputError(f"{path} changed while it was read; let whatever writes it finish, then run again")


def first_rows(files: list[InputFile], count: int | None) -> list[InputFile]:
    """The files with only the first `count` rows of all together; None for all rows. The last block may be cut, and a
    file of which no row is taken has no blocks.
    """
    if count is None:
        return files
    rows_left = count
    shortened_files = []
    for file in files:
        blocks: list[Block] = []
        for block in file.blocks:
            if rows_left <= 0:
                break
            blocks.append(block if block.lines <= rows_left else block.head(rows_left))
            rows_left -= blocks[-1].lines
        not_taken = file.lines - sum(block.lines for block in blocks)
        shortened_files.append(replace(file, blocks=tuple(blocks), not_taken=not_taken))
    return shortened_files


# Small files share a block, so that not each of them costs a task, an encoded part and a record


def join_small(files: Sequence[InputFile], readers: Collection[str] = ()) -> list[InputFile]:
    """The files, with groups of small neighbours joined. Depends only on what the files contain.

    Each file ends a group with a probability that grows with its size, decided by its content (content-defined
    chunking; Muthitacharoen, Chen and Mazières, LBFS, 2001). So a file that is added, changed or removed changes its
    own group, and at most the neighbours up to the next such end.

    Args:
        readers: sources that a user's function reads. Their files are not joined, because a function that ends its
            process must not take other files with it.
    """
    return [group[0] if len(group) == 1 else _join(group) for group in _small_groups(files, readers)]


def _small_groups(files: Sequence[InputFile], readers: Collection[str]) -> Iterator[list[InputFile]]:
    """Groups of neighbours that can share a block; see `join_small`. A file that is encoded on its own is one."""
    group: list[InputFile] = []
    group_bytes = 0
    for file in files:
        if file.source in readers or not _is_small(file):
            if group:
                yield group
                group = []
                group_bytes = 0
            yield [file]
            continue
        counted_bytes = file.blocks[0].end - file.blocks[0].start + FILE_BYTES
        if group and (group_bytes + counted_bytes > BLOCK_BYTES or not _are_alike(group[0], file)):
            yield group
            group = []
            group_bytes = 0
        group.append(file)
        group_bytes += counted_bytes
        if _ends_group(file, counted_bytes):
            yield group
            group = []
            group_bytes = 0
    if group:
        yield group


def _is_small(file: InputFile) -> bool:
    """Whether a file may share a block with others: it is one block of few bytes, all of whose rows are taken."""
    if len(file.blocks) != 1:
        return False
    block = file.blocks[0]
    return not block.too_long and block.take is None and block.end - block.start <= SMALL_BYTES


def _are_alike(left: InputFile, right: InputFile) -> bool:
    """Whether the rows of two files are read in one way."""
    return left.source == right.source and left.blocks[0].kind == right.blocks[0].kind


def _ends_group(file: InputFile, counted_bytes: int) -> bool:
    """Whether a file is the last of its group, with the probability `counted_bytes / MEAN_BYTES`.

    The first 64 bits of its hash are a number from 0 to 1 that only the file's content decides: a file of a quarter of
    `MEAN_BYTES` ends its group if that number is below a quarter.
    """
    number = int(file.blocks[0].hash[:16], 16) / 2**64
    return number < counted_bytes / MEAN_BYTES


def _join(files: list[InputFile]) -> InputFile:
    """One file of several that share a block."""
    first = files[0]
    blocks = [file.blocks[0] for file in files]
    # What the shared block is hashed by: its files' hashes, and where one ends and the next begins.
    content = "joined files:\n" + "".join(f"{block.hash} {block.lines}\n" for block in blocks)
    shared_block = Block(
        start=0,
        end=sum(block.end - block.start for block in blocks),
        first_line=0,
        lines=sum(block.lines for block in blocks),
        content=hash_bytes(content.encode()),
        path=first.path,
        kind=blocks[0].kind,
        members=tuple(blocks),
    )
    return InputFile(
        source=first.source,
        label=first.label,
        path=first.path,
        size=sum(file.size for file in files),
        hash=shared_block.hash,
        blocks=(shared_block,),
        members=tuple(files),
    )
