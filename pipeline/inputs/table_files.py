"""Parquet and Arrow files: how each is cut into blocks of rows, and how these are read.

Parquet: small neighbouring row groups share a block, whose hash covers the encoded bytes and the schema, so that a scan
decodes nothing. A row group too large for one task is decoded once, and its rows are kept in the cache in blocks of the
usual size. Arrow: a block is a range of rows of neighbouring record batches, read through a memory map.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import blake3
import pyarrow as pa

from ...schemas.errors import InputError, PacktrainError
from ..store.local import LocalStore
from .blocks import Block, changed
from .spool import spool
from .tables import check_columns, cut_rows, hash_table, to_stream

TOO_LARGE = 4
"""Row groups larger than this many blocks (decoded) are kept as rows. Some writers make them gigabytes large."""
_BATCH_ROWS = 1024
_MAGIC_BYTES = 8
"""`ARROW1` and two zero bytes, before the stream in an Arrow file."""


def _missing(path: Path) -> InputError:
    return InputError(f"{path} cannot be read: No such file or directory; put it back, or give its path")


# Parquet


def scan_parquet(path: Path, size: int, cache: Path) -> list[Block]:
    """The blocks of a Parquet file.

    Raises:
        InputError: it is damaged or cut short.
        StoreError: the cache cannot be written, or the disk is full.
    """
    import pyarrow.parquet as pq

    blocks: list[Block] = []
    line = at = 0
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            check_columns(path, file.schema_arrow.names)
            for first, last in _groups(file.metadata, size):
                groups = [file.metadata.row_group(number) for number in range(first, last)]
                rows, count = sum(group.num_rows for group in groups), sum(group.total_byte_size for group in groups)
                if not rows:
                    continue
                if count <= TOO_LARGE * size:
                    digest = hash_groups(path, file, first, last)
                    blocks.append(Block(at, at + count, line, rows, digest, "groups", first=first, last=last))
                    at, line = at + count, line + rows
                    continue
                batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[first], use_threads=False)
                for table, count in cut_rows(batches, size):
                    data = to_stream(table)
                    digest = blake3.blake3(data).hexdigest()
                    kept = spool(LocalStore(cache), digest, data)
                    blocks.append(Block(at, at + count, line, table.num_rows, digest, "batches", spooled=kept))
                    at, line = at + count, line + table.num_rows
    except PacktrainError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        raise _damaged(path, error, "the file") from error
    return blocks


def read_groups(path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> pa.Table:
    """The rows of a block of row groups; only the first if `limit` says how many are enough.

    Raises:
        InputError: the file cannot be read, or has changed since the scan.
    """
    import pyarrow.parquet as pq

    groups = list(range(block.first, block.last))
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            if hash_groups(path, file, block.first, block.last) != block.content_hash:
                raise changed(path, block)
            if limit is not None:
                batches = file.iter_batches(limit, groups, columns=columns, use_threads=False)
                return pa.Table.from_batches([next(batches)])
            return file.read_row_groups(groups, columns=columns, use_threads=False)
    except FileNotFoundError as error:  # Arrow's own words hold the path once more
        raise _missing(path) from error
    except PacktrainError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        raise _damaged(path, error, f"row groups {block.first:,} to {block.last - 1:,}") from error


def _groups(metadata: Any, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of row groups of about `size` bytes; each begins where the ones before it end."""
    first, total = 0, 0
    for number in range(metadata.num_row_groups):
        count = metadata.row_group(number).total_byte_size
        if number > first and total + count > size:
            yield first, number
            first, total = number, 0
        total += count
    if metadata.num_row_groups > first:
        yield first, metadata.num_row_groups


