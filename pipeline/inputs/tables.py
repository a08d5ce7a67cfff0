"""Parquet and Arrow files: cut into blocks of rows, hashed by content, and converted to plain values.

Parquet: small neighbouring row groups share a block, whose hash covers the encoded bytes and the schema, so that a scan
decodes nothing. The rows of files with larger row groups, and of Arrow files, are kept in the cache in blocks of the
usual size.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...schemas.errors import InputError, PacktrainError, RowRejectedError
from ...schemas.files.arrow_sizes import require_bounded
from ...schemas.files.foreign import map_regular
from ...schemas.files.parquet_sizes import decoded_bytes
from ...schemas.fingerprint import hash_bytes, new_hasher
from ...stages.prep.rowjson import decode_json
from .blocks import Block, BlockRows, Records, Reject, changed
from .file_kinds import Container
from .spool import groups, keep, unspool

_TOO_LARGE = 4
"""If a row group is larger than this many blocks (decoded), rows are kept. Some writers make them gigabytes large."""
MOST_UNPACKED = 1 << 30
"""Bytes that one compressed record batch may unpack to."""
_MOST_DECODED = 64 << 20
"""Bytes that rows may become that are decoded together, because their values are stored once."""
_STEP = 64
"""Kept blocks are cut at multiples of this many rows of a batch."""
_BATCH_ROWS = 1024
_FILE, _END = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"
"""What begins an Arrow file, and what ends a stream."""
_ERRORS = (OSError, pa.ArrowException, ValueError, TypeError, IndexError)
_UNREADABLE = (ValueError, OverflowError, pa.ArrowException, ImportError)
"""What Arrow raises for damaged files, and for values that Python cannot hold."""


def scan_table(path: Path, kind: Container, size: int, cache: Path) -> list[Block]:
    """The blocks of a Parquet or Arrow file.

    Raises:
        InputError: it is damaged or cut short, or two columns have the same name.
        StoreError: the cache cannot be written, or the disk is full.
    """
    with _damage(path, kind.value):
        if kind is Container.PARQUET:
            return _scan_parquet(path, size, cache)
        data = map_regular(path, ahead=False)
        require_bounded(data, MOST_UNPACKED)
        return keep(_cut(_checked(path, _batches(pa.BufferReader(data))), size), cache)


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
    with _damage(block.path, Container.PARQUET.value), _parquet(block.path) as (file, data):
        if _hash_groups(data, file, *block.groups) != block.content:
            raise changed(block)
        table = file.read_row_groups(list(range(*block.groups)), columns=columns, use_threads=False)
        return table, file.schema_arrow.names


@contextmanager
def _damage(path: Path, kind: str) -> Iterator[None]:
    """Name the file in errors of Arrow."""
    try:
        yield
    except PacktrainError:
        raise
    except _ERRORS as error:
        said = str(error).rstrip(". ")
        raise InputError(
            f"{path} is gone, damaged or cut short: as {kind} it cannot be read ({said}); copy it again, or write it "
            "again and close its writer"
        ) from error


def _check_columns(path: Path, names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}; write it again with unique names")


# Parquet


def _scan_parquet(path: Path, size: int, cache: Path) -> list[Block]:
    blocks, at, line = list[Block](), 0, 0
    with _parquet(path) as (file, data):
        _check_columns(path, file.schema_arrow.names)
        every = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        last = 0
        for group, count in groups(every, lambda one: one.total_byte_size, size):
            first, last, rows = last, last + len(group), sum(one.num_rows for one in group)
            decoded = [decoded_bytes(data, file.metadata, number, _MOST_DECODED) for number in range(first, last)]
            if count > _TOO_LARGE * size or sum(bytes for bytes, _ in decoded) > _MOST_DECODED:
                return keep(_cut(_small_batches(file, data), size), cache)
            if rows:
                digest = _hash_groups(data, file, first, last)
                blocks.append(Block(at, at + count, line, rows, digest, kind="groups", groups=(first, last)))
                at, line = at + count, line + rows
    return blocks


def _small_batches(file: Any, data: memoryview) -> Iterator[pa.RecordBatch]:
    """All rows, in batches that take little memory whatever their values become when they are decoded."""
    sizes = [decoded_bytes(data, file.metadata, group, _MOST_DECODED) for group in range(file.metadata.num_row_groups)]
    rows = max(1, min(_BATCH_ROWS, _MOST_DECODED // max(1, *(longest for _, longest in sizes))))
    rows -= rows % _STEP if rows > _STEP else 0  # so that blocks begin where they do in larger batches
    yield from file.iter_batches(batch_size=rows, use_threads=False)


@contextmanager
def _parquet(path: Path) -> Iterator[tuple[Any, memoryview]]:
    """A Parquet file (pyarrow.parquet.ParquetFile), and its bytes."""
    import pyarrow.parquet as pq

    data = map_regular(path, ahead=False)
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        yield file, data


def _hash_groups(data: memoryview, file: Any, first: int, last: int) -> str:
    """The hash of row groups: of their bytes, and of how to decode them."""
    digest = new_hasher(str(file.schema_arrow.remove_metadata()).encode())
    for number in range(first, last):
        group = file.metadata.row_group(number)
        digest.update(f"\n{group.num_rows}".encode())
        for index in range(group.num_columns):
            column = group.column(index)
            start, dictionary = column.data_page_offset, column.dictionary_page_offset
            if dictionary is not None and 0 < dictionary < start:
                start = dictionary
            count = column.total_compressed_size
            if start < 0 or count < 0 or start + count > len(data):
                raise ValueError(f"the footer of row group {number:,} points outside of the file")
            how = (column.path_in_schema, column.physical_type, column.compression, sorted(column.encodings))
            digest.update(f"\n{how} {column.num_values} {count}\n".encode())
            digest.update(data[start : start + count])
    return digest.hexdigest()


# Arrow


def _batches(source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    """The record batches of a file or a stream.

    Raises:
        ValueError: a stream has no end marker, so that record batches may be missing, or something follows it.
    """
    if source.read_at(len(_FILE), 0) == _FILE:
        reader = pa.ipc.open_file(source)
        yield from map(reader.get_batch, range(reader.num_record_batches))
        return
    yield from pa.ipc.open_stream(source)
    end = source.tell()
    if end != source.size() or source.read_at(len(_END), end - len(_END)) != _END:
        raise ValueError("there is no end marker at its end, so record batches may be missing, or be behind it")


def _checked(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check that offsets are within their buffers; reading other batches could access foreign memory, or crash."""
    for batch in batches:
        _check_columns(path, batch.schema.names)
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


