"""Detects the kind of an input file by its first bytes, and by its name if these do not suffice."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from os.path import splitext

from ...schemas.errors import InputError


class Container(StrEnum):
    """The file format."""

    JSONL = "JSONL"
    JSON_ARRAY = "JSON array"
    TEXT = "text"
    CSV = "CSV"
    TSV = "TSV"
    PARQUET = "Parquet"
    ARROW = "Arrow"


class Compression(StrEnum):
    """Compression of a file, by Arrow's names."""

    GZIP = "gzip"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file, and by what it is recognized."""

    container: Container
    suffixes: tuple[str, ...] = ()
    """In lower case, with their dot; empty if no name says that a file is of this kind."""
    first_bytes: tuple[bytes, ...] = ()
    """What each file of this kind begins with, one of these; empty for texts, which begin with anything."""
    is_text: bool = False
    """Whether `spool.LINES` cuts it into rows, after it is decompressed; else `tables` reads it."""


FILE_KINDS = (
    FileKind(Container.JSONL, (".jsonl", ".ndjson", ".json"), is_text=True),
    FileKind(Container.JSON_ARRAY, is_text=True),  # which a file of JSON turns out to be
    FileKind(Container.CSV, (".csv",), is_text=True),
    FileKind(Container.TSV, (".tsv",), is_text=True),
    FileKind(Container.TEXT, (".txt",), is_text=True),
    FileKind(Container.PARQUET, (".parquet",), (b"PAR1",)),
    # An Arrow file begins with `ARROW1`, an Arrow stream with the mark that stands before each message.
    FileKind(Container.ARROW, (".arrow", ".arrows", ".feather", ".ipc"), (b"ARROW1", b"\xff\xff\xff\xff")),
)
"""Every kind of file."""

HEAD_BYTES = 512
"""How many first bytes to look at."""
_KIND_OF_SUFFIX = {suffix: kind.container for kind in FILE_KINDS for suffix in kind.suffixes}
"""Suffixes of data files; those of text may be followed by one of `_COMPRESSION_OF_SUFFIX`."""
_COMPRESSION_OF_SUFFIX = {
    ".gz": Compression.GZIP,
    ".gzip": Compression.GZIP,
    ".zst": Compression.ZSTD,
    ".zstd": Compression.ZSTD,
}
_MAGIC_BYTES: dict[bytes, Container | Compression] = {
    b"\x1f\x8b": Compression.GZIP,
    b"\x28\xb5\x2f\xfd": Compression.ZSTD,
    b"\x50\x2a\x4d\x18": Compression.ZSTD,  # a frame to be skipped, which some writers put first
    **{magic: kind.container for kind in FILE_KINDS for magic in kind.first_bytes},
}
"""First bytes of a file that is not text → what it is."""
TEXT_KINDS = tuple(kind.container for kind in FILE_KINDS if kind.is_text)
"""The kinds of files that are text: JSONL, JSON arrays, CSV, TSV and plain texts."""
_OBJECT = re.compile(rb'\s*\{\s*"')
"""How an object of JSON begins that has a key."""


def data_files(folder: str, names: Iterable[str]) -> list[str]:
    """The data files of a folder, by their names, in the given order; its .txt files if it has no others. Names that
    begin with a dot or an underscore are skipped, and so is all that is in folders of such names.

    Args:
        folder: the path or key that all names begin with.
        names: paths or keys of all files below the folder.
    """
    prefix_length = len(folder.rstrip("/"))
    kinds = {}
    for name in names:
        parts = name[prefix_length:].split("/")
        if not any(part.startswith((".", "_")) for part in parts):
            kinds[name] = _kind_of_name(name)[0]
    data = [name for name, kind in kinds.items() if kind not in (None, Container.TEXT)]
    # Beside data files, texts are licences and descriptions.
    return data or [name for name, kind in kinds.items() if kind is Container.TEXT]


def split_name(name: str) -> tuple[str, str]:
    """A file's name without its suffix, and the suffix; `.jsonl.gz` is one suffix."""
    stem, suffix = splitext(name)
    if suffix not in _COMPRESSION_OF_SUFFIX:
        return stem, suffix
    inner_stem, inner_suffix = splitext(stem)
    return inner_stem, inner_suffix + suffix


