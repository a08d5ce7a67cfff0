"""Small files that are encoded together, so that not each of them costs a task, an encoded part and a record.

Neighbours of a source are joined. Where a group ends depends on the content of its last file: each file ends a group
with a probability that grows with its size (content-defined chunking; Muthitacharoen, Chen and Mazières, LBFS, 2001).
So a file that is added, changed or removed changes its own group, and at most the neighbours up to the next such end.
"""

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import blake3

from .blocks import Block, BlockRows, FileLines, InputFile, Lines, Records
from .scan import BLOCK_BYTES, read_rows

SMALL_BYTES = 256 << 10
"""Files of at most this many bytes are joined."""
MEAN_BYTES = 1 << 20
"""Average bytes of a group; a group has at most BLOCK_BYTES."""
FILE_BYTES = 4 << 10
"""Counted for each file besides its rows, so that a group never has more than a thousand files."""
_KINDS = ("NoneType", "ArrowPlace", "ParquetPlace", "SeparatedPlace", "TextPlace")
"""Readers of blocks that lie in the files themselves. By name, because workers need not import all of them."""


@dataclass(frozen=True, slots=True)
class JoinedPlace:
    """Reads the rows of several small files, one after another."""

    members: tuple[tuple[Path, Block], ...]

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        lines, records, rejects, blank, before = Lines(), Records(), list[tuple[int, str, str]](), 0, 0
        for place, mine in self.members:
            left = None if limit is None else limit - len(lines) - len(records)
            if left is not None and left <= 0:
                break
            found = read_rows(place, mine, sys.maxsize, columns, left)
            lines += [(before + number, line) for number, line in found.lines or ()]
            records += [(before + number, row) for number, row in found.records or ()]
            rejects += [(before + number, reason, detail) for number, reason, detail in found.rejects]
            blank += found.blank
            before += mine.lines
        of_lines = self.members[0][1].place is None
        return BlockRows(lines if of_lines else None, None if of_lines else records, rejects, blank)

    def at(self, row: int) -> tuple[Path, int]:
        """The file, and the number of the row in it, from 1, of a row of the block, counted from 0."""
        for path, block in self.members:
            if row < block.lines:
                return path, row + 1
            row -= block.lines
        raise IndexError(row)

    def __str__(self) -> str:
        first, last = self.members[0][0], self.members[-1][0]
        return f"{len(self.members):,} small files, from {first} to {last}"


@dataclass(frozen=True, slots=True)
class JoinedFile(InputFile):
    """Small files with one block in common. Its rows are those of the files, one after another."""

    members: tuple[InputFile, ...] = field(default=(), kw_only=True)

    def lines_of(self, block: Block) -> FileLines:
        """See `InputFile`."""
        begins, before = [], 0
        for file in self.members:
            begins.append(before)
            before += file.blocks[0].lines
        return FileLines(tuple(file.label for file in self.members), tuple(begins))

    def at(self, block: Block, line: int) -> tuple[InputFile, int]:
        """See `InputFile`."""
        index, number = self.lines_of(block).find(line)
        return self.members[index], number


def join_small(files: Sequence[InputFile], readers: Collection[str] = ()) -> list[InputFile]:
    """The files, with groups of small neighbours joined; see `JoinedFile`. Depends only on what the files contain.

    Args:
        readers: sources that a user's function reads. Their files are not joined, because a function that ends its
            process must not take other files with it.
    """
    return [group[0] if len(group) == 1 else _joined(group) for group in _groups(files, readers)]


def _groups(files: Sequence[InputFile], readers: Collection[str]) -> Iterator[list[InputFile]]:
    group: list[InputFile] = []
    size = 0
    for file in files:
        weight = 0 if file.source in readers else _weight(file)
        if group and (not weight or size + weight > BLOCK_BYTES or _kind(file) != _kind(group[0])):
            yield group
            group, size = [], 0
        group.append(file)
        size += weight
        # The hash is a number from 0 to 1 that only the file's content decides.
        if not weight or int(file.blocks[0].hash[:16], 16) * MEAN_BYTES < weight << 64:
            yield group
            group, size = [], 0
    if group:
        yield group


def _weight(file: InputFile) -> int:
    """Bytes to count for a file; 0 if it is encoded on its own."""
    if len(file.blocks) != 1 or file.far is not None:
        return 0
    (block,) = file.blocks
    alone = block.too_long or block.take is not None or block.spooled is not None or _kind(file)[1] not in _KINDS
    size = block.end - block.start
    return 0 if alone or size > SMALL_BYTES else size + FILE_BYTES


def _kind(file: InputFile) -> tuple[str, str]:
    return file.source, type(file.blocks[0].place).__name__


def _joined(files: list[InputFile]) -> JoinedFile:
    blocks = [file.blocks[0] for file in files]
    content = "".join(f"{block.hash} {block.lines}\n" for block in blocks)
    block = Block(
        start=0,
        end=sum(block.end - block.start for block in blocks),
        first_line=0,
        lines=sum(block.lines for block in blocks),
        hash=blake3.blake3(f"joined files:\n{content}".encode()).hexdigest(),
        place=JoinedPlace(tuple((file.path, block) for file, block in zip(files, blocks, strict=True))),
    )
    first = files[0]
    size = sum(file.size for file in files)
    return JoinedFile(first.source, first.label, first.path, size, 0, block.hash, (block,), members=tuple(files))
