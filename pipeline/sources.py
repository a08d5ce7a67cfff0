"""Input files, cut into blocks that one task each can encode.

A JSONL file is cut at newlines into blocks of about `BLOCK_BYTES`. Where a block begins depends only on the bytes
before it, so data appended to a file leaves all blocks but the last as they were.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING

import blake3

from ..schemas.errors import ConfigError, InputError

if TYPE_CHECKING:  # workers read blocks, and need no pydantic for it
    from ..schemas.config import SourceConfig

BLOCK_BYTES = 4 << 20
ROW_TOO_LONG = "row_too_long"
"""The word that the ledger counts such rows by."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Block:
    """A range of whole lines of one file."""

    start: int
    """First byte."""
    end: int
    first_line: int
    """Lines of the file before this block."""
    lines: int
    hash: str
    """BLAKE3 of the bytes."""
    too_long: bool = False
    """One line beyond `max_row_bytes`: counted and rejected, never read into memory."""


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

    @property
    def shown(self) -> str:
        """How rejects call it: the label with the file's suffix, as it stands on the disk."""
        return self.label if self.label.endswith(self.path.suffix) else self.label + self.path.suffix

    @property
    def lines(self) -> int:
        """Lines in all, the last one whether or not a newline ends it."""
        return self.blocks[-1].first_line + self.blocks[-1].lines if self.blocks else 0


def resolve_paths(source: "SourceConfig", base: Path) -> list[Path]:
    """The files of a source, in the order given.

    Raises:
        ConfigError: a file is missing, is a folder, or stands there twice.
    """
    paths: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for text in source.path:
        path = Path(text) if Path(text).is_absolute() else base / text
        where = f"sources.{source.name}.path"
        try:
            str(path).encode()
            stat = path.stat()
        except UnicodeEncodeError:
            raise ConfigError(
                f"{where}: the name of {str(path)!r} is not UTF-8, and ids are made of it; rename it"
            ) from None
        except (FileNotFoundError, NotADirectoryError, ValueError):
            wildcards = set("*?[") & set(text)
            mend = (
                "list the files: wildcards are not expanded"
                if wildcards
                else "check the spelling, or the folder you are in"
            )
            raise ConfigError(f"{where}: there is no file {path}; {mend}") from None
        except OSError as error:
            raise ConfigError(f"{where}: {path} cannot be read: {error.strerror}") from None
        if S_ISDIR(stat.st_mode):
            raise ConfigError(f"{where}: {path} is a folder; name the JSONL files in it")
        if (stat.st_dev, stat.st_ino) in seen:
            raise ConfigError(f"{where}: {path} is listed twice, by this or another name; its rows would count twice")
        seen.add((stat.st_dev, stat.st_ino))
        paths.append(path)
    return paths


def labels(paths: list[Path]) -> list[str]:
    """The shortest tails of the paths that tell them apart; without the suffixes, where those do not matter."""
    stems = [[*path.parent.parts, path.stem] for path in paths]
    parts = stems if len(set(map(tuple, stems))) == len(stems) else [list(path.parts) for path in paths]
    depth = 1
    while len({tuple(p[-depth:]) for p in parts}) < len(parts):
        depth += 1
    return ["/".join(p[-depth:]) for p in parts]


def scan_source(source: "SourceConfig", base: Path) -> list[InputFile]:
    """All files of a source, hashed and cut.

    Raises:
        ConfigError: see `resolve_paths`.
        InputError: a file is empty or cannot be read.
    """
    paths = resolve_paths(source, base)
    return [
        scan_file(source.name, label, path, source.max_row_bytes)
        for path, label in zip(paths, labels(paths), strict=True)
    ]


def scan_file(source: str, label: str, path: Path, max_row_bytes: int) -> InputFile:
    """Hash a file and cut it into blocks, in one pass and bounded memory."""
    try:
        stat = path.stat()
        with path.open("rb", buffering=0) as file:
            _refuse_other_formats(path, os.pread(file.fileno(), 8, 0))
            whole = blake3.blake3()
            blocks = tuple(_cut(file.fileno(), max_row_bytes, whole))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if not blocks:
        raise InputError(f"{path} is empty; remove it from sources.{source}.path, or fill it")
    return InputFile(source, label, path, blocks[-1].end, stat.st_mtime_ns, whole.hexdigest(), blocks)


