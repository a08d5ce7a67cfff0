"""Rows of Arrow tables: cut into blocks, hashed by content, converted to plain values."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pyarrow as pa

from ...schemas.errors import InputError, RowRejectedError
from ...stages.prep.rowjson import decode_json, exact
from .blocks import BlockRows, Records

STEP = 64
"""Blocks are cut at multiples of this many rows."""
UNREADABLE = "unreadable_value"


def cut_rows(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[tuple[pa.Table, int]]:
    """Cut rows into tables of about `size` bytes; each with its bytes.

    Where a table begins depends only on the rows before it, not on batches: appending rows changes only the last table.
    """
    block, total = list[pa.RecordBatch](), 0
    for step in _steps(batches):
        count = sum(rows.nbytes for rows in step)
        if block and total + count > size:
            yield pa.Table.from_batches(block), total
            block, total = [], 0
        block += step
        total += count
    if block:
        yield pa.Table.from_batches(block), total


def _steps(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """All rows, STEP at a time."""
    step, left = list[pa.RecordBatch](), STEP
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            rows = batch.slice(at, left)
            step.append(rows)
            at += rows.num_rows
            left -= rows.num_rows
            if not left:
                yield step
                step, left = [], STEP
    if step:
        yield step


def to_stream(table: pa.Table) -> pa.Buffer:
    """The table as one record batch in an Arrow stream: the same bytes for the same rows, however they are chunked.

    Arrow does not define the bytes under a null, so two writers may give equal rows different bytes. That only costs
    another encoding.
    """
    sink = pa.BufferOutputStream()
    # Concatenating with an empty array copies; a slice would be written with its neighbours' bytes.
    columns = [pa.concat_arrays([*column.chunks, _nothing(column)]) for column in table.columns]
    table = pa.Table.from_arrays(columns, schema=table.schema.remove_metadata())
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _nothing(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0).slice(0, 0) if column.num_chunks else pa.array([], column.type)


def hash_table(table: pa.Table) -> str:
    """BLAKE3 of the rows, including column names and types."""
    return blake3.blake3(to_stream(table)).hexdigest()


def to_arrays(table: pa.Table, columns: Sequence[str] | None, take: int | None) -> BlockRows:
    """As `to_rows`, with arrays for lists of integers or booleans without nulls."""
    some = table if take is None else table.slice(0, take)
    chosen = [name for name in dict.fromkeys(table.column_names) if columns is None or name in columns]
    found: dict[str, list[Any]] = {}
    for name in chosen:
        column = some.column(name).combine_chunks()
        if not _are_numbers(column.type) or column.null_count or column.flatten().null_count:
            continue
        ends = np.cumsum(np.asarray(column.value_lengths()), dtype=np.int64)
        values = column.flatten().to_numpy(zero_copy_only=False)
        found[name] = np.split(values, ends[:-1]) if len(column) else []
    if not found:
        return to_rows(table, columns, take, None)
    others = [name for name in chosen if name not in found]
    rows = to_rows(some.select(others), others, None, None) if others else BlockRows()
    records = dict(rows.records or ()) if others else {number: {} for number in range(some.num_rows)}
    merged: Records = [
        (number, {**row, **{name: values[number] for name, values in found.items()}}) for number, row in records.items()
    ]
    return replace(rows, records=merged)


def _are_numbers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    return bool(pa.types.is_integer(kind.value_type) or pa.types.is_boolean(kind.value_type))


def to_rows(table: pa.Table, columns: Sequence[str] | None, take: int | None, limit: int | None) -> BlockRows:
    """The first rows of a table as plain values, and those that cannot be converted.

    Args:
        columns: the only ones that are needed; None for all.
        take, limit: how many rows at most; None for all.
    """
    for most in (take, limit):
        table = table if most is None else table.slice(0, most)
    if columns is not None:
        table = table.select([name for name in dict.fromkeys(table.column_names) if name in columns])
    if not table.num_columns:
        return BlockRows(records=[(number, {}) for number in range(table.num_rows)])
    try:
        return _decoded(BlockRows(records=list(enumerate(table.to_pylist()))), table.schema)
    except (ValueError, OverflowError, pa.ArrowException, ImportError):
        # One value cannot be converted, such as a text that is not UTF-8: find its row.
        records: Records = []
        rejects = []
        for number in range(table.num_rows):
            try:
                records += [(number, table.slice(number, 1).to_pylist()[0])]
            except UnicodeDecodeError as error:
                rejects.append((number, "invalid_utf8", f"a text is not UTF-8 ({error})"))
            except (ValueError, OverflowError, pa.ArrowException, ImportError) as error:
                rejects.append((number, UNREADABLE, f"a value of the row cannot be read by Python ({error})"))
        return _decoded(BlockRows(records=records, rejects=rejects), table.schema)


def check_columns(path: Path, names: Sequence[str]) -> None:
    """Check the columns of a table.

    Raises:
        InputError: two columns have the same name.
    """
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}; write it again with unique names")


def _decoded(rows: BlockRows, schema: pa.Schema) -> BlockRows:
    """The rows with values of Arrow's JSON type decoded; rows with invalid JSON are rejected."""
    decoders = {name: decoder for name in schema.names if (decoder := _json_decoder(schema.field(name), f"`{name}`"))}
    if not decoders:
        return rows
    records: Records = []
    rejects = list(rows.rejects)
    for number, row in rows.records or ():
        try:
            records.append((number, {**row, **{name: decode(row[name]) for name, decode in decoders.items()}}))
        except RowRejectedError as error:
            rejects.append((number, error.reason, error.detail))
    return BlockRows(records=records, rejects=rejects)


def _json_decoder(field: pa.Field, where: str) -> Callable[[Any], Any] | None:
    """A function that decodes JSON within a field's values, at any depth; None if there is none."""
    kind = field.type
    name = getattr(kind, "extension_name", "") or (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    if name == "arrow.json":
        return lambda value: None if value is None else exact(decode_json(value, where, reason="invalid_json"))
    if pa.types.is_struct(kind):
        inner = {one.name: decoder for one in kind if (decoder := _json_decoder(one, f"{where}.{one.name}"))}
        if inner:
            return lambda value: value and {**value, **{key: decode(value[key]) for key, decode in inner.items()}}
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        decode = _json_decoder(kind.value_field, f"{where}[]")
        if decode:
            return lambda value: value and [decode(one) for one in value]
    return None
