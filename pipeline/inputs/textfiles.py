"""Text files: one document a file, which is one row with the column `text`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import blake3

from .blocks import Block, BlockRows, changed
from .lines import BOM, cut, read_range


class Whole:
    """No row ends before the file does."""

    def last_end(self, data: bytes) -> int:
        """See `Splitter`."""
        return 0

    def count(self, data: bytes, end: int) -> int:
        """See `Splitter`."""
        return 0

    def first_end(self, piece: bytes, inside: bool) -> tuple[int, bool]:
        """See `Splitter`."""
        return 0, False

    def finish(self, row: bytes, inside: bool, line: int) -> None:
        """See `Splitter`. Any bytes may be a document."""


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A whole file."""

    def hash(self, data: str) -> str:
        """The hash of a block whose bytes have the hash `data`: not that of lines with the same bytes."""
        return blake3.blake3(f"one document: {data}".encode()).hexdigest()

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `Place`."""
        data = read_range(path, block.start, block.end)
        if self.hash(blake3.blake3(data).hexdigest()) != block.content_hash:
            raise changed(path, block, False)
        return self.parse(path, block, data, limit)

    def parse(self, path: Path, block: Block, data: bytes, limit: int | None) -> BlockRows:
        """The row of a block's bytes."""
        # Half characters become lone surrogates, which preparing the row rejects by their name.
        return BlockRows(records=[(0, {"text": data.decode("utf-8", "surrogateescape")})])


def scan_text(path: Path, size: int, max_row_bytes: int) -> list[Block]:
    """The block of a plain text file; none if it is empty."""
    place = TextPlace()
    with path.open("rb", buffering=0) as file:
        start = len(BOM) if file.read(len(BOM)) == BOM else 0
        file.seek(start)
        return [
            Block(one.start, one.end, one.first_line, one.lines, place.hash(one.hash), one.too_long, place=place)
            for one in cut(file.read, size, max_row_bytes, Whole(), start=start)
        ]
