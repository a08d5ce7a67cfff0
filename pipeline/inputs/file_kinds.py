"""Detects the kind of an input file by its first bytes, and by its name if these do not suffice; and describes what is
not JSON lines, for error messages.
"""

import re
from enum import StrEnum
from pathlib import Path

import msgspec

from ...schemas.errors import InputError, RowRejectedError
from ...stages.prep.rowjson import require_shallow
from .blocks import split_name


class Container(StrEnum):
    """The file format."""

    JSONL = "JSONL"
    JSON_ARRAY = "JSON array"
    TEXT = "text"
    CSV = "CSV"
    TSV = "TSV"
    PARQUET = "Parquet"
    ARROW_FILE = "Arrow file"
    ARROW_STREAM = "Arrow stream"

    @property
    def separator(self) -> str:
        """The separator between fields."""
        return "\t" if self is Container.TSV else ","


class Compression(StrEnum):
    """Compression of a file, by Arrow's names."""

    GZIP = "gzip"
    ZSTD = "zstd"


SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather", ".ipc", ".arrows")
"""Suffixes of data files in folders; text formats may also end in .gz or .zst."""

_PACKED = {b"\x1f\x8b": Compression.GZIP, b"\x28\xb5\x2f\xfd": Compression.ZSTD, b"\x50\x2a\x4d\x18": Compression.ZSTD}
_PACKED_SUFFIX = {
    ".gz": Compression.GZIP,
    ".gzip": Compression.GZIP,
    ".zst": Compression.ZSTD,
    ".zstd": Compression.ZSTD,
}
_BINARY = {
    b"PAR1": Container.PARQUET,
    b"ARROW1": Container.ARROW_FILE,
    b"\xff\xff\xff\xff": Container.ARROW_STREAM,
}
_BINARY_SUFFIX = {
    ".parquet": Container.PARQUET,
    ".arrow": Container.ARROW_FILE,
    ".feather": Container.ARROW_FILE,
    ".ipc": Container.ARROW_FILE,
    ".arrows": Container.ARROW_STREAM,
}
_OTHERS = {
    b"\xfd7zXZ": "compressed by xz",
    b"BZh": "compressed by bzip2",
    b"PK\x03\x04": "a zip archive",
    b"PARE": "an encrypted Parquet file",
    b"FEA1": "a Feather file of version 1",
    b"\xff\xfe\0\0": "UTF-32 text (`iconv -f UTF-32 -t UTF-8` converts it to UTF-8)",
    b"\xff\xfe": "UTF-16 text (`iconv -f UTF-16 -t UTF-8` converts it to UTF-8)",
    b"\xfe\xff": "UTF-16 text (`iconv -f UTF-16 -t UTF-8` converts it to UTF-8)",
    b"SQLite format 3": "an SQLite database",
    b"\x89HDF": "an HDF5 file",
    b"%PDF": "a PDF document",
    b"\x7fELF": "a program",
    b"\x89PNG": "a picture",
    b"\x93NUMPY": "an array of NumPy",
    b"\x80\x04\x95": "a pickle of Python",
}
"""Beginnings that a file of JSON lines in UTF-8 cannot have."""
HEAD = 512
"""How many first bytes to look at."""
_LFS = b"version https://git-lfs"
_MARKUP = re.compile(rb"\s*<(!doctype|html|\?xml|head|body)", re.IGNORECASE)
_OBJECT = re.compile(rb'\s*\{\s*"')
TAKEN = "JSONL in UTF-8 (one object a line, plain or as .gz or .zst), a JSON array, CSV, Parquet, Arrow, or .txt"


def is_data(name: str) -> bool:
    """Whether a file's name looks like a data file."""
    return _bare(name).endswith(SUFFIXES)


def is_text(name: str) -> bool:
    """Whether a file's name looks like plain text. In a folder, such files are data only if there are no others."""
    return _bare(name).endswith(".txt")


def is_mds(name: str) -> bool:
    """Whether a file's name is that of a shard of MosaicML's MDS, compressed or not."""
    return _bare(name).endswith(".mds")


def _bare(name: str) -> str:
    lower = name.lower()
    for suffix in _PACKED_SUFFIX:
        lower = lower.removesuffix(suffix)
    return lower


