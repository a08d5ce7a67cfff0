"""Parquet and Arrow files: cut into blocks of rows, hashed by content, and converted to plain values.

Parquet: small neighbouring row groups share a block, whose hash covers the encoded bytes and the schema, so that a scan
decodes nothing. The rows of files with larger row groups, and of Arrow files, are kept in the cache in blocks of the
usual size.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...schemas.errors import InputError, PacktrainError, RowRejectedError
from ...schemas.files.arrow_sizes import require_bounded
from ...schemas.files.foreign import map_regular
from ...schemas.files.parquet_sizes import decoded_bytes
from ...schemas.fingerprint import hash_bytes, new_hasher
from ...stages.prep import RejectedRow
from ...stages.prep.rowjson import decode_json
from .blocks import Block, BlockRows, Records, changed_error
from .file_kinds import Container
from .spool import groups, keep_blocks, unspool

_MAX_BLOCKS_PER_ROW_GROUP = 4
"""If a row group is larger than this many blocks (decoded), rows are kept. Some writers make them gigabytes large."""
MAX_UNPACKED_BYTES = 1 << 30
"""Most bytes that one compressed record batch may unpack to."""
_MAX_DECODED_BYTES = 64 << 20
"""About the most bytes that rows which are decoded together may become. A dictionary stores a value once for many rows,
so a few bytes of a file may become any number."""
_CUT_ROWS = 64
"""Kept blocks are cut at multiples of this many rows of a batch."""
_BATCH_ROWS = 1024
"""Rows of Parquet that are decoded together, or fewer if they are long."""
_FILE_MAGIC = b"ARROW1"
"""What an Arrow file begins with; a stream has no such word."""
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The mark of a message, of length 0."""
_DAMAGE_ERRORS = (OSError, pa.ArrowException, ValueError, TypeError, IndexError)
"""What Arrow raises for damaged files."""
_VALUE_ERRORS = (ValueError, OverflowError, pa.ArrowException, ImportError)
"""What Arrow raises for values that Python cannot hold."""


def scan_table(path: Path, kind: Container, size: int, cache: Path) -> list[Block]:
    """The blocks of a Parquet or Arrow file.

    Raises:
        InputError: it is damaged or cut short, or two columns have the same name.
        StoreError: the cache cannot be written, or the disk is full.
    """
    with _file_in_errors(path, kind.value):
        if kind is Container.PARQUET:
            return _scan_parquet(path, size, cache)
        data = map_regular(path, ahead=False)
        require_bounded(data, MAX_UNPACKED_BYTES)
        batches = _check_batches(path, _record_batches(pa.BufferReader(data)))
        return keep_blocks(_cut_rows(batches, size), cache)


def read_table(block: Block, columns: Sequence[str] | None) -> tuple[pa.Table, list[str]]:
    """The rows of a block, and the names of all columns of its file.

    Args:
        columns: of a Parquet file, the only ones that are needed; None for all.

    Raises:
        InputError: the file cannot be read, or has changed since the scan.
        IntegrityError: rows kept in the cache are missing or damaged.
    """
    if block.spooled is not None:
        table = pa.ipc.open_stream(unspool(block)).read_all()
        return table, table.column_names
    with _file_in_errors(block.path, Container.PARQUET.value), _parquet(block.path) as (file, data):
        # Hashed again, because the file may have changed since it was scanned.
        if _hash_row_groups(data, file, *block.groups) != block.content:
            raise changed_error(block)
        # In one thread, because there is a worker for each core.
        table = file.read_row_groups(list(range(*block.groups)), columns=columns, use_threads=False)
        return table, file.schema_arrow.names


@contextmanager
def _file_in_errors(path: Path, kind: str) -> Iterator[None]:
    """Turn errors of Arrow into an InputError that names the file."""
    try:
        yield
    except PacktrainError:
        raise
    except _DAMAGE_ERRORS as error:
        problem = str(error).rstrip(". ")
        raise InputError(
            f"{path} is gone, damaged or cut short: as {kind} it cannot be read ({problem}); copy it again, or write "
            "it again and close its writer"
        ) from error