def hash_groups(path: Path, file: Any, first: int, last: int) -> str:
    """BLAKE3 of row groups: of their bytes, and of how to decode them.

    Raises:
        InputError: the footer points outside of the file.
    """
    digest = blake3.blake3(str(file.schema_arrow.remove_metadata()).encode())
    size = path.stat().st_size
    with pa.memory_map(str(path)) as source:
        for number in range(first, last):
            group = file.metadata.row_group(number)
            digest.update(f"\n{group.num_rows}".encode())
            for index in range(group.num_columns):
                column = group.column(index)
                start = column.data_page_offset
                dictionary = column.dictionary_page_offset
                if dictionary is not None and 0 < dictionary < start:
                    start = dictionary
                count = column.total_compressed_size
                if start < 0 or count < 0 or start + count > size:
                    raise _damaged(path, ValueError("its footer points outside of it"), f"row group {number:,}")
                how = (column.path_in_schema, column.physical_type, column.compression, sorted(column.encodings))
                digest.update(f"\n{how} {column.num_values} {count}\n".encode())
                source.seek(start)
                digest.update(source.read_buffer(count))
    return digest.hexdigest()


def _damaged(path: Path, error: Exception, what: str) -> InputError:
    said = str(error).rstrip(". ")
    return InputError(
        f"{path} is damaged or cut short: {what} cannot be read as Parquet ({said}); copy it again, or write it again"
    )


# Arrow


def scan_arrow(path: Path, size: int, is_file: bool) -> list[Block]:
    """The blocks of an Arrow file or stream.

    Raises:
        InputError: it is damaged or cut short.
    """
    blocks: list[Block] = []
    line = at = 0
    try:
        stat = path.stat()
        table, batches = _opened(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        check_columns(path, table.column_names)
        if is_file:
            with pa.memory_map(str(path)) as source:
                count = pa.ipc.open_file(source).num_record_batches
            if count != batches:
                raise ValueError(f"its footer names {count} record batches, but there are {batches}")
        for rows, count in cut_rows(map(_checked, table.to_batches()), size):
            end = line + rows.num_rows
            blocks.append(Block(at, at + count, line, rows.num_rows, hash_table(rows), "batches", first=line, last=end))
            at, line = at + count, end
    except PacktrainError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, IndexError) as error:
        raise InputError(
            f"{path} is damaged or cut short: as an Arrow {'file' if is_file else 'stream'} it cannot be read "
            f"({str(error).rstrip('.')}); copy it again, or write it again and close its writer"
        ) from error
    return blocks


def read_batches(path: Path, block: Block) -> pa.Table:
    """The rows of a block of record batches.

    Raises:
        InputError: the file cannot be read, or has changed since the scan.
    """
    try:
        stat = path.stat()
        whole, _ = _opened(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        table = whole.slice(block.first, block.last - block.first)
        found = hash_table(table)
    except FileNotFoundError as error:  # Arrow's message repeats the path
        raise _missing(path) from error
    except (OSError, pa.ArrowException, ValueError, IndexError, TypeError):
        raise changed(path, block) from None
    if found != block.content_hash:
        raise changed(path, block)
    return table


@lru_cache(4)
def _opened(path: Path, inode: int, size: int, mtime_ns: int) -> tuple[pa.Table, int]:
    """The rows of an Arrow file or stream with this status, mapped, and how many record batches they are. A file is a
    stream between magic words.

    Raises:
        InputError: the stream has no end marker.
        ValueError: something follows the end.
    """
    source = pa.memory_map(str(path))
    is_file = source.read(6) == b"ARROW1"
    begin = end = _MAGIC_BYTES if is_file else 0
    source.seek(begin)
    for _ in pa.ipc.MessageReader.open_stream(source):
        end = source.tell()
    if source.tell() == end:
        raise InputError(
            f"{path} is cut short: its Arrow stream has no end marker, so record batches may be missing; "
            "copy it again, or write it again and close its writer"
        )
    if not is_file and source.tell() != source.size():
        raise ValueError(f"{source.size() - source.tell():,} bytes follow the end of the stream")
    source.seek(begin)
    stream = pa.ipc.open_stream(source)
    batches = list(stream)
    return pa.Table.from_batches(batches, stream.schema), len(batches)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check that offsets are within their buffers; reading other batches could access foreign memory, or crash."""
    for column in batch.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
            if "UTF8" not in str(error) or column.type not in kinds:
                raise
            # A text that is not UTF-8 only costs its row.
            column.view(kinds[column.type]).validate(full=True)
    return batch