def detect(path: Path, shown: str, head: bytes) -> tuple[Container, Compression | None]:
    """The kind of a file, and how it is compressed.

    Args:
        path: its name is used.
        shown: its name in messages.
        head: its first bytes, up to `HEAD`.

    Raises:
        InputError: it is of an unsupported kind, or not what its name says.
    """
    _, suffixes = split_name(path.name.lower())
    if is_mds(path.name):  # begins with a number, which may be any magic
        raise InputError(f"{shown} is an MDS shard (docs/export.md shows how to convert it); give {TAKEN}")
    inner, outer = Path("x" + suffixes).stem, Path("x" + suffixes).suffix
    for magic, packing in _PACKED.items():
        if head.startswith(magic):
            text = Path(inner).suffix if outer in _PACKED_SUFFIX else outer
            return _text(text), packing
    for magic, container in _BINARY.items():
        if head.startswith(magic):
            return container, None
    for magic, what in _OTHERS.items():
        if head.startswith(magic):
            raise InputError(f"{shown} is {what}; give {TAKEN}")
    _refuse_tar(shown, head)
    container = settled(_text(outer), head)
    if outer in _BINARY_SUFFIX or outer in _PACKED_SUFFIX or container not in (Container.JSONL, Container.JSON_ARRAY):
        # In JSONL, invalid lines are rejected, and the others are used.
        if (found := mistaken(head)) and not (container is Container.TEXT and _MARKUP.match(head)):
            raise InputError("{} {}: {}".format(shown, *found))
        if _OBJECT.match(head) and outer not in _PACKED_SUFFIX:
            raise InputError(f"{shown} is called {outer}, but begins with a JSON object; rename it if it is JSONL")
    if head and outer in _BINARY_SUFFIX:
        raise InputError(
            f"{shown} is called {outer}, but its first bytes are not those of such a file: it is damaged, or "
            "of another kind; make or copy it again, or give it the right suffix"
        )
    if head and outer in _PACKED_SUFFIX:
        raise InputError(
            f"{shown} is called {outer}, but is not compressed by {_PACKED_SUFFIX[outer].value}: it is damaged, or was "
            f"decompressed already; copy it again, or rename it without {outer}"
        )
    return container, None


def settled(container: Container, head: bytes) -> Container:
    """The kind of a text file by its first (decompressed) bytes."""
    if container is Container.JSONL and _is_array(head[:HEAD].removeprefix(b"\xef\xbb\xbf")):
        return Container.JSON_ARRAY
    if container is Container.TEXT and _OBJECT.match(head):
        return Container.JSONL
    return container


def _text(suffix: str) -> Container:
    known = {".csv": Container.CSV, ".tsv": Container.TSV, ".txt": Container.TEXT}
    return known.get(suffix, Container.JSONL)


def mistaken(head: bytes) -> tuple[str, str] | None:
    """What a file is if it is not data, and what to do."""
    if head.startswith(_LFS):
        return "is a pointer of Git LFS, not the file itself", "`git lfs pull` fetches it"
    if head and not head.strip(b"\0"):
        return "has only zero bytes", "a crash or a full disk kept it from being written; make it again"
    if _MARKUP.match(head):
        return "is a page of HTML or XML", "often an error page saved instead of the data; download it again"
    return None


def _is_array(head: bytes) -> bool:
    """Whether it is one array, not one per line."""
    lines = head.lstrip().split(b"\n")
    if lines[0].strip() == b"[":
        return True
    return lines[0].startswith(b"[") and not (len(lines) > 1 and lines[1].startswith(b"["))


def _refuse_tar(shown: str, head: bytes) -> None:
    if head[257:262] == b"ustar":
        raise InputError(f"{shown} is a tar archive; unpack it and give the files in it")


def refuse_inner(shown: str, head: bytes) -> None:
    """Refuse a compressed file that does not contain lines.

    Raises:
        InputError: says what it contains.
    """
    others = {**_OTHERS, **{magic: f"a {kind}" for magic, kind in _BINARY.items()}, **dict.fromkeys(_PACKED, "packed")}
    for magic, what in others.items():
        if head.startswith(magic):
            what = "compressed twice" if what == "packed" else f"compressed, and contains {what}"
            raise InputError(f"{shown} is {what}; decompress it and give its content")
    _refuse_tar(shown, head)


# What a file without JSON lines contains

_SHOWN = 60
"""Maximum number of characters of a line to show."""


def misfit(line: bytes) -> str:
    """Describe a line that is not a JSON object, and what to do about its file."""
    seen = f"`{_shown(line)}`"
    try:
        require_shallow(msgspec.json.decode(line.strip()), "it")
        why = "it is another value"
    except RowRejectedError as error:
        return f"{seen} cannot be used: {error.detail}; flatten the row"
    except (ValueError, RecursionError) as error:
        why = str(error)
    if found := mistaken(line):
        return "{} is not a JSON object; the file {}: {}".format(seen, *found)
    todo = 'call the file .csv, .tsv or .txt if it is one; in JSONL each line is an object, such as {"text": "x"}'
    if line.lstrip().startswith((b"{", b"[")):
        todo = "`jq -c .` puts each object on a line of its own, if some go over several or share one"
    return f"{seen} is not a JSON object ({why}): {todo}"


def _shown(line: bytes) -> str:
    """The beginning of a line, for a message."""
    text = line[: 4 * _SHOWN].decode("utf-8", "backslashreplace").strip()
    text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
