"""Takes evenly spaced rows from one input without reading all of it, if its format allows that.

Line files are searched for line starts near given places; Parquet row groups and Arrow batches are read by number.
Other files can be read only from the start; their first rows become lines of JSON.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from typing import Any, BinaryIO

import pyarrow as pa

from ....schemas.errors import InputError
from ...inputs.blocks import split_name
from ...inputs.detect import HEAD, Compression, Container, detect
from ...inputs.divide import rows_of
from ...inputs.find import Found, InputKind
from ...inputs.spool import decompressed

PROBE = 1 << 16
"""Number of bytes to read at a place to measure line lengths."""
_CHUNK = 1 << 20
MOST = 64 << 20
"""Maximum number of bytes of a chunk of rows; longer chunks are cut after their last whole row."""
_READ_AHEAD = 16 << 20
"""Bytes to look at first where rows can be read only from the start. Compressed files are read in steps of 64 KiB."""
_LEAST = 1 << 20
"""Minimum number of bytes of a compressed file to read for an estimate of its rows."""
_GROUP = 128 << 20
"""Row groups of up to this many bytes are decoded whole; from larger ones the first rows are taken."""

_FROM_PLACES = (Container.JSONL, Container.PARQUET, Container.ARROW_FILE, Container.ARROW_STREAM)
"""Containers whose rows can be taken from any place. Others can be read only from the start."""

Opener = Callable[[], BinaryIO]


@dataclass(slots=True)
class Taken:
    """Rows taken from an input and written to a file."""

    rows: int = 0
    bytes: int = 0
    """Bytes of the input that these rows span."""
    starts: list[tuple[int, int]] = field(default_factory=list)
    """For line files: (first row in the sample, byte in the input) of each chunk."""


@dataclass(frozen=True, slots=True)
class SampledFile:
    """One input to take rows from."""

    found: Found
    open: Opener
    container: Container
    packing: Compression | None

    @property
    def leading(self) -> bool:
        """Whether rows can be taken only from the start."""
        return self.packing is not None or self.container not in _FROM_PLACES

    @property
    def lines(self) -> bool:
        """Whether rows are plain lines."""
        return self.container is Container.JSONL and self.packing is None

    @property
    def name(self) -> str:
        """Name of the sample's file: the input's name, or that of lines of JSON."""
        path = self.found.path
        return f"{split_name(path.name)[0]}.jsonl" if self.leading else path.name


def look(found: Found) -> SampledFile:
    """Find out an input's container and compression.

    Raises:
        InputError: the input is empty or cannot be read.
    """
    path = found.path

    def opened() -> BinaryIO:
        if found.kind is InputKind.URL:
            from ....schemas.files.clients import filesystem

            fs, inner = filesystem(found.name)
            far: BinaryIO = fs.open(inner, "rb")
            return far
        return path.open("rb")

    try:
        with opened() as file:
            head = file.read(HEAD)
    except Exception as error:  # each file system of fsspec raises its own errors
        raise InputError(f"{found.shown} cannot be read: {error}") from error
    if not head:
        raise InputError(f"{found.shown} is empty; remove it from the source's path, or fill it")
    return SampledFile(found, opened, *detect(path, found.shown, head))


def line_bytes(piece: SampledFile, places: Sequence[float]) -> tuple[int, int]:
    """Return (bytes, lines) read at some places of a line file. Places are from 0 to 1."""
    size = piece.found.size
    read = lines = 0
    with piece.open() as file:
        for place in places:
            file.seek(int(place * max(0, size - PROBE)))
            data = file.read(PROBE)
            read += len(data)
            lines += data.count(b"\n")
    return read, lines


def count_lines(piece: SampledFile) -> int:
    """Count the lines of a file by reading all of it."""
    count, last = 0, b"\n"
    with piece.open() as file:
        while data := file.read(_CHUNK):
            count += data.count(b"\n")
            last = data[-1:]
    return count + (last != b"\n")


def take_lines(piece: SampledFile, places: Sequence[float], span: float, to: BinaryIO) -> Taken:
    """Take the lines that start within given stretches of bytes.

    Stretches are measured in bytes, not lines, so that long lines are not taken too often.

    Args:
        places: the starts of the stretches, from 0 to 1, ascending.
        span: the length of each, as a share of the file.
    """
    out, at = Taken(), 0
    size = max(piece.found.size, 1)
    # The last search: the first line after `looked` starts at `found`. Many places may fall into one long line.
    looked, found = size, 0
    with piece.open() as file:
        for place in places:
            start = max(at, int(place * size))
            stop = max(int((place + span) * size), start + 1)
            begin: int | None = found
            rest = b""
            if not start:
                begin = 0
            elif not looked <= start <= found:
                begin, rest = _line_start(file, start)
                if begin is not None:
                    looked, found = start, begin
            if begin is None or begin >= stop:
                continue
            data = _until(file, rest, begin, stop)
            if data:
                out.starts.append((out.rows, begin))
                to.write(data if data.endswith(b"\n") else data + b"\n")
                out.rows += data.count(b"\n") + (not data.endswith(b"\n"))
                out.bytes += len(data)
                at = begin + len(data)
    return out


def _line_start(file: BinaryIO, place: int) -> tuple[int | None, bytes]:
    """Return (start of the first line at or after a place, what was read of it); None at the end of the file."""
    file.seek(place - 1)
    at = place - 1
    while data := file.read(PROBE):
        end = data.find(b"\n")
        if end >= 0:
            rest = data[end + 1 :]
            if not rest and not (rest := file.read(PROBE)):
                return None, b""
            return at + end + 1, rest
        at += len(data)
        if at - place > MOST:
            break
    return None, b""


def _until(file: BinaryIO, data: bytes, begin: int, stop: int) -> bytes:
    """Return the whole lines from `begin` on that start before `stop`. The file's last line may lack a line end."""
    file.seek(begin + len(data))
    read = bytearray(data)
    while begin + len(read) < stop and len(read) < MOST:
        more = file.read(min(_CHUNK, stop - begin - len(read)))
        if not more:
            return bytes(read)
        read += more
    at = min(stop - begin, len(read)) - 1
    while (end := read.find(b"\n", at)) < 0:
        at = len(read)
        more = file.read(PROBE)
        if not more or len(read) > 2 * MOST:
            return bytes(read if not more else read[: read.rfind(b"\n") + 1])
        read += more
    return bytes(read[: end + 1])


