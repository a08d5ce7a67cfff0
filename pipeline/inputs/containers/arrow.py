"""Arrow IPC files and streams: row ranges as blocks, read through a memory map.

A file is a stream between magic words, so both are read message by message.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from ....schemas.errors import InputError, PacktrainError
from ..blocks import Block, BlockRows, changed
from .tables import check_columns, cut_rows, hash_table, to_arrays, to_rows

_MAGIC_BYTES = 8
"""`ARROW1` and two zero bytes, before the stream in a file."""
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ArrowPlace:
    """Rows of some record batches."""

    schema: Range
    """Bytes of the schema's message."""
    batches: Range
    """Bytes of the batches' messages."""
    skip: int
    """Rows of the first batch that belong to the block before."""
    rows_there: int
    """Rows of the block, not limited by `max_rows`."""
    indices: Range | None
    """Indices of the batches, if there are dictionaries among them: such batches cannot be read alone."""

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        return to_rows(self._table(path, block), columns, block.take, limit)

    def array_rows(self, path: Path, block: Block, columns: Sequence[str] | None) -> BlockRows:
        """See `ArrayReader`."""
        return to_arrays(self._table(path, block), columns, block.take)

    def _table(self, path: Path, block: Block) -> pa.Table:
        try:
            with pa.memory_map(str(path)) as source:
                batches = self._alone(source) if self.indices is None else self._among(source, self.indices)
                table = pa.Table.from_batches(batches).slice(self.skip, self.rows_there)
                whole = hash_table(table)
        except FileNotFoundError as error:  # Arrow's message repeats the path
            raise InputError(
                f"{path} cannot be read: No such file or directory; put it back, or give its path"
            ) from error
        except (OSError, pa.ArrowException, ValueError, IndexError, TypeError, StopIteration):
            raise changed(path, block, False) from None
        if whole != block.content_hash:
            raise changed(path, block, False)
        return table

    def _alone(self, source: pa.MemoryMappedFile) -> list[pa.RecordBatch]:
        source.seek(self.schema[0])
        schema = pa.ipc.read_schema(source.read_buffer(self.schema[1] - self.schema[0]))
        source.seek(self.batches[0])
        messages = pa.ipc.MessageReader.open_stream(
            pa.BufferReader(source.read_buffer(self.batches[1] - self.batches[0]))
        )
        return [pa.ipc.read_record_batch(message, schema) for message in messages]

    def _among(self, source: pa.MemoryMappedFile, indices: Range) -> list[pa.RecordBatch]:
        source.seek(self.schema[0])
        return list(islice(pa.ipc.open_stream(source), *indices))


def scan_arrow(path: Path, size: int, is_file: bool) -> list[Block]:
    """The blocks of an Arrow file or stream.

    Raises:
        InputError: it is damaged or cut short.
    """
    try:
        return _scan(path, size, is_file)
    except PacktrainError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, IndexError) as error:
        raise InputError(
            f"{path} is damaged or cut short: as an Arrow {'file' if is_file else 'stream'} it cannot be read "
            f"({str(error).rstrip('.')}); copy it again, or write it again and close its writer"
        ) from error


def _scan(path: Path, size: int, is_file: bool) -> list[Block]:
    with pa.memory_map(str(path)) as source:
        footer = pa.ipc.open_file(source) if is_file else None
        begin = _MAGIC_BYTES if is_file else 0
        schema, ranges, dictionaries, end = _messages(path, source, begin)
        if footer is not None and footer.num_record_batches != len(ranges):
            raise ValueError(
                f"its footer names {footer.num_record_batches} record batches, but there are {len(ranges)}"
            )
        if footer is None and end != source.size():
            raise ValueError(f"{source.size() - end:,} bytes follow the end of the stream")
        source.seek(begin)
        blocks: list[Block] = []
        line = at = 0
        batches = pa.ipc.open_stream(source)
        check_columns(path, batches.schema.names)
        for one in cut_rows(_valid(batches), size):
            place = ArrowPlace(
                schema=schema,
                batches=(ranges[one.batch][0], ranges[one.last_batch][1]),
                skip=one.skip,
                rows_there=one.table.num_rows,
                indices=(one.batch, one.last_batch + 1) if dictionaries else None,
            )
            digest = hash_table(one.table)
            blocks.append(Block(at, at + one.bytes, line, one.table.num_rows, digest, place=place))
            at += one.bytes
            line += one.table.num_rows
    return blocks


def _messages(path: Path, source: pa.MemoryMappedFile, begin: int) -> tuple[Range, list[Range], bool, int]:
    """(bytes of the schema, bytes of the batches, whether there are dictionaries, where the stream ends)."""
    source.seek(begin)
    reader = pa.ipc.MessageReader.open_stream(source)
    schema: Range | None = None
    ranges: list[Range] = []
    dictionaries = False
    at = begin
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            break
        end = source.tell()
        if message.type == "schema":
            schema = (at, end)
        elif message.type == "record batch":
            ranges.append((at, end))
        else:
            dictionaries = True
        at = end
    end = source.tell()
    if end == at:
        raise InputError(
            f"{path} is cut short: its Arrow stream has no end marker, so record batches may be missing; "
            "copy it again, or write it again and close its writer"
        )
    if schema is None:
        raise ValueError("it has no schema")
    return schema, ranges, dictionaries, end


def _valid(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check that offsets are within their buffers; reading other batches could access foreign memory, or crash."""
    for batch in batches:
        for column in batch.columns:
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
                if "UTF8" not in str(error) or column.type not in kinds:
                    raise
                # A text that is not UTF-8 only costs its row.
                column.view(kinds[column.type]).validate(full=True)
        yield batch
