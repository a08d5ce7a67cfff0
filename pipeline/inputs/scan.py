"""The inputs of a run, cut into blocks that one task each can encode.

1. Find: what `path` names → files, URLs, datasets (`inputs/places/paths.py`).
2. Fetch: remote files → the cache, named by their hash (`inputs/places/remote.py`, `inputs/places/hub.py`).
3. Cut: each file → blocks of about `BLOCK_BYTES`, hashed by content; how depends on the container.

Where a block begins depends only on the data before it, so appending to a file changes only the last block.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ...schemas.errors import InputError, RowRejectedError
from ...stages.prep import Format, PreparedBlock
from ...stages.prep.rowjson import check_depth
from ..store.local import hash_file
from .blocks import ArrayReader, Block, BlockRows, InputFile
from .containers.detect import HEAD, Container, detect
from .containers.lines import read_block, scan_lines, scan_text, split_lines
from .places.folders import irregular
from .places.paths import Found, InputKind, find_inputs, labels

if TYPE_CHECKING:  # workers read blocks, and need no pydantic for it
    from ...schemas.config.config import SourceConfig

__all__ = [
    "BLOCK_BYTES",
    "NOT_TAKEN",
    "ROW_TOO_LONG",
    "Block",
    "Found",
    "InputFile",
    "find_inputs",
    "labels",
    "prepare_block",
    "read_rows",
    "sample_rows",
    "scan_file",
    "scan_source",
]

BLOCK_BYTES = 4 << 20
ROW_TOO_LONG = "row_too_long"
"""The ledger's reason for rows that are too long."""
NOT_TAKEN = "not_taken"
"""The ledger's reason for rows beyond `max_rows`."""
_SCANS = 4
"""Files scanned at once: hashing and decompressing release Python's lock."""


@dataclass(frozen=True, slots=True)
class ToScan:
    """One input to scan."""

    found: Found
    name: Path
    """The path that its label is made from."""
    label: str
    origin: str
    """See `InputFile`."""
    far: tuple[int, int] | None
    """See `InputFile`."""
    get: Callable[[], Path]
    """Returns the local file; fetches a remote one."""


class ScanOrder(Protocol):
    """Scans several inputs in its own order, and may already know some."""

    def files(
        self, inputs: Sequence[ToScan], scan: Callable[[ToScan], InputFile], max_row_bytes: int, threads: int
    ) -> list[InputFile]:
        """The scanned inputs, in their order."""
        ...


def scan_source(source: "SourceConfig", base: Path, cache: Path, order: ScanOrder | None = None) -> list[InputFile]:
    """All files of a source, hashed and cut, up to its `max_rows`.

    Args:
        cache: holds copies of remote files, and blocks of compressed ones.
        order: scans the files; None scans them one after another.

    Raises:
        ConfigError: see `inputs.places.paths.find_inputs`.
        InputError: a file is empty, damaged, or cannot be read.
    """
    found = [one for found in find_inputs(source, base) for one in _open(found, source, cache)]
    named = labels([one.name for one in found])

    def scan(one: ToScan) -> InputFile:
        file = scan_file(source.name, one.label, one.get(), source.max_row_bytes, cache)
        return replace(file, origin=one.origin, far=one.far)

    items = [replace(one, label=label) for one, label in zip(found, named, strict=True)]
    threads = min(len(items), _SCANS, os.cpu_count() or 1)
    if order is not None:
        ordered = order.files(items, scan, source.max_row_bytes, threads)
        files = [replace(file, source=source.name) for file in ordered]
    elif threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            files = list(pool.map(scan, items))
    else:
        files = [scan(one) for one in items]
    return files if source.max_rows is None else _first_rows(files, source.max_rows)


def _open(found: Found, source: "SourceConfig", cache: Path) -> list[ToScan]:
    """The files of one input."""
    where = f"sources.{source.name}.path"
    if found.kind is InputKind.HUB:
        from .places import hub

        loaded = hub.load(found.name, source.subset, source.split, cache, where)
        return [
            ToScan(found, Path(name), "", f"hf://{found.name}/{path.name}", None, partial(Path, path))
            for path, name in loaded
        ]
    if found.kind is InputKind.URL:
        from .places import remote

        # An address with a password or a signature must not be stored in a task or a note.
        far = (found.size, found.stamp) if found.shown == found.name else None
        fetch = partial(remote.fetch, found.name, found.size, found.stamp, cache)
        return [ToScan(found, found.path, "", found.shown, far, fetch)]
    return [ToScan(found, found.path, "", "", None, lambda: found.path)]


def scan_file(source: str, label: str, path: Path, max_row_bytes: int, cache: Path) -> InputFile:
    """Hash a file and cut it into blocks, in bounded memory.

    Raises:
        InputError: it is empty, damaged, of an unknown kind, or cannot be read.
    """
    try:
        before = path.stat()
        if not S_ISREG(before.st_mode):
            raise InputError(irregular(path, before))
        with path.open("rb", buffering=0) as file:
            head = os.pread(file.fileno(), HEAD, 0)
        container, packing = detect(path, str(path), head)
        if container is Container.JSONL and packing is None:
            blocks, size, digest = scan_lines(path, BLOCK_BYTES, max_row_bytes)
        else:
            put = hash_file(path)
            size, digest = put.bytes, put.hash
            blocks = _cut(path, container, packing, max_row_bytes, cache) if size else []
            after = path.stat()
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise InputError(f"{path} changed while it was read; let whatever writes it finish, then run again")
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}; fix that, or leave it out of sources.{source}.path"
        ) from error
    if not blocks:
        separated = container in (Container.CSV, Container.TSV) and size > 3  # more than a byte order mark
        what = "has a header but no rows" if separated else "is empty"
        raise InputError(f"{path} {what}; remove it from sources.{source}.path, or fill it")
    return InputFile(source, label, path, size, before.st_mtime_ns, digest, tuple(blocks))


