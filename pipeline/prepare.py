"""Prep alone: source rows → examples in the public form that TRL and others read. No tokenizer is needed."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ..schemas.config import SourceConfig
from ..schemas.errors import ConfigError, OutputError
from ..stages.prep import Format, make_format, public_row
from .observer import Observer, Silent
from .options import format_options
from .sources import InputFile, read_block, scan_source
from .store import LocalStore

_PARQUET_ROWS = 4096


@dataclass(slots=True)
class PrepCounts:
    """What became of the rows."""

    rows: int = 0
    examples: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    """The first of the rejected rows, with file, line and reason."""


_SHOWN_REJECTS = 20


def prepare_source(
    source: SourceConfig, base: Path, target: Path, *, prompt_only: bool = False, observer: Observer | None = None
) -> PrepCounts:
    """Write the examples of a source to one JSONL or Parquet file, by its suffix.

    The file appears when it is whole, and never replaces another.

    Raises:
        ConfigError: the suffix is neither .jsonl nor .parquet, or an input is missing.
        InputError: an input is empty or cannot be read.
        OutputError: the file exists.
    """
    if target.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"--output {target}: end its name in .jsonl or .parquet, so that the format is clear")
    if target.exists():
        raise OutputError(f"--output {target} exists; remove it, or name another file")
    observer = observer or Silent()
    files = scan_source(source, base)
    form = make_format(source.format, format_options(source, prompt_only=prompt_only))
    counts = PrepCounts()
    observer.begin("prep", sum(file.size for file in files), "B")
    store = LocalStore(target.absolute().parent)
    with store.draft("") as draft:
        rows = _rows(files, source, form, counts, observer)
        if target.suffix == ".jsonl":
            for row in rows:
                draft.file.write(msgspec.json.encode(row) + b"\n")
        else:
            _write_parquet(rows, draft.file)
        if not store.put(draft, target.name):
            raise OutputError(f"--output {target} appeared while it was written; remove it, or name another file")
    observer.end()
    return counts


def _rows(
    files: list[InputFile], source: SourceConfig, form: Format[Any, Any], counts: PrepCounts, observer: Observer
) -> Iterator[dict[str, Any]]:
    for file in files:
        for block in file.blocks:
            if block.too_long:
                counts.rows += 1
                counts.rejected["row_too_long"] += 1
                continue
            lines = read_block(file.path, block).split(b"\n")
            prepared = form.prepare(enumerate(lines, block.first_line + 1))
            counts.rows += prepared.rows
            counts.examples += len(prepared.examples)
            counts.filtered += prepared.filtered
            counts.skipped += prepared.skipped
            for line, reason, detail in prepared.rejects:
                counts.rejected[reason] += 1
                if len(counts.rejects) < _SHOWN_REJECTS:
                    counts.rejects.append({"file": str(file.path), "line": line, "reason": reason, "detail": detail})
            for example in prepared.examples:
                yield public_row(example, form.form)
            observer.advance(block.end - block.start, rows=prepared.rows)


def _write_parquet(rows: Iterable[dict[str, Any]], sink: Any) -> None:
    """Row groups of some thousand rows. The first one fixes the columns' types."""
    writer: pq.ParquetWriter | None = None
    group: list[dict[str, Any]] = []
    schema: pa.Schema | None = None
    file = pa.PythonFile(sink, mode="w")

    def flush() -> None:
        nonlocal writer, schema
        try:
            table = pa.Table.from_pylist(group, schema=schema)
        except pa.ArrowInvalid as error:
            raise ConfigError(
                f"these rows do not fit one Parquet schema ({error}); write --output with the suffix .jsonl"
            ) from error
        if writer is None:
            schema = table.schema
            writer = pq.ParquetWriter(file, schema, compression="zstd")
        writer.write_table(table)
        group.clear()

    for row in rows:
        group.append(row)
        if len(group) >= _PARQUET_ROWS:
            flush()
    if group or writer is None:
        flush()
    if writer is not None:
        writer.close()
