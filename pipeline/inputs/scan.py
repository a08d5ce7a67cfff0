"""The inputs of a run, cut into blocks that one task each can encode.

1. Find: what `path` names → files, URLs, datasets (`inputs/find.py`).
2. Fetch: remote files → the cache, named by their hash (`inputs/fetch.py`).
3. Scan: each file → blocks of about `BLOCK_BYTES`, hashed by content. Small neighbouring files may share one.
4. Read: block → rows (`inputs/read.py`).

Where a block begins depends only on the data before it, so appending to a file changes only the last block.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING

from ...schemas.errors import InputError, StoreError
from ...schemas.fingerprint import hash_bytes
from ..store.local import hash_file
from .blocks import Block, InputFile
from .file_kinds import HEAD, Compression, Container, detect
from .find import Found, InputKind, find_inputs, irregular, labels
from .lines import cut_text, scan_lines

if TYPE_CHECKING:
    from ...schemas.config.config import SourceConfig

BLOCK_BYTES = 4 << 20
NOT_TAKEN = "not_taken"
"""The ledger's reason for rows beyond `max_rows`."""
SMALL_BYTES = 256 << 10
"""Files of at most this many bytes are joined."""
MEAN_BYTES = 1 << 20
"""Average bytes of a group of joined files; a group has at most BLOCK_BYTES."""
FILE_BYTES = 4 << 10
"""Counted for each joined file besides its rows, so that a group never has more than a thousand files."""


def inputs_of(source: "SourceConfig", base: Path, cache: Path) -> list[tuple[Found, str]]:
    """What is to be scanned of a source, in order, each with its label. Raises as `scan_cache.scan_inputs`."""
    found = list[Found]()
    for one in find_inputs(source, base):
        if one.kind is InputKind.HUB:
            from .hub import load

            found += load(one.name, source.subset, source.split, cache, f"sources.{source.name}.path")
        else:
            found.append(one)
    return list(zip(found, labels([Path(one.alias or one.path) for one in found]), strict=True))


def scan_one(source: "SourceConfig", found: Found, label: str, cache: Path) -> InputFile:
    """Fetch and scan an input. Raises as `scan_cache.scan_inputs`."""
    path = found.path
    if found.kind is InputKind.URL:
        from .fetch import fetch

        path = fetch(found.name, found.size, found.stamp, cache)
    return named(scan_file(source.name, label, path, source.max_row_bytes, cache), found)


def named(file: InputFile, found: Found) -> InputFile:
    """The file, with the place that it came from."""
    if found.kind is not InputKind.URL:
        return replace(file, origin=found.origin)
    # An address with a password or a signature must not be stored in a task or a note.
    far = (found.size, found.stamp) if found.shown == found.name else None
    return replace(file, origin=found.shown, far=far)


def scan_file(source: str, label: str, path: Path, max_row_bytes: int, cache: Path) -> InputFile:
    """Hash a file and cut it into blocks, in bounded memory.

    Raises:
        InputError: it is empty, damaged, of an unknown kind, or cannot be read.
        StoreError: the cache cannot be written, or the disk is full.
    """
    try:
        before = path.stat()
        if not S_ISREG(before.st_mode):
            raise InputError(irregular(path))
        with path.open("rb", buffering=0) as file:
            head = os.pread(file.fileno(), HEAD, 0)
        container, packing = detect(path, str(path), head)
        if container is Container.JSONL and packing is None:
            blocks, size, digest = scan_lines(path, BLOCK_BYTES, max_row_bytes)
        else:
            whole = hash_file(path)
            size, digest = whole.bytes, whole.hash
            blocks = _cut(path, container, packing, max_row_bytes, cache) if size else []
            after = path.stat()
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise InputError(f"{path} changed while it was read; let whatever writes it finish, then run again")
    except StoreError:
        raise
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}; fix that, or leave it out of sources.{source}.path"
        ) from error
    if not blocks:
        separated = container in (Container.CSV, Container.TSV) and size > 3  # more than a byte order mark
        what = "has a header but no rows" if separated else "is empty"
        raise InputError(f"{path} {what}; remove it from sources.{source}.path, or fill it")
    return InputFile(source, label, path, size, digest, tuple(blocks))