def _refuse_repeated_columns(path: Path, names: Sequence[str]) -> None:
    """Raise InputError if two columns have one name: a row has one value for each."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise InputError(f"{path}: two columns are called {repeated[0]!r}; write it again with unique names")


# Parquet


def _scan_parquet(path: Path, size: int, cache: Path) -> list[Block]:
    """The blocks of a Parquet file: groups of its row groups, or rows that are kept in the cache."""
    blocks: list[Block] = []
    start = 0
    first_line = 0
    first_group = 0
    with _parquet(path) as (file, data):
        _refuse_repeated_columns(path, file.schema_arrow.names)
        row_groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        for group, group_size in groups(row_groups, lambda row_group: row_group.total_byte_size, size):
            end_group = first_group + len(group)
            # Footers say only what is stored, of which a dictionary can make far more.
            decoded_size = 0
            for number in range(first_group, end_group):
                value_bytes, _ = decoded_bytes(data, file.metadata, number, _MAX_DECODED_BYTES)
                decoded_size += value_bytes
            if group_size > _MAX_BLOCKS_PER_ROW_GROUP * size or decoded_size > _MAX_DECODED_BYTES:
                # All of the file is cut again, also what is in `blocks` already: one rule for all blocks of a file.
                return keep_blocks(_cut_rows(_small_batches(file, data), size), cache)
            rows = sum(row_group.num_rows for row_group in group)
            if rows:  # some writers leave empty row groups
                block = Block(
                    start=start,
                    end=start + group_size,
                    first_line=first_line,
                    lines=rows,
                    content=_hash_row_groups(data, file, first_group, end_group),
                    kind="groups",
                    groups=(first_group, end_group),
                )
                blocks.append(block)
                start = block.end
                first_line += rows
            first_group = end_group
    return blocks


def _small_batches(file: Any, data: memoryview) -> Iterator[pa.RecordBatch]:
    """All rows of a Parquet file, in batches of about `_MAX_DECODED_BYTES` at most, whatever their values become when
    they are decoded.
    """
    longest_row = 1
    for number in range(file.metadata.num_row_groups):
        _, longest_values = decoded_bytes(data, file.metadata, number, _MAX_DECODED_BYTES)
        longest_row = max(longest_row, longest_values)
    rows = max(1, min(_BATCH_ROWS, _MAX_DECODED_BYTES // longest_row))
    if rows > _CUT_ROWS:
        rows -= rows % _CUT_ROWS  # 200 → 192, so that blocks begin where they do with batches of 1,024 rows
    yield from file.iter_batches(batch_size=rows, use_threads=False)


@contextmanager
def _parquet(path: Path) -> Iterator[tuple[Any, memoryview]]:
    """A Parquet file (pyarrow.parquet.ParquetFile), and its bytes."""
    import pyarrow.parquet as pq

    data = map_regular(path, ahead=False)
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        yield file, data


def _hash_row_groups(data: memoryview, file: Any, first: int, last: int) -> str:
    """The hash of the row groups from `first` to before `last`: of their bytes in the file, and of how to decode them.

    Raises:
        ValueError: the footer says that one lies outside of the file.
    """
    hasher = new_hasher(str(file.schema_arrow.remove_metadata()).encode())
    for number in range(first, last):
        group = file.metadata.row_group(number)
        hasher.update(f"\n{group.num_rows}".encode())
        for index in range(group.num_columns):
            column = group.column(index)
            # The column's dictionary, if it has one, lies before its data.
            start = column.data_page_offset
            dictionary_start = column.dictionary_page_offset
            if dictionary_start is not None and 0 < dictionary_start < start:
                start = dictionary_start
            size = column.total_compressed_size
            if start < 0 or size < 0 or start + size > len(data):
                raise ValueError(f"the footer of row group {number:,} points outside of the file")
            decoding = (column.path_in_schema, column.physical_type, column.compression, sorted(column.encodings))
            hasher.update(f"\n{decoding} {column.num_values} {size}\n".encode())
            hasher.update(data[start : start + size])
    return hasher.hexdigest()


# Arrow


def _record_batches(source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    """The record batches of a file or a stream.

    Raises:
        ValueError: a stream has no end marker, so that record batches may be missing, or something follows it.
    """
    # `read_at` takes how many bytes to read, and where.
    if source.read_at(len(_FILE_MAGIC), 0) == _FILE_MAGIC:
        # A file's footer lists its batches, so none can be missing unseen.
        reader = pa.ipc.open_file(source)
        yield from map(reader.get_batch, range(reader.num_record_batches))
        return
    yield from pa.ipc.open_stream(source)
    end = source.tell()
    if end != source.size() or source.read_at(len(_STREAM_END), end - len(_STREAM_END)) != _STREAM_END:
        raise ValueError("there is no end marker at its end, so record batches may be missing, or be behind it")


def _check_batches(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check that offsets are within their buffers; reading other batches could access foreign memory, or crash."""
    for batch in batches:
        _refuse_repeated_columns(path, batch.schema.names)
        for column in batch.columns:
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                binary_types = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
                if "UTF8" not in str(error) or column.type not in binary_types:
                    raise
                # A text that is not UTF-8 only costs its row. All else is checked as that of bytes.
                column.view(binary_types[column.type]).validate(full=True)
        yield batch


