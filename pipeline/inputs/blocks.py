"""What a source consists of: inputs that were found, files that were scanned, and blocks, each encoded by one task. All
of it is plain data.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import ConfigError, InputError
from ...schemas.fingerprint import hash_bytes
from ...stages.prep import RejectedRow
from ..store.open_store import is_url
from .file_kinds import split_name

Lines = list[tuple[int, bytes]]
"""(number within the block, bytes of one line of JSON)."""
Records = list[tuple[int, Mapping[str, Any]]]
"""(number within the block, decoded row)."""


@dataclass(frozen=True, slots=True)
class FoundInput:
    """One input, not opened yet."""

    name: str
    """A path or a URL."""
    size: int
    """Bytes."""
    stamp: int
    """Changes with the input: its change time (ctime, in ns), or a hash of a server's metadata; 0 if unknown."""
    alias: str = ""
    """The path that its label is made from, if it is another one."""
    origin: str = ""
    """What the user knows a copy as: the URL, or the name of the dataset of the hub."""

    @property
    def place(self) -> str:
        """The path of a local file; of a URL, its host and path."""
        if not is_url(self.name):
            return self.name
        parts = urlsplit(self.name)
        return f"/{parts.hostname}{parts.path}"


def choose_split(splits: list[str], configured: str | None, where: str, dataset: str) -> str:
    """The split to use.

    Args:
        splits: those that there are.
        configured: the source's `split`.
        where: the key of the source's path, for messages.
        dataset: what has the splits, for messages.

    Raises:
        ConfigError: it does not exist, or there are several and none is given.
    """
    if configured is None and len(splits) == 1:
        return splits[0]
    if configured is None or configured not in splits:
        names = ", ".join(splits) or "(none)"
        problem = f"no split {configured!r}; it has {names}" if configured else f"the splits {names}; say which one"
        raise ConfigError(f"{where.removesuffix('path')}split: {dataset} has {problem}")
    return configured


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of one block, as lines or as records."""

    lines: Lines = field(default_factory=list)
    records: Records = field(default_factory=list)
    rejects: list[RejectedRow] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)
    """How many rows have each column of a table, of which only some are read."""


class Block(msgspec.Struct, frozen=True):
    """Whole neighbouring rows of one file, or of several small ones."""

    start: int
    """First byte: of the file, of the decompressed data, or for tables, of the summed sizes of rows."""
    end: int
    first_line: int
    """Rows of the file before this block."""
    lines: int
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
    """The first row group, and one past the last, taken or not."""
    take: int | None = None
    """Use only this many first rows, if `max_rows` ends within the block."""
    members: tuple["Block", ...] = ()
    """Those of the small files that share the block."""

    @property
    def hash(self) -> str:
        """BLAKE3 of what the block gives: of its content, unless equal bytes would be read in another way."""
        # A line of JSON and a row that `spool` wrote may be the same bytes, and not the same row.
        if self.take is None and self.kind != "rows":
            return self.content
        return hash_bytes(f"{self.kind}, first {self.take}: {self.content}".encode())

    def head(self, rows: int) -> "Block":
        """The block with only its first rows. Its hash depends only on the content."""
        return msgspec.structs.replace(self, lines=rows, take=rows)

    def __str__(self) -> str:
        if self.members:
            return f"{len(self.members):,} small files, from {self.path} to {self.members[-1].path}"
        rows = f"rows {self.first_line + 1:,} to {self.first_line + self.lines:,}"
        return f"{self.path} ({rows}, bytes {self.start:,} to {self.end:,})"

    def at(self, row: int) -> tuple[Path, int]:
        """The file, and the number of the row in it, from 1, of a row.

        Args:
            row: its number in the file, from 0; in small files that share the block, over all of them.
        """
        for block in self.members:
            if row < block.lines:
                return block.path, row + 1
            row -= block.lines
        return self.path, row + 1

    def describe_row(self, row: int) -> str:
        """The file and the number of a row, for messages; see `at`."""
        path, line = self.at(row)
        return f"{path}, row {line:,}"


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
        """(index of the file, number of the line in it, from 1) of a row of the block."""
        index = bisect_right(self.starts, row) - 1
        return index, row - self.starts[index] + 1

    def find_all(self, rows: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(N,) and (N,): as `find`, for (N,) rows."""
        starts = np.array(self.starts, dtype=np.int64)
        index = np.searchsorted(starts, rows, side="right") - 1
        return index.astype(np.int32), rows.astype(np.int64) - starts[index] + 1

    def row_of(self, file: str, line: int) -> int | None:
        """The row of the block, from 0, that is a line of a file, from 1; None if the block begins behind it, or has no
        such file. A row beyond the end of the block is none of it.
        """
        if file not in self.files:
            return None
        index = self.files.index(file)
        row = self.starts[index] + line - 1
        # Of small files, the next one begins where this one has no more lines.
        is_in_next_file = index + 1 < len(self.starts) and row >= self.starts[index + 1]
        return None if line <= 0 or row < 0 or is_in_next_file else row


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a source, as at the start of the run; or several small ones that share a block."""

    source: str
    label: str
    """Name of the file in ids and rejects, with as many folders as needed to make it unique."""
    path: Path
    size: int
    hash: str
    blocks: tuple[Block, ...]
    not_taken: int = 0
    """Rows beyond the source's `max_rows`."""
    origin: str = ""
    """The URL or dataset name that it was copied from; empty for local files."""
    members: tuple["InputFile", ...] = ()
    """The small files; their rows follow one another."""

    @property
    def shown(self) -> str:
        """Name of the file in rejects: the label with the file's suffix."""
        _, suffix = split_name(self.origin.rpartition("/")[2] or self.path.name)
        return self.label if self.label.endswith(suffix) else self.label + suffix

    @property
    def lines(self) -> int:
        """Number of rows, including a last line without a newline."""
        return self.blocks[-1].first_line + self.blocks[-1].lines if self.blocks else 0

    def lines_of(self, block: Block) -> FileLines:
        """Where the rows of a block are."""
        if not self.members:
            # The second block of a file, of which the first has 100 rows, begins at its line 101: its row -100 would be
            # line 1.
            return FileLines((self.label,), (-block.first_line,))
        starts = []
        rows_before = 0
        for file in self.members:
            starts.append(rows_before)
            rows_before += file.blocks[0].lines  # a small file has one block
        return FileLines(tuple(file.label for file in self.members), tuple(starts))

    def at(self, block: Block, line: int) -> tuple["InputFile", int]:
        """The file, and the number of the line in it, from 1, of a row of a block, counted from 0."""
        index, number = self.lines_of(block).find(line)
        return (self.members or (self,))[index], number


def changed_error(block: Block) -> InputError:
    """The error for a block of a file that has changed since the scan."""
    return InputError(
        f"{block.path} changed while it was read (bytes {block.start:,} to {block.end:,}); let whatever writes it "
        "finish, then run again"
    )
