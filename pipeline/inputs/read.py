"""Reads blocks: their rows, and the examples that a format makes of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ...schemas.errors import RowRejectedError
from ...stages.prep import Format, Options, PreparedBlock, RejectedRow, make_format
from ...stages.prep.rowjson import require_shallow
from .blocks import Block, BlockRows, InputFile
from .lines import block_bytes
from .spool import ROW_TOO_LONG, describe_too_long, split_rows, unspool
from .tables import read_table, to_rows


def read_rows(
    block: Block, max_row_bytes: int, columns: Sequence[str] | None = None, limit: int | None = None
) -> BlockRows:
    """The rows of a block, as lines of JSON or decoded, and those that cannot be used, such as too long ones.

    Args:
        columns: of a table, the only ones that are needed; None for all.
        limit: how many rows are enough, for a look at the data; None for all.

    Raises:
        InputError: the file is no longer what was scanned, or is not on this machine.
        IntegrityError: the block's copy in the cache is missing or damaged.
    """
    if block.members:
        return _read_members(block, max_row_bytes, columns, limit)
    if block.too_long:
        detail = describe_too_long(block.end - block.start, max_row_bytes)
        return BlockRows(rejects=[RejectedRow(row=0, reason=ROW_TOO_LONG, detail=detail)])
    count = min(number for number in (block.lines, block.take, limit) if number is not None)
    if block.kind in ("groups", "batches"):
        table, names = read_table(block, columns)
        rows = to_rows(table.slice(0, count), columns)
        if columns is not None:
            # All columns of the file: those that the format reads are taken out by `prepare_rows`.
            rows.unread.update(dict.fromkeys(names, len(rows.records)))
        return rows
    content = block_bytes(block) if block.spooled is None else unspool(block)
    # `a⏎b⏎` splits into `a`, `b` and an empty text: behind the last row stands nothing, or the rows that are not taken.
    lines = list(enumerate(content.split(b"\n", count)[:count]))
    if block.kind == "rows":
        lines, rejects = split_rows(lines)
        return BlockRows(lines, rejects=rejects)
    too_long_rows = []
    for number, line in lines:
        if len(line) > max_row_bytes:
            too_long_rows.append(RejectedRow(number, ROW_TOO_LONG, describe_too_long(len(line), max_row_bytes)))
    if too_long_rows:
        lines = [(number, line) for number, line in lines if len(line) <= max_row_bytes]
    return BlockRows(lines, rejects=too_long_rows)


def _read_members(block: Block, max_row_bytes: int, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
    """The rows of small files that share a block, one file after another."""
    all_rows = BlockRows()
    first_row = 0  # of the file in the block
    for member in block.members:
        if limit is not None and first_row >= limit:
            break
        member_limit = None if limit is None else limit - first_row
        rows = read_rows(member, max_row_bytes, columns, member_limit)
        all_rows.lines.extend((first_row + number, line) for number, line in rows.lines)
        all_rows.records.extend((first_row + number, record) for number, record in rows.records)
        all_rows.rejects.extend(reject._replace(row=first_row + reject.row) for reject in rows.rejects)
        all_rows.unread.update(rows.unread)
        first_row += member.lines
    return all_rows


def prepare_rows(rows: BlockRows, form: Format) -> PreparedBlock:
    """The examples that a format makes of rows, with the counts of rows, of rejects and of unread columns.

    Args:
        rows: have all columns that the format uses; as records or as lines.
    """
    prepared = form.prepare(rows.records or rows.lines)  # one of the two lists is empty
    read_columns = set(form.keys.values())
    for name, count in rows.unread.items():
        if count and name not in read_columns:
            prepared.unread_columns[name] += count
    if not rows.rejects:
        return prepared
    # Rows that cannot be read, and those that the format rejects, as one list in order of rows.
    rejects = sorted([*prepared.rejects, *rows.rejects])
    return replace(prepared, rejects=rejects, rows=prepared.rows + len(rows.rejects))


def block_examples(
    block: Block, form: tuple[str, Options], max_row_bytes: int, where: str | None = None
) -> PreparedBlock:
    """The examples of a block, without those that its source's condition leaves out, and the counts of its rows.

    Args:
        form: name and options of the format.
        where: the condition; None if the source has none.

    Raises:
        InputError: the file is no longer what was scanned, or is not on this machine.
        IntegrityError: the block's copy in the cache is missing or damaged.
    """
    source_format = make_format(*form)
    rows = read_rows(block, max_row_bytes, columns_of(source_format))
    prepared = prepare_rows(rows, source_format)
    if where is None:
        return prepared
    from ...stages.select.where import Where  # imported here, because it imports polars

    return Where(where).filtered(prepared)


def columns_of(form: Format) -> tuple[str, ...] | None:
    """The columns that a format uses; None for all."""
    return tuple(form.keys.values()) or None


def sample_rows(file: InputFile, count: int, max_row_bytes: int) -> list[dict[str, Any]]:
    """The first rows of a file as plain values, for any container, without lines that are not JSON objects."""
    sample: list[dict[str, Any]] = []
    for block in file.blocks:
        rows = read_rows(block, max_row_bytes, limit=count - len(sample))
        sample += [dict(record) for _, record in rows.records]
        for _, line in rows.lines:
            try:
                row = msgspec.json.decode(line)
                require_shallow(row, "the row")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RowRejectedError):
                continue
            if isinstance(row, dict):
                sample.append(row)
        if len(sample) >= count:
            break
    return sample[:count]