# Rows of both


def _cut(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[tuple[Block, pa.Buffer]]:
    """Blocks of about `size` bytes, each with its rows as a stream."""
    at = line = 0
    steps = (_plain(batch.slice(first, _STEP)) for batch in batches for first in range(0, batch.num_rows, _STEP))
    for rows, total in groups(steps, lambda step: step.nbytes, size):
        table = pa.Table.from_batches(rows)
        data = _to_stream(table)
        yield Block(at, at + total, line, table.num_rows, hash_bytes(memoryview(data)), kind="batches"), data
        at, line = at + total, line + table.num_rows


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows whose columns hold their values themselves, so that their size is that of what is read of them."""
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
    # Concatenating with an empty array copies; a slice would be written with its neighbours' bytes.
    columns = [pa.concat_arrays([*column.chunks, column.chunk(0).slice(0, 0)]) for column in table.columns]
    table = pa.Table.from_arrays(columns, schema=table.schema.remove_metadata())
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def to_rows(table: pa.Table, columns: Sequence[str] | None) -> BlockRows:
    """The rows of a table as plain values, and those that cannot be converted.

    Args:
        columns: the only ones that are needed; None for all.
    """
    table = table.select([name for name in dict.fromkeys(table.column_names) if columns is None or name in columns])
    if not table.num_columns:
        return BlockRows(records=[(number, {}) for number in range(table.num_rows)])
    records, rejects = Records(), list[Reject]()
    try:
        records = list(enumerate(table.to_pylist()))
    except _UNREADABLE:
        # One value cannot be converted, such as a text that is not UTF-8: find its row.
        for number in range(table.num_rows):
            try:
                records += [(number, table.slice(number, 1).to_pylist()[0])]
            except UnicodeDecodeError as error:
                rejects.append((number, "invalid_utf8", f"a text is not UTF-8 ({error})"))
            except _UNREADABLE as error:
                rejects.append((number, "unreadable_value", f"a value of the row cannot be read by Python ({error})"))
    # A reader of its own (None) gets each value as it is.
    repairs = [(one.name, repair) for one in table.schema if (repair := _repair(one, columns is not None))]
    repaired = Records()
    for number, row in records if repairs else ():
        try:
            repaired.append((number, {**row, **{name: repair(row[name]) for name, repair in repairs}}))
        except RowRejectedError as error:
            rejects.append((number, error.reason, error.detail))
    return BlockRows(records=repaired if repairs else records, rejects=rejects)


def _repair(field: pa.Field, prune: bool) -> Callable[[Any], Any] | None:
    """A function that makes of a field's values what was written: it decodes Arrow's JSON type, and takes nulls out of
    lists of objects. None if the values are right.

    Args:
        prune: whether to take nulls out.
    """
    decode = _json_decoder(field, f"`{field.name}`")
    if not (prune and _is_list(field.type) and pa.types.is_struct(field.type.value_type)):
        return decode
    return lambda value: decode(_pruned(value)) if decode else _pruned(value)


def _pruned(value: Any, keep: str = "content") -> Any:
    """Messages or tools without the nulls that Arrow adds: a column has one type, so a key that any message has is null
    in all messages that lack it.

    Args:
        keep: the key of an outermost object that stays if it is null.
    """
    if isinstance(value, dict):
        return {key: _pruned(inner, "") for key, inner in value.items() if inner is not None or key == keep}
    return [_pruned(inner, keep) for inner in value] if isinstance(value, list) else value


def _json_decoder(field: pa.Field, where: str) -> Callable[[Any], Any] | None:
    """A function that decodes Arrow's JSON type within a field's values, at any depth; None if there is none."""
    kind = field.type
    name = getattr(kind, "extension_name", "") or (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    if name == "arrow.json":
        return lambda value: None if value is None else decode_json(value, where, reason="invalid_json")
    if pa.types.is_struct(kind):
        inner = {one.name: decoder for one in kind if (decoder := _json_decoder(one, f"{where}.{one.name}"))}
        if inner:
            return lambda value: value and {key: inner[key](one) if key in inner else one for key, one in value.items()}
    elif _is_list(kind):
        decode = _json_decoder(kind.value_field, f"{where}[]")
        if decode:
            return lambda value: value and [decode(one) for one in value]
    return None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
