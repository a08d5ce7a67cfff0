"""What kind of file an input is: told by its first bytes, and by its name where bytes cannot tell."""

import re
from enum import StrEnum
from pathlib import Path

from ...schemas.errors import InputError
from .blocks import split_name


class Container(StrEnum):
    """How rows lie in a file."""

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
        """What stands between the fields of separated values."""
        return "\t" if self is Container.TSV else ","


class Packing(StrEnum):
    """How a file is compressed, by Arrow's name of it."""

    GZIP = "gzip"
    ZSTD = "zstd"


SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather", ".ipc", ".arrows")
"""Names of data files, for folders; with .gz or .zst behind those of text."""

_PACKED = {b"\x1f\x8b": Packing.GZIP, b"\x28\xb5\x2f\xfd": Packing.ZSTD, b"\x50\x2a\x4d\x18": Packing.ZSTD}
_PACKED_SUFFIX = {".gz": Packing.GZIP, ".gzip": Packing.GZIP, ".zst": Packing.ZSTD, ".zstd": Packing.ZSTD}
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
    b"\xff\xfe\0\0": "UTF-32 text (`iconv -f UTF-32 -t UTF-8` makes UTF-8 of it)",
    b"\xff\xfe": "UTF-16 text (`iconv -f UTF-16 -t UTF-8` makes UTF-8 of it)",
    b"\xfe\xff": "UTF-16 text (`iconv -f UTF-16 -t UTF-8` makes UTF-8 of it)",
    b"SQLite format 3": "an SQLite database",
    b"\x89HDF": "an HDF5 file",
}
"""What a file cannot begin with if any of its lines is to be JSON in UTF-8."""
HEAD = 512
"""First bytes by which a file is told."""
_STARTS = {
    b"version https://git-lfs": ("a pointer of Git LFS, not the file itself", "`git lfs pull` fetches it"),
    b"%PDF": ("a PDF document", "take the text out of it"),
    b"\x7fELF": ("a program", "check the path"),
    b"\x89PNG": ("a picture", "check the path"),
    b"\xff\xd8\xff": ("a picture", "check the path"),
    b"\x93NUMPY": ("an array of NumPy", "write its rows in a form that is read"),
    b"\x80\x04\x95": ("a pickle of Python", "write its rows in a form that is read"),
    b"\x80\x05\x95": ("a pickle of Python", "write its rows in a form that is read"),
}
_MARKUP = re.compile(rb"\s*<(!doctype|html|\?xml|head|body)", re.IGNORECASE)
_OBJECT = re.compile(rb'\s*\{\s*"')
TAKEN = "JSONL in UTF-8 (one object a line, plain or as .gz or .zst), a JSON array, CSV, Parquet, Arrow or .txt"


def is_data(name: str) -> bool:
    """Whether a file in a folder looks like data, by its name."""
    return _bare(name).endswith(SUFFIXES)


def is_text(name: str) -> bool:
    """Whether a file is a text, by its name. In a folder, such files are data only where no others are."""
    return _bare(name).endswith(".txt")


def _bare(name: str) -> str:
    lower = name.lower()
    for suffix in _PACKED_SUFFIX:
        lower = lower.removesuffix(suffix)
    return lower


def detect(path: Path, shown: str, head: bytes) -> tuple[Container, Packing | None]:
    """The kind of a file, and how it is compressed.

    Args:
        path: whose name counts.
        shown: what messages call it.
        head: its first bytes, `HEAD` of them where it has so many.

    Raises:
        InputError: it is none that can be read, or not what its name says.
    """
    _, suffixes = split_name(path.name.lower())
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
        # Of JSONL, a line that is none is rejected, and the others are used.
        if (found := mistaken(head)) and not (container is Container.TEXT and _MARKUP.match(head)):
            raise InputError("{} {}: {}".format(shown, *found))
        if _OBJECT.match(head) and outer not in _PACKED_SUFFIX:
            raise InputError(f"{shown} is called {outer}, but begins with a JSON object; rename it if it is JSONL")
    if head and outer in _BINARY_SUFFIX:
        raise InputError(
            f"{shown} is called {outer}, but does not begin as a file of that kind: it is damaged, or no "
            "such file; make or copy it again, or rename it after what it is"
        )
    if head and outer in _PACKED_SUFFIX:
        raise InputError(
            f"{shown} is called {outer}, but is not compressed by {_PACKED_SUFFIX[outer].value}: it is damaged, or was "
            f"decompressed already; copy it again, or rename it without {outer}"
        )
    return container, None


def settled(container: Container, head: bytes) -> Container:
    """What a file of text is, once its first bytes are known, decompressed where that is needed."""
    if container is Container.JSONL and _is_array(head[:HEAD].removeprefix(b"\xef\xbb\xbf")):
        return Container.JSON_ARRAY
    if container is Container.TEXT and _OBJECT.match(head):
        return Container.JSONL
    return container


def _text(suffix: str) -> Container:
    known = {".csv": Container.CSV, ".tsv": Container.TSV, ".txt": Container.TEXT}
    return known.get(suffix, Container.JSONL)


def mistaken(head: bytes) -> tuple[str, str] | None:
    """What a file is instead of data, and what to do: (`is a picture`, `check the path`)."""
    for magic, (what, todo) in _STARTS.items():
        if head.startswith(magic):
            return f"is {what}", todo
    if head and not head.strip(b"\0"):
        return "is nothing but zero bytes", "it was never written to its end, by a crash or a full disk; make it again"
    if _MARKUP.match(head):
        return "is a page of HTML or XML", "often an error that was saved in place of the data; get it again"
    return None


def _is_array(head: bytes) -> bool:
    """Whether it is one array, and not one in each line."""
    lines = head.lstrip().split(b"\n")
    if lines[0].strip() == b"[":
        return True
    return lines[0].startswith(b"[") and not (len(lines) > 1 and lines[1].startswith(b"["))


def _refuse_tar(shown: str, head: bytes) -> None:
    if head[257:262] == b"ustar":
        raise InputError(f"{shown} is a tar archive; unpack it and give the files in it")


def refuse_inner(shown: str, head: bytes) -> None:
    """Refuse a compressed file that holds no lines.

    Raises:
        InputError: says what it holds.
    """
    others = {**_OTHERS, **{magic: f"a {kind}" for magic, kind in _BINARY.items()}, **dict.fromkeys(_PACKED, "packed")}
    for magic, what in others.items():
        if head.startswith(magic):
            what = "compressed twice" if what == "packed" else f"compressed, and what it holds is {what}"
            raise InputError(f"{shown} is {what}; decompress it and give what is in it")
    _refuse_tar(shown, head)