# Rows of both


def _cut_rows(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[tuple[Block, pa.Buffer]]:
    """Blocks of about `size` bytes, each with its rows as a stream."""
    start = 0
    first_line = 0
    slices = (
        _decode_dictionaries(batch.slice(first, _CUT_ROWS))
        for batch in batches
        for first in range(0, batch.num_rows, _CUT_ROWS)
    )
    for group, group_size in groups(slices, lambda batch_slice: batch_slice.nbytes, size):
        table = pa.Table.from_batches(group)
        data = _to_stream(table)
        content = hash_bytes(memoryview(data))
        block = Block(
            start=start,
            end=start + group_size,
            first_line=first_line,
            lines=table.num_rows,
            content=content,
            kind="batches",
        )
        yield block, data
        start += group_size
        first_line += table.num_rows


def _decode_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with dictionaries replaced by values, so that `nbytes` counts a value for each row that has it."""
    if not any(pa.types.is_dictionary(column.type) for column in batch.columns):
        return batch
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _to_stream(table: pa.Table) -> pa.Buffer:
    """The table as one record batch in an Arrow stream: the same bytes for the same rows, however they are chunked.

    Arrow does not define the bytes under a null, so two writers may give equal rows different bytes. That only costs
    another encoding.
    """
    sink = pa.BufferOutputStream()
    # The chunks are copied into one array: a slice could be written with its neighbours' bytes. The empty array makes
    # sure of a copy where there is only one chunk.
    columns = [pa.concat_arrays([*column.chunks, column.chunk(0).slice(0, 0)]) for column in table.columns]
    table = pa.Table.from_arrays(columns, schema=table.schema.remove_metadata())
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def to_rows(table: pa.Table, columns: Sequence[str] | None) -> BlockRows:
    """The rows of a table as records of plain values, and the rejects for rows that cannot be converted.

    Args:
        columns: the only ones that are needed; None for all.
    """
    names = dict.fromkeys(table.column_names)
    table = table.select([name for name in names if columns is None or name in columns])
    # A table without columns still has rows, which a format rejects.
    if not table.num_columns:
        return BlockRows(records=[(number, {}) for number in range(table.num_rows)])
    records, rejects = _decode_rows(table)
    json_paths = [path for field in table.schema for path in _json_paths(field)]
    # A user's own reader takes all columns (None), and gets each value as it is.
    object_lists = [] if columns is None else [field.name for field in table.schema if _is_list_of_objects(field.type)]
    if not json_paths and not object_lists:  # most tables
        return BlockRows(records=records, rejects=rejects)
    usable: Records = []
    for number, row in records:
        try:
            for name in object_lists:
                row[name] = _without_nulls(row[name])
            # After that, because a null within JSON was written by the user.
            for path in json_paths:
                row[path[0]] = _decode_json_at(path[1:], row[path[0]], f"`{path[0]}`")
        except RowRejectedError as error:
            rejects.append(RejectedRow(number, error.reason, error.detail))
        else:
            usable.append((number, row))
    return BlockRows(records=usable, rejects=rejects)


def _decode_rows(table: pa.Table) -> tuple[Records, list[RejectedRow]]:
    """The rows of a table as Arrow converts them, and those that it cannot convert."""
    try:
        return list(enumerate(table.to_pylist())), []
    except _VALUE_ERRORS:
        pass
    # One value cannot be converted, such as a text that is not UTF-8: find its row.
    records: Records = []
    rejects: list[RejectedRow] = []
    for number in range(table.num_rows):
        try:
            records.append((number, table.slice(number, 1).to_pylist()[0]))
        except UnicodeDecodeError as error:
            rejects.append(RejectedRow(number, "invalid_utf8", f"a text is not UTF-8 ({error})"))
        except _VALUE_ERRORS as error:
            detail = f"a value of the row cannot be read by Python ({error})"
            rejects.append(RejectedRow(number, "unreadable_value", detail))
    return records, rejects


def _without_nulls(value: Any, keep: str = "content") -> Any:
    """Messages or tools without the nulls that Arrow adds: a column has one type, so a key that any message has is null
    in all messages that lack it.

    Args:
        keep: the key of an outermost object that stays if it is null: a message whose `content` is null says nothing in
            words, such as one that only calls tools. Within the objects of a message, no null stays.
    """
    if isinstance(value, dict):
        return {key: _without_nulls(inner, "") for key, inner in value.items() if inner is not None or key == keep}
    if isinstance(value, list):
        return [_without_nulls(item, keep) for item in value]
    return value


JsonPath = tuple[str, *tuple[str | None, ...]]
"""A column, then the keys within its values; None for each element of a list."""


def _json_paths(field: pa.Field) -> list[JsonPath]:
    """Where values of a field are of Arrow's JSON type, which are texts in memory, at any depth.

    Of a column `tools` of lists of objects, whose `arguments` are JSON: `("tools", None, "arguments")`.
    """
    kind = field.type
    # The extension's name is in the type if pyarrow knows the extension, else in the field's metadata.
    name = getattr(kind, "extension_name", "") or (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    if name == "arrow.json":
        return [(field.name,)]
    paths: list[JsonPath] = []
    if pa.types.is_struct(kind):
        for inner_field in kind:
            paths += [(field.name, *path) for path in _json_paths(inner_field)]
    elif _is_list(kind):
        # An element has a name in the schema, such as `item`, but no key.
        paths += [(field.name, None, *path[1:]) for path in _json_paths(kind.value_field)]
    return paths


def _decode_json_at(path: Sequence[str | None], value: Any, shown: str) -> Any:
    """A value in which the texts of JSON at the end of a path are decoded. Objects on the way are changed in place.

    Args:
        path: from this value on; see `JsonPath`.
        shown: the name of the value, for messages.

    Raises:
        RowRejectedError: a text is not JSON.
    """
    if value is None:
        return None
    if not path:
        return decode_json(value, shown, reason="invalid_json")
    key = path[0]
    if key is None:
        return [_decode_json_at(path[1:], item, f"{shown}[]") for item in value]
    if key in value:
        value[key] = _decode_json_at(path[1:], value[key], f"{shown}.{key}")
    return value


def _is_list_of_objects(kind: pa.DataType) -> bool:
    return _is_list(kind) and pa.types.is_struct(kind.value_type)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
