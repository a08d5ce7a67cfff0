"""Some rows of one input, evenly, without reading all of it: what each kind of file allows.

Lines are looked for at places in the file; row groups of Parquet and batches of Arrow are asked for by number. What is
compressed, and CSV, whose newlines may stand within quotes, can be read from the beginning only.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from ...schemas.errors import InputError
from ..inputs.blocks import split_name
from ..inputs.containers import HEAD, Container, Packing, detect, settled
from ..inputs.jsonarray import ArrayLines
from ..inputs.paths import Found, Kind
from ..inputs.separated import Rows

PROBE = 1 << 16
"""Bytes that are read at a place to see how long lines are."""
_CHUNK = 1 << 20
MOST = 64 << 20
"""Bytes of a chunk of rows; longer ones are cut at their last whole row."""
_READ_AHEAD = 1 << 20
"""Bytes of a compressed file that are read at least, to tell how many rows it has: it is read in steps of 64 KiB."""
_GROUP = 128 << 20
"""Bytes of a row group that is decoded whole; of larger ones, the first rows are taken."""

_FROM_PLACES = (Container.JSONL, Container.PARQUET, Container.ARROW_FILE, Container.ARROW_STREAM)
"""Containers of which rows can be taken from any place; of the others, only from the beginning."""

Opener = Callable[[], BinaryIO]


@dataclass(slots=True)
class Taken:
    """Rows that were taken from an input and written to a file."""

    rows: int = 0
    bytes: int = 0
    """Of the input, that they are."""
    starts: list[tuple[int, int]] = field(default_factory=list)
    """(first row of the sample, byte of the input), chunk by chunk, of lines that were taken from places."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One input that rows are taken from."""

    found: Found
    open: Opener
    container: Container
    packing: Packing | None

    @property
    def leading(self) -> bool:
        """Whether only its first rows can be had."""
        return self.packing is not None or self.container not in _FROM_PLACES

    @property
    def lines(self) -> bool:
        """Whether rows are plain lines."""
        return self.container is Container.JSONL and self.packing is None

    @property
    def name(self) -> str:
        """Of the file that its sample goes to: its own, without what says that it is compressed."""
        path = self.found.path
        if self.packing is None:
            return path.name
        stem, suffix = split_name(path.name)
        inner = Path("x" + suffix).stem.removeprefix("x")
        lines = self.container in (Container.JSONL, Container.JSON_ARRAY)
        return stem + (inner or (".jsonl" if lines else f".{self.container.lower()}"))


def look(found: Found) -> Piece:
    """What kind of input it is.

    Raises:
        InputError: it is none that can be read.
    """
    path = found.path

    def opened() -> BinaryIO:
        if found.kind is Kind.URL:
            from ..inputs import remote

            fs, inner = remote._open(found.name)
            far: BinaryIO = fs.open(inner, "rb")
            return far
        return path.open("rb")

    try:
        with opened() as file:
            head = file.read(HEAD)
    except Exception as error:  # each file system of fsspec has errors of its own
        raise InputError(f"{found.shown} cannot be read: {error}") from error
    if not head:
        raise InputError(f"{found.shown} is empty; remove it from the source's path, or fill it")
    return Piece(found, opened, *detect(path, found.shown, head))


def line_bytes(piece: Piece, places: Sequence[float]) -> tuple[int, int]:
    """(bytes, lines) at some places of a file of lines, each 0 to 1."""
    size = piece.found.size
    read = lines = 0
    with piece.open() as file:
        for place in places:
            file.seek(int(place * max(0, size - PROBE)))
            data = file.read(PROBE)
            read += len(data)
            lines += data.count(b"\n")
    return read, lines


def count_lines(piece: Piece) -> int:
    """Lines of a file, all of it read."""
    count, last = 0, b"\n"
    with piece.open() as file:
        while data := file.read(_CHUNK):
            count += data.count(b"\n")
            last = data[-1:]
    return count + (last != b"\n")


def take_lines(piece: Piece, places: Sequence[float], span: float, to: BinaryIO) -> Taken:
    """The lines that begin in each of some stretches of bytes.

    Not so many lines from each place: where lines are long, there are more places, and they would be too many.

    Args:
        places: where stretches begin, 0 to 1, rising.
        span: how long each is, as a share of the file.
    """
    out, at = Taken(), 0
    size = max(piece.found.size, 1)
    # Where a line was last looked for, and found: a long one has many places in it, and is gone through once.
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
    """Where the first line begins at or after a place, and what was read of it; None at the end of the file."""
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
    """Whole lines from `begin` on that begin before `stop`; the last of the file need not end."""
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


