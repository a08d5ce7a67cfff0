"""What a source consists of: inputs that were found, files that were scanned, and blocks, each encoded by one task. All
of it is plain data.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import InputError
from ...schemas.fingerprint import hash_bytes
from ...stages.prep import RejectedRow
from ..store.open_store import is_url
from .file_kinds import split_name

Lines = list[tuple[int, bytes]]
"""(number within the block, bytes of one line of JSON)."""
Records = list[tuple[int, dict[str, Any]]]
"""(number within the block, decoded row)."""


@dataclass(frozen=True, slots=True)
class FoundInput:
    """One input, not opened yet."""

    name: str
    """A path or a URL."""
    size: int
    """Bytes; −1 if a server does not say."""
    stamp: int
    """Changes with the input: its change time (ctime, in ns), or a hash of a server's metadata; 0 if unknown."""
    alias: str = ""
    """The path that its label is made from; empty if that is `place`."""
    origin: str = ""
    """What the user knows a copy as: the URL, or the name of the dataset of the hub; empty for the user's own file."""

    @property
    def place(self) -> str:
        """The path of a local file; of a URL, its host and path."""
        if not is_url(self.name):
            return self.name
        parts = urlsplit(self.name)
        return f"/{parts.hostname}{parts.path}"


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of one block: lines of JSON, or records if it is of a table. The other list is empty."""

    lines: Lines = field(default_factory=list)
    records: Records = field(default_factory=list)
    rejects: list[RejectedRow] = field(default_factory=list)
    """Rows that cannot be used; they are in neither list."""
    unread: Counter[str] = field(default_factory=Counter)
    """Column of a table → how many rows have it, for each column of the file, read or not; empty if all are read."""


class Block(msgspec.Struct, frozen=True):
    """Whole neighbouring rows of one file, or of several small ones."""

    start: int
    """First byte: of the file, of the decompressed data, or for tables, of the summed sizes of rows."""
    end: int
    """One past the last byte."""
    first_line: int
    """Rows of the file before this block."""
    lines: int
    """Rows that are taken: all of the block, unless `take` says less."""
    content: str
    """BLAKE3 of all rows, taken or not: of the bytes of lines, of the rows of a table."""
    path: Path = Path()
    """The file, which it gets when the file is scanned; of several, the first."""
    kind: Literal["lines", "rows", "groups", "batches"] = "lines"
    """How it is read: lines of JSON as somebody wrote them; lines that `spool` made; row groups of a Parquet file; rows
    of a table that are kept in the cache."""
    too_long: bool = False
    """Whether the block is one row longer than `max_row_bytes`, which is rejected without reading it into memory."""
    spooled: Path | None = None
    """The cache file with only this block, if the input does not allow random access."""
    groups: tuple[int, int] = (0, 0)
    """Of kind `groups`: the first row group, and one past the last, whether or not all their rows are taken."""
    take: int | None = None
    """Use only this many first rows, if `max_rows` ends within the block; None for all."""
    members: tuple["Block", ...] = ()
    """The blocks of the small files that share this one; empty for a block of one file."""

    @property
    def hash(self) -> str:
        """BLAKE3 of what the block gives: of its content, unless equal bytes would be read in another way."""
        # A line of JSON and a row that `spool` wrote may be the same bytes, and not the same row.
        if self.take is None and self.kind != "rows":
            return self.content
        return hash_bytes(f"{self.kind}, first {self.take}: {self.content}".encode())

    def head(self, rows: int) -> "Block":
        """The block with only its first rows taken. `content` stays the hash of all of its rows: all are read, and
        compared with it, before the first are taken.
        """
        return msgspec.structs.replace(self, lines=rows, take=rows)

    def __str__(self) -> str:
        if self.members:
            return f"{len(self.members):,} small files, from {self.path} to {self.members[-1].path}"
        rows = f"rows {self.first_line + 1:,} to {self.first_line + self.lines:,}"
        return f"{self.path} ({rows}, bytes {self.start:,} to {self.end:,})"

    def describe_row(self, row: int) -> str:
        """The file of a row and its number in it, from 1, for messages.

        Args:
            row: its number in the file, from 0; where small files share the block, its number in all of them together.
        """
        for member in self.members:
            if row < member.lines:
                return f"{member.path}, row {row + 1:,}"
            row -= member.lines
        return f"{self.path}, row {row + 1:,}"


@dataclass(frozen=True, slots=True)
class FileLines:
    """Which line of which file each row of a block is."""

    files: tuple[str, ...]
    """Labels of the F files."""
    starts: tuple[int, ...]
    """(F,) the row of the block, from 0, that is each file's first line; negative if the block is not the file's
    first.
    """

    def find(self, row: int) -> tuple[int, int]:
        """The index of the file, and the number of the line in it, from 1, of a row of the block, from 0."""
        index = bisect_right(self.starts, row) - 1
        return index, row - self.starts[index] + 1

    def find_all(self, rows: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(N,) the index of the file, and (N,) the number of the line in it, from 1, of each of (N,) rows of the block.

        Where files of 3 and 2 rows share the block, its rows 2 and 3 are line 3 of file 0 and line 1 of file 1.
        """
        starts = np.array(self.starts, dtype=np.int64)
        index = np.searchsorted(starts, rows, side="right") - 1
        return index.astype(np.int32), rows.astype(np.int64) - starts[index] + 1


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a source, as at the start of the run; or several small ones that share a block."""

    source: str
    label: str
    """Name of the file in ids and rejects, with as many folders as needed to make it unique."""
    path: Path
    size: int
    """Bytes."""
    hash: str
    """BLAKE3 of the file; of joined files, the hash of the block that they share."""
    blocks: tuple[Block, ...]
    not_taken: int = 0
    """Rows beyond the source's `max_rows`."""
    origin: str = ""
    """The URL or dataset name that it was copied from; empty for local files."""
    members: tuple["InputFile", ...] = ()
    """The small files, whose rows follow one another; empty for one file."""

    @property
    def shown(self) -> str:
        """Name of the file in rejects: the label with the file's suffix."""
        # The copy of a remote file has no suffix; its URL has.
        _, suffix = split_name(self.origin.rpartition("/")[2] or self.path.name)
        return self.label if self.label.endswith(suffix) else self.label + suffix

    @property
    def lines(self) -> int:
        """Number of rows that are taken, including a last line without a newline."""
        return self.blocks[-1].first_line + self.blocks[-1].lines if self.blocks else 0

    def lines_of(self, block: Block) -> FileLines:
        """Which line of which file each row of one of its blocks is."""
        if not self.members:
            # The second block of a file, of which the first has 100 rows, begins at line 101: line 1 would be row -100.
            return FileLines(files=(self.label,), starts=(-block.first_line,))
        starts = []
        rows_before = 0
        for file in self.members:
            starts.append(rows_before)
            rows_before += file.blocks[0].lines  # a small file has one block
        return FileLines(files=tuple(file.label for file in self.members), starts=tuple(starts))

    def at(self, block: Block, row: int) -> tuple["InputFile", int]:
        """The file of a row of a block, counted from 0, and the number of its line in that file, from 1."""
        index, line = self.lines_of(block).find(row)
        files = self.members or (self,)
        return files[index], line


def changed_error(block: Block) -> InputError:
    """The error for a block of a file that has changed since the scan."""
    return InputError(
        f"{block.path} changed while it was read (bytes {block.start:,} to {block.end:,}); let whatever writes it "
        "finish, then run again"
    )
