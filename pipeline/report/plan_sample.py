"""The sample of `plan --rows`: some rows of every source, written to files for the ordinary encoder.

No input is scanned or hashed as a whole, so the sample takes seconds however large the inputs are. Every source gets
its share of the rows. Rows of JSON lines, Parquet and Arrow are taken in stretches from evenly spaced places; other
files can be read only from the start, and their first rows become lines of JSON.
"""

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.config.config import RunConfig, SourceConfig
from ...schemas.errors import ConfigError, InputError
from ..inputs.blocks import split_name
from ..inputs.file_kinds import HEAD, Compression, Container, detect
from ..inputs.find import Found, InputKind, find_inputs, labels
from ..inputs.lines import after_mark
from ..inputs.source_formats import NoRowsError
from ..inputs.spool import decompressed, kind_within, rows_of
from ..observer import Observer
from ..store.open_store import cache_root, is_url, resolve_place
from .rejects import Rejects

_STRETCH = 100
"""Maximum number of consecutive rows to take."""
_PLACES = 100
"""Minimum number of stretches of a source, if it has enough rows; neighbouring rows are often alike."""
_LEAST = 20
"""Minimum number of rows of a source, however small its share; a source without rows would look broken."""
_MEASURED = 64
"""Files of a source, and places in them, that are measured to estimate its rows."""
_PROBE = 1 << 16
"""Bytes to read at a place to measure line lengths."""
_READ_ALL = 1.05
"""All rows are read if the inputs have at most this multiple of the requested rows."""
_LONGEST = 64 << 20
"""Longer lines, and what follows them in a file, are not sampled."""
_ENOUGH = 1 << 20
"""Bytes that an estimate needs of a file that can be read only from the start."""
_GROUP = 128 << 20
"""Row groups of up to this many bytes are decoded whole; from larger ones the first rows are taken."""
_TABLES = (Container.PARQUET, Container.ARROW_FILE, Container.ARROW_STREAM)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A configuration whose sources are a sample."""

    config: RunConfig
    asked: RunConfig
    """The user's configuration."""
    rows_estimated: float
    """Estimated rows of all inputs."""
    exhaustive: bool
    """Whether the sample has all rows; if so, `config` is the user's configuration."""
    origins: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """(name, path) of the input for the path of each file of the sample."""

    def true_rejects(self, rejects: Rejects) -> Rejects:
        """Return the rejects of the sample, with the names of the real inputs and without lines."""
        shown = []
        for reject in rejects.shown:
            name, path = self.origins.get(reject.path or "", (reject.file, reject.path))
            line = reject.line if reject.path not in self.origins else None
            shown.append(replace(reject, file=name, path=path, line=line))
        return Rejects(shown, rejects.file)

    def true_place(self, error: NoRowsError) -> NoRowsError:
        """Return the error, with the name of the real input."""
        name, path = self.origins.get(error.path, (error.path, None))
        return NoRowsError(error.where, path or name, None, error.said)


@dataclass(frozen=True, slots=True)
class _File:
    """An input to take rows from."""

    found: Found
    name: Path
    """What the input is called, which may be fetched."""
    container: Container
    packing: Compression | None

    @property
    def leading(self) -> bool:
        """Whether rows can be taken only from the start."""
        return self.packing is not None or self.container not in (Container.JSONL, *_TABLES)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file; a reader's error becomes an `InputError` that names it."""
        try:
            with _open(self.found) as file:
                yield file
        except InputError:
            raise
        except (OSError, pa.ArrowException, ValueError, StopIteration) as error:
            raise InputError(
                f"{self.found.shown} is damaged or cut short: it cannot be read as {self.container.value} "
                f"({str(error).rstrip('.')}); copy it again, or write it again"
            ) from error


@dataclass(frozen=True, slots=True)
class _Source:
    """A source to sample."""

    config: SourceConfig
    files: list[_File]
    weights: list[float]
    """Estimated rows of each file."""
    rows: float
    """Rows of all files, limited by `max_rows`."""


@contextmanager
def sampled(config: RunConfig, base: Path, rows: int, observer: Observer) -> Iterator[Sampled]:
    """Make a sample of about `rows` rows, which exists until the context ends.

    Raises:
        ConfigError: `rows` is not positive; an input is missing.
        InputError: an input cannot be read.
    """
    if rows < 1:
        raise ConfigError(f"--rows {rows}: give the number of rows to sample, such as 20000")
    place = cache_root(config.cache, resolve_place(config.out, base), base)
    cache = Path(tempfile.gettempdir() if is_url(place) else place)
    observer.begin("sample", 0, "")
    sources = [_measure(source, base, cache, observer) for source in config.sources]
    every = sum(source.rows for source in sources)
    if every <= rows * _READ_ALL:
        observer.end()
        yield Sampled(config, config, every, True)
        return
    with tempfile.TemporaryDirectory(prefix="packtrain-sample-", ignore_cleanup_errors=True) as temporary:
        home, origins, chosen = Path(temporary), dict[str, tuple[str, str | None]](), []
        for number, source in enumerate(sources):
            share = max(rows * source.rows / every, min(_LEAST, source.rows)) / source.rows if source.rows else 1.0
            chosen.append(_take(source, min(share, 1.0), home / str(number), config.seed + number, origins))
        (home / "cache").mkdir()
        update = {"sources": tuple(chosen), "cache": str(home / "cache")}
        observer.end()
        yield Sampled(config.model_copy(update=update), config, every, False, origins)