def take_first(piece: SampledFile, count: int, to: BinaryIO) -> Taken:
    """Take the first rows of a file that can be read only from the start, as lines of JSON."""
    limit = _READ_AHEAD
    while True:
        lines, read, ended = _first_lines(piece, limit)
        if ended or limit >= MOST or (len(lines) >= count and (piece.packing is None or read >= _LEAST)):
            break
        limit *= 4
    to.writelines(lines[:count])
    rows = min(count, len(lines))
    return Taken(rows, max(int(read * rows / max(len(lines), 1)), 1))


def _first_lines(piece: SampledFile, limit: int) -> tuple[list[bytes], int, bool]:
    """(whole rows, bytes of the file that they span, whether these are all) of the first bytes, decompressed."""
    left = limit
    with piece.open() as file:
        with decompressed(file, piece.found.shown, piece.packing) as source:

            def read(count: int) -> bytes:
                nonlocal left
                data = source(min(count, left)) if left else b""
                left -= len(data)
                return data

            parts: list[bytes] = []
            try:
                scratch = Path(gettempdir())
                with rows_of(read, piece.found.shown, piece.container, piece.packing, MOST, scratch) as rows:
                    parts.extend(rows.lines)
            except InputError:
                if left:
                    raise
            ended = left > 0
        at = piece.found.size if ended else min(file.tell(), piece.found.size)
    lines = _split(b"".join(parts))
    return (lines if ended else lines[:-1]), at, ended


def _split(data: bytes) -> list[bytes]:
    """The lines, each with its end."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    return lines if lines[-1] != b"\n" else lines[:-1]


def table_rows(piece: SampledFile) -> int:
    """Return the number of rows of a table, from its footer or its batches.

    Raises:
        InputError: the file is damaged.
    """
    with _damage(piece):
        if piece.container is Container.PARQUET:
            import pyarrow.parquet as pq

            with piece.open() as file:
                return int(pq.ParquetFile(file).metadata.num_rows)
        return int(_arrow(piece).num_rows)


def take_rows(piece: SampledFile, places: Sequence[float], each: int, to: Path) -> Taken:
    """Take rows of a table, and write them in the same format.

    Raises:
        InputError: the file is damaged.
    """
    with _damage(piece):
        if piece.container is not Container.PARQUET:
            table = _arrow(piece)
            some, rows = _slices(table, [int(place * table.num_rows) for place in places], each)
            with pa.ipc.new_file(str(to), table.schema) as writer:
                writer.write_table(some)
            return Taken(rows, piece.found.size * rows // max(table.num_rows, 1))
        import pyarrow.parquet as pq

        with piece.open() as file:
            parquet = pq.ParquetFile(file)
            every = parquet.metadata.num_rows
            some, rows = _of_groups(parquet, [int(place * every) for place in places], each)
        pq.write_table(some, to)
        return Taken(rows, piece.found.size * rows // max(every, 1))


def _of_groups(parquet: Any, places: list[int], each: int) -> tuple[pa.Table, int]:
    """Read rows from several places of a Parquet file, by row group."""
    tables, first = [], 0
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        mine = [place - first for place in places if first <= place < first + group.num_rows]
        first += group.num_rows
        if not mine:
            continue
        if group.total_byte_size <= _GROUP:
            tables.append(_slices(parquet.read_row_group(number), mine, each)[0])
        else:
            batches = parquet.iter_batches(each * len(mine), [number])
            tables.append(pa.Table.from_batches([next(batches)]))
    joined = pa.concat_tables(tables) if tables else parquet.schema_arrow.empty_table()
    return joined, joined.num_rows


def _slices(table: pa.Table, places: list[int], each: int) -> tuple[pa.Table, int]:
    """Return `each` rows from each place, without repeats."""
    pieces, at = [], 0
    for place in places:
        start = max(at, min(place, table.num_rows))
        pieces.append(table.slice(start, each))
        at = start + pieces[-1].num_rows
    joined = pa.concat_tables(pieces) if pieces else table.slice(0, 0)
    return joined, joined.num_rows


def _arrow(piece: SampledFile) -> pa.Table:
    """Open the whole table, memory-mapped."""
    source = pa.memory_map(str(piece.found.path))
    if piece.container is Container.ARROW_FILE:
        return pa.ipc.open_file(source).read_all()
    return pa.ipc.open_stream(source).read_all()


class _damage:  # noqa: N801 - a context manager, used like a function
    """Turns a reader's error into an `InputError` that names the file."""

    def __init__(self, piece: SampledFile) -> None:
        self.piece = piece

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, pa.ArrowException, ValueError, StopIteration)) and not isinstance(
            error, InputError
        ):
            raise InputError(
                f"{self.piece.found.shown} is damaged or cut short: it cannot be read as {self.piece.container.value} "
                f"({str(error).rstrip('.')}); copy it again, or write it again"
            ) from error
