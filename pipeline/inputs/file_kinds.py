"""Detects the kind of an input file by its first bytes, and by its name if these do not suffice; and describes what is
not JSON lines, for error messages.
"""

import re
from enum import StrEnum
from pathlib import Path

import msgspec

from ...schemas.errors import InputError, RowRejectedError
from ...stages.prep.rowjson import require_shallow


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


HEAD = 512
"""How many first bytes to look at."""
TAKEN = "JSONL in UTF-8 (one object a line, plain or as .gz or .zst), a JSON array, CSV, Parquet, Arrow, or .txt"
_NAMED = {
    ".jsonl": Container.JSONL,
    ".ndjson": Container.JSONL,
    ".json": Container.JSONL,
    ".csv": Container.CSV,
    ".tsv": Container.TSV,
    ".txt": Container.TEXT,
    ".parquet": Container.PARQUET,
    ".arrow": Container.ARROW_FILE,
    ".feather": Container.ARROW_FILE,
    ".ipc": Container.ARROW_FILE,
    ".arrows": Container.ARROW_STREAM,
}
"""Suffixes of data files; those of text may be followed by one of `_PACKED`."""
_PACKED = {".gz": Compression.GZIP, ".gzip": Compression.GZIP, ".zst": Compression.ZSTD, ".zstd": Compression.ZSTD}
_BEGIN: dict[bytes, Container | Compression | str] = {
    b"\x1f\x8b": Compression.GZIP,
    b"\x28\xb5\x2f\xfd": Compression.ZSTD,
    b"\x50\x2a\x4d\x18": Compression.ZSTD,
    b"PAR1": Container.PARQUET,
    b"ARROW1": Container.ARROW_FILE,
    b"\xff\xff\xff\xff": Container.ARROW_STREAM,
    b"\xfd7zXZ": "compressed by xz",
    b"BZh": "compressed by bzip2",
    b"PK\x03\x04": "a zip archive",
    b"FEA1": "a Feather file of version 1",
    b"\xff\xfe": "UTF-16 text (`iconv -f UTF-16 -t UTF-8` converts it to UTF-8)",
    b"\xfe\xff": "UTF-16 text (`iconv -f UTF-16 -t UTF-8` converts it to UTF-8)",
    b"\x7fELF": "a program",
}
"""What files begin with, and what they are then: what is read, or other things in words."""
_TEXTS = (Container.JSONL, Container.CSV, Container.TSV, Container.TEXT)
_MARKUP = re.compile(rb"\s*<(!doctype|html|\?xml|head|body)", re.IGNORECASE)
_OBJECT = re.compile(rb'\s*\{\s*"')
_SHOWN = 60
"""Maximum number of characters of a line to show."""


def is_data(name: str) -> bool:
    """Whether a file's name looks like a data file other than plain text."""
    return Path(_bare(name)).suffix in _NAMED and not is_text(name)


def is_text(name: str) -> bool:
    """Whether a file's name looks like plain text. In a folder, such files are data only if there are no others."""
    return _bare(name).endswith(".txt")


def _bare(name: str) -> str:
    """A file's name in lower case, without the suffix of a compression."""
    lower = name.lower()
    return next((lower.removesuffix(suffix) for suffix in _PACKED if lower.endswith(suffix)), lower)


def detect(path: Path, shown: str, head: bytes) -> tuple[Container, Compression | None]:
    """The kind of a file, and how it is compressed.

    Args:
        path: its name is used.
        shown: its name in messages.
        head: its first bytes, up to `HEAD`.

    Raises:
        InputError: it is of an unsupported kind, or not what its name says.
    """
    outer = path.suffix.lower()
    named = _NAMED.get(Path(_bare(path.name)).suffix, Container.JSONL)
    kind, begin = named if named in _TEXTS else Container.JSONL, _begin(head)
    if isinstance(begin, Compression):
        return kind, begin
    if isinstance(begin, Container):
        return begin, None
    if begin is not None:
        raise InputError(f"{shown} is {begin}; give {TAKEN}")
    kind = settled(kind, head)
    packing = _PACKED.get(outer)
    separated = kind in (Container.CSV, Container.TSV)
    if head and (packing is not None or named not in _TEXTS or (separated and _OBJECT.match(head))):
        what = "but its first bytes are not those of such a file: it is damaged, or of another kind"
        if found := mistaken(head):
            what = "but it {}: {}".format(*found)
        elif packing is not None:
            what = f"but is not compressed by {packing.value}: it is damaged, or was decompressed already"
        elif _OBJECT.match(head):
            what = "but begins with a JSON object"
        raise InputError(f"{shown} is called {outer}, {what}; copy it again, or give it the right suffix")
    # In JSONL, invalid lines are rejected, and the others are used.
    text = kind is Container.TEXT and not _MARKUP.match(head)
    if (separated or text) and (found := mistaken(head)):
        raise InputError("{} {}: {}".format(shown, *found))
    return kind, None


def _begin(head: bytes) -> Container | Compression | str | None:
    """What a file is by its beginning."""
    if head[257:262] == b"ustar":
        return "a tar archive"
    return next((what for magic, what in _BEGIN.items() if head.startswith(magic)), None)


def settled(container: Container, head: bytes) -> Container:
    """The kind of a text file by its first (decompressed) bytes."""
    if container is Container.JSONL and _is_array(head[:HEAD].removeprefix(b"\xef\xbb\xbf")):
        return Container.JSON_ARRAY
    if container is Container.TEXT and _OBJECT.match(head):
        return Container.JSONL
    return container


def _is_array(head: bytes) -> bool:
    """Whether it is one array, not one per line."""
    lines = head.lstrip().split(b"\n")
    if lines[0].strip() == b"[":
        return True
    return lines[0].startswith(b"[") and not (len(lines) > 1 and lines[1].startswith(b"["))


def refuse_inner(shown: str, head: bytes) -> None:
    """Refuse a compressed file that does not contain lines.

    Raises:
        InputError: says what it contains.
    """
    if (what := _begin(head)) is not None:
        raise InputError(f"{shown} is compressed, and its content is {what}; decompress it and give its content")


def mistaken(head: bytes) -> tuple[str, str] | None:
    """What a file is if it is not data, and what to do."""
    if head.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the file itself", "`git lfs pull` fetches it"
    if head and not head.strip(b"\0"):
        return "has only zero bytes", "a crash or a full disk kept it from being written; make it again"
    if _MARKUP.match(head):
        return "is a page of HTML or XML", "often an error page saved instead of the data; download it again"
    return None


def misfit(line: bytes) -> str:
    """Describe a line that is not a JSON object, and what to do about its file."""
    text = line[: 4 * _SHOWN].decode("utf-8", "backslashreplace").strip()
    text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    seen = f"`{text if len(text) <= _SHOWN else f'{text[: _SHOWN - 1]}…'}`"
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