def _kind_of_name(name: str) -> tuple[Container | None, Compression | None]:
    """The kind of a file, and how it is compressed, by its name alone; None if the name does not say."""
    stem, suffix = splitext(name.lower())
    compression = _COMPRESSION_OF_SUFFIX.get(suffix)
    if compression is not None:
        _, suffix = splitext(stem)  # `.jsonl` of `chats.jsonl.gz`
    return _KIND_OF_SUFFIX.get(suffix), compression


def detect(name: str, shown: str, head: bytes) -> tuple[Container, Compression | None]:
    """The kind of a file, and how it is compressed; None if it is not.

    Args:
        name: a path or URL, of which only the suffix counts.
        shown: its name in messages.
        head: its first bytes, up to `HEAD_BYTES`.

    Raises:
        InputError: it is of an unsupported kind, or not what its name says.
    """
    named_kind, named_compression = _kind_of_name(name)
    named_kind = named_kind or Container.JSONL  # what a name without a known suffix most likely is
    # The first bytes hardly tell CSV from lines of JSON, so of a text the name decides; if it names a kind that is no
    # text, such as Parquet, it is wrong.
    text_kind = named_kind if named_kind in TEXT_KINDS else Container.JSONL

    # First bytes that only one kind has go before the name: people rename files, and a wrong reader would find rows in
    # noise.
    magic_kind = _kind_of_magic_bytes(head)
    if isinstance(magic_kind, Compression):
        return text_kind, magic_kind  # of a text; what is inside shows when it is read, see `refuse_inner`
    if magic_kind is not None:
        return magic_kind, None

    # Without such bytes it is a text, or cannot be used.
    needs_magic_bytes = named_compression is not None or named_kind not in TEXT_KINDS
    # Lines of JSON may have a NUL byte: one damaged row costs only itself.
    is_binary = b"\0" in head and not head.lstrip().startswith((b"{", b"["))
    # An empty file has no rows, whatever its name says.
    if head and (needs_magic_bytes or is_binary):
        raise InputError(
            f"{shown} is damaged, or of another kind: its first bytes are not those of "
            f"{named_compression or named_kind.value}. Copy it again, give it the right suffix, or convert it: inputs "
            "are JSONL in UTF-8 (one object a line), JSON arrays, CSV and .txt, plain or as .gz or .zst; Parquet; and "
            "Arrow"
        )
    if head.startswith(b"version https://git-lfs"):
        raise InputError(f"{shown} is a pointer of Git LFS, not the file itself; `git lfs pull` fetches it")
    return settle_text_kind(text_kind, head), None


def _kind_of_magic_bytes(head: bytes) -> Container | Compression | None:
    """What a file is by its first bytes, if it is not text."""
    for magic, kind in _MAGIC_BYTES.items():
        if head.startswith(magic):
            return kind
    return None


def settle_text_kind(container: Container, head: bytes) -> Container:
    """The kind of a text file by its first (decompressed) bytes.

    Args:
        container: the kind by its name: `.json` may be lines or an array, and lines of JSON are often called `.txt`.
    """
    without_byte_order_mark = head.removeprefix(b"\xef\xbb\xbf")
    if container is Container.JSONL and without_byte_order_mark.lstrip().startswith(b"["):
        return Container.JSON_ARRAY
    if container is Container.TEXT and _OBJECT.match(head):
        return Container.JSONL
    return container


def refuse_inner(shown: str, head: bytes) -> None:
    """Refuse a compressed file whose content is not text.

    Args:
        shown: its name in messages.
        head: the first bytes of the content, decompressed.

    Raises:
        InputError: the content is compressed again, a table, or binary.
    """
    if _kind_of_magic_bytes(head) is not None or b"\0" in head:
        raise InputError(f"{shown} is compressed, and its content is not text; decompress it and give its content")