def _cut(path: Path, container: Container, packing: Any, max_row_bytes: int, cache: Path) -> list[Block]:
    # Each reader is imported on demand: workers of plain JSONL need none of them.
    if packing is not None or container is Container.JSON_ARRAY:
        from .containers.spool import scan_spooled

        return scan_spooled(path, container, packing, BLOCK_BYTES, max_row_bytes, cache)
    if container is Container.TEXT:
        return scan_text(path, BLOCK_BYTES, max_row_bytes)
    if container is Container.PARQUET:
        from .containers.parquet import scan_parquet

        return scan_parquet(path, BLOCK_BYTES, cache)
    if container in (Container.ARROW_FILE, Container.ARROW_STREAM):
        from .containers.arrow import scan_arrow

        return scan_arrow(path, BLOCK_BYTES, container is Container.ARROW_FILE)
    from .containers.separated import scan_separated

    return scan_separated(path, container.separator, BLOCK_BYTES, max_row_bytes)


def _first_rows(files: list[InputFile], count: int) -> list[InputFile]:
    """The files with only their first `count` rows in total; the last block may be cut."""
    out = []
    for file in files:
        blocks = []
        lines = file.lines
        for block in file.blocks:
            if count <= 0:
                break
            blocks.append(block if block.lines <= count else block.first(count))
            count -= blocks[-1].lines
        taken = sum(block.lines for block in blocks)
        out.append(replace(file, blocks=tuple(blocks), not_taken=lines - taken))
    return out


def read_rows(
    path: Path,
    block: Block,
    max_row_bytes: int,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    *,
    arrays: bool = False,
) -> BlockRows:
    """The rows of a block, as lines of JSON or decoded, and those that cannot be used, such as too long ones.

    Args:
        path: `InputFile.where(block)`.
        columns: of a table, the only ones that are needed; None for all.
        limit: rows that are enough, for a look at the data.
        arrays: lists of integers may be arrays.

    Raises:
        InputError: the file is no longer what was scanned.
    """
    if block.too_long:
        why = _too_long(block.end - block.start, max_row_bytes)  # plus or minus its line end
        return BlockRows(rejects=[(0, ROW_TOO_LONG, why)])
    if block.place is None:
        rows = BlockRows(lines=split_lines(read_block(path, block), block.take, limit))
    elif arrays and limit is None and isinstance(block.place, ArrayReader):
        rows = block.place.array_rows(path, block, columns)
    else:
        rows = block.place.rows(path, block, columns, limit)
    if rows.lines is None:
        return rows
    long = [
        (i, ROW_TOO_LONG, _too_long(len(line), max_row_bytes)) for i, line in rows.lines if len(line) > max_row_bytes
    ]
    if not long:
        return rows
    kept = [(i, line) for i, line in rows.lines if len(line) <= max_row_bytes]
    return BlockRows(lines=kept, rejects=rows.rejects + long)


def prepare_block(path: Path, block: Block, form: Format[Any, Any], max_row_bytes: int) -> PreparedBlock:
    """The examples of a block, and the counts of its rows, including those that are too long.

    Args:
        path: see `read_rows`.
    """
    rows = read_rows(path, block, max_row_bytes, columns_of(form), arrays=form.takes_arrays)
    return prepare_rows(rows, form)


def prepare_rows(rows: BlockRows, form: Format[Any, Any]) -> PreparedBlock:
    """As `prepare_block`, for rows already read with all columns that the format uses."""
    prepared = form.prepare(rows.lines or []) if rows.records is None else form.prepare_rows(rows.records)
    if not rows.rejects and not rows.blank:
        return prepared
    return replace(
        prepared,
        rejects=sorted([*prepared.rejects, *rows.rejects]),
        rows=prepared.rows + len(rows.rejects),
        blank=prepared.blank + rows.blank,
    )


def columns_of(form: Format[Any, Any]) -> tuple[str, ...] | None:
    """The columns that a format uses; None for all."""
    try:
        return tuple(field.encode_name for field in msgspec.structs.fields(form._row_type))
    except TypeError:
        return None


def sample_rows(file: InputFile, count: int, max_row_bytes: int = 16 << 20) -> list[dict[str, Any]]:
    """The first rows of a file as plain values, for any container, without lines that are not JSON objects."""
    out: list[dict[str, Any]] = []
    for block in file.blocks:
        rows = read_rows(file.where(block), block, max_row_bytes, limit=count - len(out))
        out += [dict(row) for _, row in rows.records or ()]
        for _, line in rows.lines or ():
            try:
                check_depth(line, "the row")
                row = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RowRejectedError):
                continue
            if isinstance(row, dict):
                out.append(row)
        if len(out) >= count:
            break
    return out[:count]


def _too_long(size: int, limit: int) -> str:
    return f"the line has {size:,} bytes, more than max_row_bytes ({limit:,}); raise it to use the row"