_OTHER_FORMATS = {
    b"\x1f\x8b": "compressed by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"\xfd7zXZ": "compressed by xz",
    b"BZh": "compressed by bzip2",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
"""What a file cannot begin with if any of its lines is to be JSON in UTF-8."""


def _refuse_other_formats(path: Path, head: bytes) -> None:
    for magic, what in _OTHER_FORMATS.items():
        if head.startswith(magic):
            raise InputError(f"{path} is {what}; give JSONL in UTF-8, one object a line")
    if head.lstrip().startswith(b"["):
        raise InputError(f"{path} is one JSON array; give JSONL, one object a line (`jq -c '.[]'` turns one into it)")


def read_block(path: Path, block: Block) -> bytes:
    """The bytes of a block.

    Raises:
        InputError: the file is no longer what was scanned.
    """
    try:
        with path.open("rb", buffering=0) as file:
            data = _read(file.fileno(), block.start, block.end - block.start)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if blake3.blake3(data).hexdigest() != block.hash:
        raise InputError(
            f"{path} changed while it was read (bytes {block.start:,} to {block.end:,}); "
            "let whatever writes it finish, then run again"
        )
    return data


def read_lines(path: Path, block: Block, max_row_bytes: int) -> tuple[list[tuple[int, bytes]], list[tuple[int, str]]]:
    """The lines of a block as (line in the block, bytes), and (line, why) for those that are too long.

    Raises:
        InputError: the file is no longer what was scanned.
    """
    if block.too_long:
        return [], [(0, _too_long(block.end - block.start, max_row_bytes))]  # give or take its line end
    lines = read_block(path, block).split(b"\n")
    if not lines[-1]:
        lines.pop()
    long = [(i, _too_long(len(line), max_row_bytes)) for i, line in enumerate(lines) if len(line) > max_row_bytes]
    return [(i, line) for i, line in enumerate(lines) if len(line) <= max_row_bytes], long


def _too_long(size: int, limit: int) -> str:
    return f"the line has {size:,} bytes, more than max_row_bytes ({limit:,}); raise it if the row is meant to be used"


def _cut(descriptor: int, max_row_bytes: int, whole: "blake3.blake3") -> Iterator[Block]:
    head = os.pread(descriptor, 3, 0)
    position = len(_BOM) if head == _BOM else 0
    whole.update(head[:position])
    line = 0
    while data := _read(descriptor, position, BLOCK_BYTES):
        ended = len(data) < BLOCK_BYTES
        cut = len(data) if ended else data.rfind(b"\n") + 1
        if cut:
            view = memoryview(data)[:cut]
            whole.update(view)
            count = data.count(b"\n", 0, cut)
            lines = count if data[cut - 1] == 0x0A else count + 1
            digest = blake3.blake3(view).hexdigest()
            yield Block(position, position + cut, line, lines, digest)
            line += count
            position += cut
            continue
        # One line longer than a block: find its end without keeping it.
        digest_long = blake3.blake3()
        end, newline = position, -1
        while newline < 0 and (piece := _read(descriptor, end, BLOCK_BYTES)):
            newline = piece.find(b"\n")
            piece = piece if newline < 0 else piece[: newline + 1]
            digest_long.update(piece)
            whole.update(piece)
            end += len(piece)
        size = end - position - (newline >= 0)
        yield Block(position, end, line, 1, digest_long.hexdigest(), too_long=size > max_row_bytes)
        line += 1
        position = end


def _read(descriptor: int, position: int, size: int) -> bytes:
    """Up to `size` bytes; short only at the end of the file."""
    data = os.pread(descriptor, size, position)
    while 0 < len(data) < size and (more := os.pread(descriptor, size - len(data), position + len(data))):
        data += more
    return data