def _measure(source: SourceConfig, base: Path, cache: Path, observer: Observer) -> _Source:
    """A source's files, with their rows estimated from some of each kind."""
    files = [file for found in find_inputs(source, base) for file in _here(found, source, cache, observer)]
    weights = [0.0] * len(files)
    for kind in dict.fromkeys((file.container, file.packing) for file in files):
        alike = [number for number, file in enumerate(files) if (file.container, file.packing) == kind]
        some = [files[number] for number in alike[:: -(-len(alike) // _MEASURED)]]
        rows = sum(_rows(file, -(-_MEASURED // len(some))) for file in some)
        density = rows / sum(max(file.found.size, 1) for file in some)
        for number in alike:
            weights[number] = density * max(files[number].found.size, 1)
    if any(file.leading for file in files):
        observer.note(
            f"sources.{source.name}: only the first rows of compressed files and CSV are sampled; they may differ "
            "from the others"
        )
    return _Source(source, files, weights, min(sum(weights), source.max_rows or float("inf")))


def _here(found: Found, source: SourceConfig, cache: Path, observer: Observer) -> list[_File]:
    """The input's files, copied to this machine if they cannot be sampled remotely.

    Raises:
        InputError: an input is empty or cannot be read.
    """
    if found.kind is InputKind.HUB:
        from ..inputs.hub import load

        observer.note(f"sources.{source.name}: the datasets library loads all of hf://{found.name} before sampling")
        loaded = load(found.name, source.subset, source.split, cache, f"sources.{source.name}.path")
        return [file for one in loaded for file in _here(one, source, cache, observer)]
    try:
        with _open(found) as opened:
            head = opened.read(HEAD)
    except Exception as error:  # each file system of fsspec raises its own errors
        raise InputError(f"{found.shown} cannot be read: {error}") from error
    if not head:
        raise InputError(f"{found.shown} is empty; remove it from the source's path, or fill it")
    name = found.path
    container, packing = detect(name, found.shown, head)
    if found.kind is InputKind.URL and container in _TABLES[1:]:
        from ..inputs.fetch import fetch

        copy = fetch(found.name, found.size, found.stamp, cache)
        found = replace(found, kind=InputKind.LOCAL, name=str(copy))
    return [_File(found, name, container, packing)]


def _open(found: Found) -> BinaryIO:
    if found.kind is InputKind.URL:
        from ...schemas.files.clients import filesystem

        fs, inner = filesystem(found.name)
        far: BinaryIO = fs.open(inner, "rb")
        return far
    return found.path.open("rb")


def _rows(file: _File, probes: int) -> float:
    """A file's rows: those that a table says, or an estimate by its lines at some places, or by its first rows."""
    size = file.found.size
    if file.leading:
        lines, part = _first_rows(file, 10 * _STRETCH)
        return len(lines) / part
    with file.open() as opened:
        if file.container is Container.PARQUET:
            return float(pq.ParquetFile(opened).metadata.num_rows)
        if file.container is not Container.JSONL:
            return float(_arrow(file).num_rows)
        if size <= probes * _PROBE:
            data = opened.read()
            return float(data.count(b"\n") + (data[-1:] != b"\n"))
        ends = read = 0
        for number in range(probes):
            opened.seek(int((number + 0.5) / probes * (size - _PROBE)))
            data = opened.read(_PROBE)
            ends, read = ends + data.count(b"\n"), read + len(data)
    return size * max(ends, 1) / max(read, 1)


def _take(
    source: _Source, share: float, folder: Path, seed: int, origins: dict[str, tuple[str, str | None]]
) -> SourceConfig:
    """Write a share of a source's rows, from 0 to 1, and return its configuration."""
    count, whole = max(1, round(share * source.rows)), sum(source.weights)
    space = source.rows / whole if whole else 1.0  # what `max_rows` leaves
    stretches = max(min(count, _PLACES), -(-count // _STRETCH))
    chance = random.Random(seed)
    places = [(number + chance.random() * (1 - share)) / stretches * space for number in range(stretches)]
    span = share / stretches * space
    each = max(1.0, span * whole)
    paths: list[str] = []
    before = 0.0
    names = labels([file.name for file in source.files])
    for number, (file, rows, name) in enumerate(zip(source.files, source.weights, names, strict=True)):
        part = rows / whole if whole else 0.0
        mine = [(place - before) / part for place in places if before <= place < before + part]
        before += part
        if not mine:
            continue
        stem, suffix = split_name(file.name.name)
        target = folder / f"{number:05d}" / (f"{stem}.jsonl" if file.leading else file.name.name)
        target.parent.mkdir(parents=True)
        if file.leading:
            most = round(each * len(mine))
            target.write_bytes(b"".join(_first_rows(file, most)[0][:most]))
        elif file.container is Container.JSONL:
            with target.open("wb") as to, file.open() as opened:
                take_lines(opened, file.found.size, mine, span / part, to)
        else:
            _take_table(file, mine, round(each), target)
        if not target.stat().st_size:
            continue
        paths.append(str(target))
        local = str(file.found.path) if file.found.kind is InputKind.LOCAL else None
        origins[str(target)] = (name if name.endswith(suffix) else name + suffix, local)
    if not paths:
        raise InputError(f"sources.{source.config.name}: the sample found no row; leave out --rows")
    return source.config.model_copy(update={"path": tuple(paths), "split": None, "subset": None, "max_rows": None})


def take_lines(file: BinaryIO, size: int, places: Sequence[float], span: float, to: BinaryIO) -> None:
    """Take the lines that start within given stretches of bytes.

    Stretches are measured in bytes, not lines, so that long lines are not taken too often.

    Args:
        size: bytes of the file.
        places: the starts of the stretches, from 0 to 1, ascending.
        span: the length of each, as a share of the file.
    """
    at = 0  # where a line starts; no later one starts before the next place
    for place in places:
        start = int(place * size)
        stop = max(int((place + span) * size), start + 1)
        if start > at:
            file.seek(start - 1)
            skipped = file.readline(_LONGEST)
            at = start - 1 + len(skipped) if skipped.endswith(b"\n") else size
        elif at < stop:
            file.seek(at)
        while at < min(stop, size):
            line = file.readline(_LONGEST)
            at += len(line)
            if not line.endswith(b"\n") and at < size:
                at = size
            else:
                to.write(line.removesuffix(b"\n") + b"\n")


def _first_rows(file: _File, count: int) -> tuple[list[bytes], float]:
    """(At least `count` first rows as lines of JSON, if there are as many; the share of the file that they span.)"""
    shown, rows = file.found.shown, list[bytes]()
    with file.open() as opened:
        stream = decompressed(opened, file.packing)
        kind = kind_within(stream, shown, file.container, file.packing)
        lines: Iterator[bytes] = stream
        if kind is Container.JSONL:
            after_mark(stream)
        else:
            lines = rows_of(stream, shown, kind, _LONGEST, Path(tempfile.gettempdir()))
        for line in lines:
            if line.strip() and not line.startswith(b"!"):  # which stands before the reason why a row is not usable
                rows.append(line.rstrip(b"\n") + b"\n")
            if len(rows) >= count and (kind is not Container.JSON_ARRAY) and opened.tell() >= _ENOUGH:
                return rows, min(opened.tell() / max(file.found.size, 1), 1.0)
    return rows, 1.0


def _take_table(file: _File, places: Sequence[float], each: int, to: Path) -> None:
    """Take rows of a table, and write them in the same format.

    Raises:
        InputError: the file is damaged.
    """
    with file.open() as opened:
        if file.container is not Container.PARQUET:
            table = _slices(whole := _arrow(file), [int(place * whole.num_rows) for place in places], each)
            with pa.ipc.new_file(str(to), table.schema) as writer:
                writer.write_table(table)
            return
        parquet = pq.ParquetFile(opened)
        starts, first, tables = [int(place * parquet.metadata.num_rows) for place in places], 0, []
        for number in range(parquet.metadata.num_row_groups):
            group = parquet.metadata.row_group(number)
            mine = [start - first for start in starts if first <= start < first + group.num_rows]
            first += group.num_rows
            if mine and group.total_byte_size <= _GROUP:
                tables.append(_slices(parquet.read_row_group(number), mine, each))
            elif mine:
                tables.append(pa.Table.from_batches([next(parquet.iter_batches(each * len(mine), [number]))]))
        pq.write_table(pa.concat_tables(tables or [parquet.schema_arrow.empty_table()]), to)


def _slices(table: pa.Table, starts: Sequence[int], each: int) -> pa.Table:
    """Return `each` rows from each start, without repeats."""
    pieces, at = [], 0
    for start in starts:
        pieces.append(table.slice(max(at, start), each))
        at = max(at, start) + pieces[-1].num_rows
    return pa.concat_tables(pieces)


def _arrow(file: _File) -> pa.Table:
    """The whole table, memory-mapped."""
    source = pa.memory_map(str(file.found.path))
    opened: Any = pa.ipc.open_file if file.container is Container.ARROW_FILE else pa.ipc.open_stream
    return opened(source).read_all()