def _cut(path: Path, container: Container, packing: Compression | None, max_row_bytes: int, cache: Path) -> list[Block]:
    if packing is None and container is Container.TEXT:
        with path.open("rb") as file:
            return [block for block, _ in cut_text(file, max_row_bytes)]
    if packing is None and container in (Container.PARQUET, Container.ARROW_FILE, Container.ARROW_STREAM):
        from .tables import scan_table

        return scan_table(path, container, BLOCK_BYTES, cache)
    from .spool import scan_spooled

    return scan_spooled(path, container, packing, BLOCK_BYTES, max_row_bytes, cache)


def first_rows(files: list[InputFile], count: int | None) -> list[InputFile]:
    """The files with only their first `count` rows in total; the last block may be cut. None for all."""
    if count is None:
        return files
    out = []
    for file in files:
        blocks = list[Block]()
        for block in file.blocks if count > 0 else ():
            blocks.append(block if block.lines <= count else block.head(count))
            count -= blocks[-1].lines
            if count <= 0:
                break
        out.append(replace(file, blocks=tuple(blocks), not_taken=file.lines - sum(block.lines for block in blocks)))
    return out


# Small files share a block, so that not each of them costs a task, an encoded part and a record


def join_small(files: Sequence[InputFile], readers: Collection[str] = ()) -> list[InputFile]:
    """The files, with groups of small neighbours joined. Depends only on what the files contain.

    Where a group ends depends on the content of its last file: each file ends a group with a probability that grows
    with its size (content-defined chunking; Muthitacharoen, Chen and Mazières, LBFS, 2001). So a file that is added,
    changed or removed changes its own group, and at most the neighbours up to the next such end.

    Args:
        readers: sources that a user's function reads. Their files are not joined, because a function that ends its
            process must not take other files with it.
    """
    return [group[0] if len(group) == 1 else _joined(group) for group in _groups(files, readers)]


def _groups(files: Sequence[InputFile], readers: Collection[str]) -> Iterator[list[InputFile]]:
    group: list[InputFile] = []
    size = 0
    for file in files:
        weight = 0 if file.source in readers else _weight(file)
        alike = group and (file.source, file.blocks[0].kind) == (group[0].source, group[0].blocks[0].kind)
        if group and (not weight or size + weight > BLOCK_BYTES or not alike):
            yield group
            group, size = [], 0
        group.append(file)
        size += weight
        # The hash is a number from 0 to 1 that only the file's content decides.
        if not weight or int(file.blocks[0].hash[:16], 16) * MEAN_BYTES < weight << 64:
            yield group
            group, size = [], 0
    if group:
        yield group


def _weight(file: InputFile) -> int:
    """Bytes to count for a file; 0 if it is encoded on its own."""
    if len(file.blocks) != 1 or file.far is not None:
        return 0
    (block,) = file.blocks
    size = block.end - block.start
    alone = block.too_long or block.take is not None or block.spooled is not None
    return 0 if alone or size > SMALL_BYTES else size + FILE_BYTES


def _joined(files: list[InputFile]) -> InputFile:
    blocks = [file.blocks[0] for file in files]
    members = "".join(f"{block.hash} {block.lines}\n" for block in blocks)
    block = Block(
        start=0,
        end=sum(block.end - block.start for block in blocks),
        first_line=0,
        lines=sum(block.lines for block in blocks),
        content=hash_bytes(f"joined files:\n{members}".encode()),
        kind=blocks[0].kind,
        members=tuple((file.path, block) for file, block in zip(files, blocks, strict=True)),
    )
    first = files[0]
    size = sum(file.size for file in files)
    return InputFile(first.source, first.label, first.path, size, block.hash, (block,), members=tuple(files))
