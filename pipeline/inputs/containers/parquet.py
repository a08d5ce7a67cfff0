"""Parquet: row groups as blocks.

Small neighbouring row groups share a block. Their hash covers the encoded bytes and the schema, so that a scan decodes
nothing. A row group too large for one task is decoded once, and its rows are kept in the cache in blocks of the usual
size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
import pyarrow as pa

from ....schemas.errors import InputError, PacktrainError
from ...store.local import LocalStore
from ..blocks import Block, BlockRows, changed
from .spool import spool, unspool
from .tables import check_columns, cut_rows, to_arrays, to_rows, to_stream

TOO_LARGE = 4
"""Row groups larger than this many blocks (decoded) are kept as rows. Some writers make them gigabytes large."""
_BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True)
class ParquetPlace:
    """Neighbouring row groups."""

    first: int
    last: int
    """One past the last row group."""

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        return to_rows(self._table(path, block, columns, limit), columns, block.take, limit)

    def array_rows(self, path: Path, block: Block, columns: Sequence[str] | None) -> BlockRows:
        """See `ArrayReader`."""
        return to_arrays(self._table(path, block, columns, None), columns, block.take)

    def _table(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> pa.Table:
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path, memory_map=True) as file:
                if hash_groups(path, file, self.first, self.last) != block.content_hash:
                    raise changed(path, block, False)
                if limit is not None:
                    batches = file.iter_batches(limit, range(self.first, self.last), columns=columns, use_threads=False)
                    return pa.Table.from_batches([next(batches)])
                groups = list(range(self.first, self.last))
                return file.read_row_groups(groups, columns=columns, use_threads=False)
        except FileNotFoundError as error:  # Arrow's own words hold the path once more
            raise InputError(
                f"{path} cannot be read: No such file or directory; put it back, or give its path"
            ) from error
        except PacktrainError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            raise _damaged(path, error, f"row groups {self.first:,} to {self.last - 1:,}") from error


@dataclass(frozen=True, slots=True)
class SpooledTable:
    """Reads table rows from a file of the cache."""

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        return to_rows(self._table(path, block), columns, block.take, limit)

    def array_rows(self, path: Path, block: Block, columns: Sequence[str] | None) -> BlockRows:
        """See `ArrayReader`."""
        return to_arrays(self._table(path, block), columns, block.take)

    def _table(self, path: Path, block: Block) -> pa.Table:
        return pa.ipc.open_stream(unspool(path, block)).read_all()


def scan_parquet(path: Path, size: int, cache: Path) -> list[Block]:
    """The blocks of a Parquet file.

    Raises:
        InputError: it is damaged or cut short.
    """
    import pyarrow.parquet as pq

    blocks: list[Block] = []
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            check_columns(path, file.schema_arrow.names)
            line = at = 0
            for first, last in _groups(file.metadata, size):
                groups = [file.metadata.row_group(number) for number in range(first, last)]
                rows = sum(group.num_rows for group in groups)
                if not rows:
                    continue
                count = sum(group.total_byte_size for group in groups)
                if count > TOO_LARGE * size:
                    batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[first], use_threads=False)
                    for one in cut_rows(batches, size):
                        data = to_stream(one.table)
                        digest = blake3.blake3(data).hexdigest()
                        kept = spool(LocalStore(cache), digest, data, "arrow.zst")
                        end, lines = at + one.bytes, one.table.num_rows
                        blocks.append(Block(at, end, line, lines, digest, place=SpooledTable(), spooled=kept))
                        at, line = end, line + lines
                else:
                    digest = hash_groups(path, file, first, last)
                    blocks.append(Block(at, at + count, line, rows, digest, place=ParquetPlace(first, last)))
                    at += count
                    line += rows
    except PacktrainError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        raise _damaged(path, error, "the file") from error
    return blocks


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