def take_first(piece: Piece, count: int, to: BinaryIO) -> Taken:
    """The first rows of what is compressed, or of separated values with their header."""
    with piece.open() as file:
        source: Any = file
        if piece.packing is not None:
            source = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), piece.packing.value)
        head = source.read(HEAD)
        container = settled(piece.container, head)
        source = _Rest(head, source)
        if container is Container.JSON_ARRAY:
            source = ArrayLines(piece.found.shown, source.read)
        elif container is Container.TEXT:  # the one document that it is
            data = source.read(MOST)
            to.write(data)
            return Taken(1, piece.found.size)
        separated = piece.container in (Container.CSV, Container.TSV)
        wanted = count + 1 if separated else count
        splitter = Rows(piece.found.shown)
        data, ended = b"", False
        while not ended:
            more = source.read(_CHUNK)
            ended, data = not more, data + more
            if len(data) <= MOST and piece.packing is not None and _position(file) < _READ_AHEAD:
                continue
            if len(data) > MOST or (splitter.count(data, len(data)) if separated else data.count(b"\n")) >= wanted:
                break
        read = _position(file) if piece.packing is not None else 0
    ends = _row_ends(data, quoted=separated)
    if ended and (not ends or ends[-1] < len(data)):
        ends.append(len(data))
    kept = data[: ends[min(wanted, len(ends)) - 1]] if ends else b""
    to.write(kept if kept.endswith(b"\n") else kept + b"\n")
    head = 1 if separated else 0
    rows, known = min(wanted, len(ends)) - head, len(ends) - head
    if ended:
        read = piece.found.size
    elif piece.packing is None:
        read = len(data)
    return Taken(max(rows, 0), max(int(read * rows / max(known, 1)), 1))


class _Rest:
    """A stream of which the beginning was read already."""

    def __init__(self, head: bytes, stream: Any) -> None:
        self._head, self._stream = head, stream

    def read(self, count: int) -> bytes:
        """Up to so many bytes; none at the end."""
        if self._head:
            out, self._head = self._head[:count], self._head[count:]
            return out
        data: bytes = self._stream.read(count)
        return data


def _row_ends(data: bytes, *, quoted: bool) -> list[int]:
    """One past the end of each row that ends in the data."""
    out, at, inside = [], 0, False
    for line in data.split(b"\n")[:-1]:
        at += len(line) + 1
        if quoted:
            inside ^= bool(line.count(b'"') % 2)
        if not inside:
            out.append(at)
    return out


def _position(file: BinaryIO) -> int:
    with suppress(OSError, ValueError):
        return file.tell()
    return 0


def table_rows(piece: Piece) -> int:
    """Rows of a table, by its footer or its batches.

    Raises:
        InputError: it is damaged.
    """
    with _damage(piece):
        if piece.container is Container.PARQUET:
            import pyarrow.parquet as pq

            with piece.open() as file:
                return int(pq.ParquetFile(file).metadata.num_rows)
        return int(_arrow(piece).num_rows)


def take_rows(piece: Piece, places: Sequence[float], each: int, to: Path) -> Taken:
    """The same of a table, as one of the same kind.

    Raises:
        InputError: it is damaged.
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
    """Rows from places of a Parquet file, row group by row group."""
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
    """`each` rows from each place, none twice."""
    pieces, at = [], 0
    for place in places:
        start = max(at, min(place, table.num_rows))
        pieces.append(table.slice(start, each))
        at = start + pieces[-1].num_rows
    joined = pa.concat_tables(pieces) if pieces else table.slice(0, 0)
    return joined, joined.num_rows


def _arrow(piece: Piece) -> pa.Table:
    """All of it, mapped."""
    source = pa.memory_map(str(piece.found.path))
    if piece.container is Container.ARROW_FILE:
        return pa.ipc.open_file(source).read_all()
    return pa.ipc.open_stream(source).read_all()


class _damage:  # noqa: N801 - a context, read as a word
    """Says which file a reader's error is about."""

    def __init__(self, piece: Piece) -> None:
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
