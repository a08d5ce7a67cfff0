"""The results of a scan: files, and blocks of which each is encoded by one task."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import blake3
import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import InputError

Lines = list[tuple[int, bytes]]
"""(number within the block, bytes of one line of JSON)."""
Records = list[tuple[int, Mapping[str, Any]]]
"""(number within the block, decoded row); values are plain data, or arrays from an `ArrayReader`."""


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of one block, as lines or as records."""

    lines: Lines | None = None
    records: Records | None = None
    rejects: list[tuple[int, str, str]] = field(default_factory=list)
    """(number within the block, reason, detail) of rows that cannot be divided into columns."""
    blank: int = 0
    """Blank rows, if the reader itself skips them."""

    def only(self, number: int) -> "BlockRows":
        """Only the row with this number."""
        lines = None if self.lines is None else [one for one in self.lines if one[0] == number]
        records = None if self.records is None else [one for one in self.records if one[0] == number]
        rejects = [one for one in self.rejects if one[0] == number]
        return BlockRows(lines, records, rejects, blank=int(not (lines or records or rejects)))


class RowReader(Protocol):
    """Reads a block's rows from its file, for everything but plain lines. Small and frozen; sent with tasks."""

    def rows(self, path: Path, block: "Block", columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """The rows of the block.

        Args:
            path: the file that holds the block.
            columns: the columns needed; None for all.
            limit: most rows to read, for a look at the data.

        Raises:
            InputError: the file has changed since the scan.
        """
        ...


@runtime_checkable
class ArrayReader(RowReader, Protocol):
    """A reader that also gives lists of integers as arrays, which is several times as fast."""

    def array_rows(self, path: Path, block: "Block", columns: Sequence[str] | None) -> BlockRows:
        """The rows of the block; a value that is a list of integers or booleans may be an array (T,).

        Args, Raises: see `RowReader.rows`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """A range of whole rows of one file."""

    start: int
    """First byte: of the file, of the decompressed data, or for tables, of the summed sizes of rows."""
    end: int
    first_line: int
    """Rows of the file before this block."""
    lines: int
    hash: str
    """BLAKE3 of the data of the rows; for lines, of the bytes."""
    too_long: bool = False
    """Whether the block is a line longer than `max_row_bytes`, which is rejected without reading it into memory."""
    place: RowReader | None = None
    """Reads the rows of a container; None for a byte range of lines."""
    spooled: Path | None = None
    """The cache file with only this block, if the input does not allow random access."""
    take: int | None = None
    """Use only this many first rows, if `max_rows` ends within the block."""
    whole_hash: str = ""
    """The hash of the whole block, if `take` is set."""

    @property
    def content_hash(self) -> str:
        """The hash of all rows of the block, taken or not, for checking its bytes."""
        return self.whole_hash or self.hash

    def first(self, rows: int) -> "Block":
        """The block with only its first rows. Its hash depends only on the content."""
        digest = blake3.blake3(f"the first {rows} rows of {self.hash}".encode()).hexdigest()
        return replace(self, lines=rows, hash=digest, take=rows, whole_hash=self.hash)


@dataclass(frozen=True, slots=True)
class FileLines:
    """Which line of which file each row of a block is. Most blocks belong to one file; see `inputs.joined`."""

    files: tuple[str, ...]
    """Labels of the F files."""
    begins: tuple[int, ...]
    """(F,) the row of the block, from 0, that is each file's first line; negative if the block is not the file's
    first.
    """

    def find(self, row: int) -> tuple[int, int]:
        """(index of the file, number of the line in it, from 1) of a row of the block."""
        index = bisect_right(self.begins, row) - 1
        return index, row - self.begins[index] + 1

    def find_all(self, rows: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(N,) and (N,): as `find`, for (N,) rows."""
        begins = np.array(self.begins, dtype=np.int64)
        index = np.searchsorted(begins, rows, side="right") - 1
        return index.astype(np.int32), rows.astype(np.int64) - begins[index] + 1

    def row_of(self, file: str, line: int, rows: int) -> int | None:
        """The row of the block, from 0, that is a line of a file, from 1; None if the block lacks it.

        Args:
            rows: how many rows the block has.
        """
        if file not in self.files:
            return None
        index = self.files.index(file)
        row = self.begins[index] + line - 1
        end = self.begins[index + 1] if index + 1 < len(self.files) else rows
        return row if line > 0 and max(self.begins[index], 0) <= row < end else None


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a source, as at the start of the run."""

    source: str
    label: str
    """Name of the file in ids and rejects, with as many folders as needed to make it unique."""
    path: Path
    size: int
    mtime_ns: int
    """Its modification time in nanoseconds."""
    hash: str
    blocks: tuple[Block, ...]
    not_taken: int = 0
    """Rows beyond the source's `max_rows`."""
    origin: str = ""
    """The URL or dataset name that it was copied from; empty for local files."""
    far: tuple[int, int] | None = None
    """(size, stamp) of the URL's file, which identify its copy in `inputs.places.remote`; None if other machines cannot
    fetch it from `origin`."""

    @property
    def shown(self) -> str:
        """Name of the file in rejects: the label with the file's suffix."""
        _, suffix = split_name(self.origin.rpartition("/")[2] or self.path.name)
        return self.label if self.label.endswith(suffix) else self.label + suffix

    @property
    def lines(self) -> int:
        """Number of rows, including a last line without a newline."""
        return self.blocks[-1].first_line + self.blocks[-1].lines if self.blocks else 0

    def where(self, block: Block) -> Path:
        """The file that contains a block."""
        return block.spooled or self.path

    def lines_of(self, block: Block) -> FileLines:
        """Where the rows of a block are."""
        return FileLines((self.label,), (-block.first_line,))

    def at(self, block: Block, line: int) -> tuple["InputFile", int]:
        """The file, and the number of the line in it, from 1, of a row of a block, counted from 0."""
        return self, block.first_line + line + 1


_COMPRESSED = (".gz", ".zst", ".zstd", ".gzip")


def split_name(name: str) -> tuple[str, str]:
    """A file's name without its suffix, and the suffix; `.jsonl.gz` is one suffix."""
    path = Path(name)
    if path.suffix in _COMPRESSED and Path(path.stem).suffix:
        stem = Path(path.stem).stem
        return stem, name[len(stem) :]
    return path.stem, path.suffix


def changed(path: Path, block: Block, spooled: bool) -> InputError:
    """The error for a block that has changed since the scan."""
    where = f"bytes {block.start:,} to {block.end:,}"
    if spooled:
        return InputError(f"{path} is damaged ({where} of its input); delete it and run again; it will be made again")
    return InputError(f"{path} changed while it was read ({where}); let whatever writes it finish, then run again")
