"""What a scan finds: files, and the blocks that one task each can encode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import blake3

from ...schemas.errors import InputError

Lines = list[tuple[int, bytes]]
"""(number within the block, bytes of one line of JSON)."""
Records = list[tuple[int, Mapping[str, Any]]]
"""(number within the block, decoded row)."""


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of one block, in one of two forms."""

    lines: Lines | None = None
    records: Records | None = None
    rejects: list[tuple[int, str, str]] = field(default_factory=list)
    """(number within the block, reason, detail) of rows that cannot even be told apart into columns."""
    blank: int = 0
    """Rows of nothing, where the reader itself leaves them out."""


class Place(Protocol):
    """Where a block lies within its file, for everything but plain lines. Small, frozen, and travels in a task."""

    def rows(self, path: Path, block: "Block", columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """The rows of the block.

        Args:
            path: the file that holds the block.
            columns: the only ones that are needed; None for all.
            limit: rows that are enough, for a look at the data.

        Raises:
            InputError: the file is no longer what was scanned.
        """
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """A range of whole rows of one file."""

    start: int
    """First byte: of the file, of what was decompressed, or, in a table, of the sum of its rows' sizes."""
    end: int
    first_line: int
    """Rows of the file before this block."""
    lines: int
    hash: str
    """BLAKE3 of what the rows are made from: of the bytes alone, where they are lines."""
    too_long: bool = False
    """One line beyond `max_row_bytes`: counted and rejected, never read into memory."""
    place: Place | None = None
    """None for a byte range of lines."""
    spooled: Path | None = None
    """The file in the cache that holds this block alone, where the input cannot be read from any place."""
    take: int | None = None
    """Only the first so many rows: where `max_rows` falls into a block."""
    whole_hash: str = ""
    """The hash before that."""

    @property
    def content_hash(self) -> str:
        """The hash of all rows of the block, taken or not: what its bytes are held against."""
        return self.whole_hash or self.hash

    def first(self, rows: int) -> "Block":
        """The block with its first rows only. A function of the content, as the whole block is."""
        digest = blake3.blake3(f"the first {rows} rows of {self.hash}".encode()).hexdigest()
        return replace(self, lines=rows, hash=digest, take=rows, whole_hash=self.hash)


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a source, as it was when the run began."""

    source: str
    label: str
    """How ids and rejects call it: its name, with as many folders as tell it from its siblings."""
    path: Path
    size: int
    mtime_ns: int
    hash: str
    blocks: tuple[Block, ...]
    not_taken: int = 0
    """Rows beyond the source's `max_rows`."""
    origin: str = ""
    """The URL or the name of the dataset that it came from; empty for a file that lies where it was named."""
    far: tuple[int, int] | None = None
    """(size, stamp) of what a URL names, by which `inputs.remote` knows its copy; None where another machine cannot
    fetch it by `origin`."""

    @property
    def shown(self) -> str:
        """How rejects call it: the label with the file's suffix, as it stands on the disk."""
        _, suffix = split_name(self.origin.rpartition("/")[2] or self.path.name)
        return self.label if self.label.endswith(suffix) else self.label + suffix

    @property
    def lines(self) -> int:
        """Rows in all, the last line whether or not a newline ends it."""
        return self.blocks[-1].first_line + self.blocks[-1].lines if self.blocks else 0

    def where(self, block: Block) -> Path:
        """The file that holds a block."""
        return block.spooled or self.path


_COMPRESSED = (".gz", ".zst", ".zstd", ".gzip")


def split_name(name: str) -> tuple[str, str]:
    """A file's name without its suffix, and the suffix; `.jsonl.gz` is one suffix."""
    path = Path(name)
    if path.suffix in _COMPRESSED and Path(path.stem).suffix:
        stem = Path(path.stem).stem
        return stem, name[len(stem) :]
    return path.stem, path.suffix


def changed(path: Path, block: Block, spooled: bool) -> InputError:
    """A block whose bytes are not those of the scan."""
    where = f"bytes {block.start:,} to {block.end:,}"
    if spooled:
        return InputError(f"{path} is damaged ({where} of its input); delete it and run again, it will be made anew")
    return InputError(f"{path} changed while it was read ({where}); let whatever writes it finish, then run again")
