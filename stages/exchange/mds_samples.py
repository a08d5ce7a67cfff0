"""Reads MosaicML's MDS: the head of a shard, its samples, and `index.json`. How they are written is in `mds`.

Rules: `streaming/base/format/mds/` of mosaicml-streaming 0.13.0, without its encodings of pictures and of pickles.
Functions raise ValueError, whose text says what is wrong, as the end of a sentence that begins with a file's name.
"""

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import msgspec
import numpy as np

from ...schemas.errors import RowRejectedError
from ...schemas.jsontext import parse_json
from ..prep.rowjson import decode_json, exact

_PICTURES = ("pil", "jpeg", "png", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]")
_SCALARS = {
    "int": "<i8",
    **{f"{kind}{bits}": f"<{kind[0]}{bits // 8}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
"""Encoding of one number → its type in numpy."""
_OF_ARRAYS = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32",
    33: "int32", 34: "float32", 64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
"""The first byte of an array without a static type → its type."""
_DIGITS = 400
_FREE_LISTS = 1000
"""An array may have so many lists besides those that its numbers fill: an axis of 0 allows any number of lists."""
_Decode = Callable[[memoryview, str], Any]
"""Turns the bytes of a value into plain data; the text names its column."""


@dataclass(frozen=True, slots=True)
class MdsColumns:
    """The columns of a shard, in the order of their values."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    """Bytes of a value, if all have the same."""

    def __post_init__(self) -> None:
        for name, encoding in zip(self.names, self.encodings, strict=True):
            _decoder(encoding, name)

    def to_bytes(self) -> bytes:
        """The columns as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "MdsColumns":
        """The columns that `to_bytes` wrote."""
        return msgspec.json.decode(data, type=cls)

    def row(self, sample: memoryview, wanted: Collection[str] | None) -> dict[str, Any]:
        """A sample as plain data, but for arrays (T,) of integers. Others are lists.

        Args:
            wanted: the only columns that are needed; None for all.

        Raises:
            RowRejectedError: `unreadable_value`, `invalid_utf8`, `invalid_json` or `too_deep`.
        """
        varying = sum(not size for size in self.sizes)
        if len(sample) < 4 * varying:
            raise RowRejectedError("unreadable_value", f"the sample has {len(sample):,} bytes, too few for its sizes")
        given = iter(struct.unpack_from(f"<{varying}I", sample))
        sizes = [size or next(given) for size in self.sizes]
        if 4 * varying + sum(sizes) != len(sample):
            said = f"its values take {4 * varying + sum(sizes):,} bytes, and the sample has {len(sample):,}"
            raise RowRejectedError("unreadable_value", said)
        out, at = {}, 4 * varying
        for name, encoding, size in zip(self.names, self.encodings, sizes, strict=True):
            if wanted is None or name in wanted:
                where = f"`{name}`"
                try:
                    out[name] = _decoder(encoding, name)(sample[at : at + size], where)
                except RowRejectedError:
                    raise
                except UnicodeDecodeError as error:
                    raise RowRejectedError("invalid_utf8", f"{where} is not UTF-8 ({error})") from None
                except (ValueError, OverflowError) as error:
                    said = f"{where} is no {encoding} ({error})"
                    raise RowRejectedError("unreadable_value", said) from None
            at += size
        return out


class _Config(msgspec.Struct):
    version: int
    format: str
    column_names: tuple[str, ...]
    column_encodings: tuple[str, ...]
    column_sizes: tuple[int | None, ...]


class _File(msgspec.Struct):
    basename: str
    bytes: int
    hashes: dict[str, str] = {}


class _Shard(msgspec.Struct):
    version: int
    format: str
    samples: int
    raw_data: _File
    zip_data: _File | None = None


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A file of a shard, as `index.json` announces it."""

    name: str
    """Relative to the folder of `index.json`, and inside of it."""
    bytes: int
    hashes: tuple[tuple[str, str], ...]
    """(algorithm, hexadecimal digits)"""
    samples: int


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """A shard: its file, and its compressed file if it was written compressed."""

    raw: ShardFile
    zip: ShardFile | None


def read_columns(config: bytes) -> MdsColumns:
    """The columns of a shard, from the JSON in its head."""
    try:
        found = msgspec.convert(parse_json(config), _Config)
    except ValueError as error:
        raise ValueError(f"has a head that is not JSON of an MDS shard ({error})") from None
    _check_kind(found.version, found.format)
    counts = {len(found.column_names), len(found.column_encodings), len(found.column_sizes)}
    if len(counts) != 1 or len(set(found.column_names)) != len(found.column_names):
        raise ValueError("has a head whose columns, encodings and sizes do not fit one another")
    if any(size is not None and size < 0 for size in found.column_sizes):
        raise ValueError("has a head with a column of negative size")
    return MdsColumns(found.column_names, found.column_encodings, found.column_sizes)


def is_index(data: bytes) -> bool:
    """Whether an `index.json` is that of a dataset of MosaicML's."""
    try:
        found = parse_json(data)
    except ValueError:
        return False
    shards = found.get("shards") if isinstance(found, dict) else None
    return isinstance(shards, list) and all(isinstance(one, dict) and "format" in one for one in shards)


def read_index(data: bytes) -> list[ShardFiles]:
    """The shards that an `index.json` lists."""
    try:
        found = parse_json(data)
        shards = msgspec.convert(found["shards"], list[_Shard])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"is not the index of MDS shards ({error})") from None
    out = []
    for shard in shards:
        _check_kind(shard.version, shard.format)
        if shard.samples < 0:
            raise ValueError(f"gives {_checked(shard.raw_data.basename)} {shard.samples:,} samples")
        raw, packed = (
            ShardFile(_checked(file.basename), file.bytes, tuple(sorted(file.hashes.items())), shard.samples)
            if file is not None
            else None
            for file in (shard.raw_data, shard.zip_data)
        )
        assert raw is not None
        out.append(ShardFiles(raw, packed))
    return out


def _checked(name: str) -> str:
    """A name inside the folder; `merge_index` of streaming writes names with folders."""
    if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name or "\0" in name:
        raise ValueError(f"names {name!r}, which lies outside of its folder")
    return name


def _check_kind(version: int, format: str) -> None:
    if format != "mds":
        raise ValueError(f"has shards of format {format}, and only mds is read")
    if version != 2:
        raise ValueError(f"is of version {version}, and only version 2 is known")


@lru_cache(maxsize=256)
def _decoder(encoding: str, column: str) -> _Decode:
    """The function that decodes values of a column."""
    kind, _, more = encoding.partition(":")
    if kind == "ndarray":
        return _array_decoder(more, encoding, column)
    if encoding in _SCALARS:
        return lambda data, where: _number(data, _SCALARS[encoding])
    simple: dict[str, _Decode] = {
        "bytes": lambda data, where: bytes(data),
        "str": lambda data, where: str(data, "utf-8"),
        "json": lambda data, where: exact(decode_json(str(data, "utf-8"), where, reason="invalid_json")),
        "str_int": lambda data, where: int(_short(data)),
        "str_float": lambda data, where: float(_short(data)),
        "str_decimal": lambda data, where: _short(data),
    }
    if encoding in simple:
        return simple[encoding]
    shown = f"has the column {column!r} with the encoding {encoding}"
    if encoding == "pkl":
        raise ValueError(f"{shown}: reading a pickle runs whatever code it holds, so it is not read")
    what = "a picture, and only text and numbers are read" if encoding in _PICTURES else "which is not known"
    raise ValueError(f"{shown}, {what}")


def _array_decoder(more: str, encoding: str, column: str) -> _Decode:
    parts = more.split(":") if more else []
    fixed = parts[0] if parts else None
    known = len(parts) <= 2 and (fixed is None or fixed in _OF_ARRAYS.values())
    sizes = parts[1].split(",") if len(parts) == 2 else []
    if not known or not all(size.isascii() and size.isdigit() and len(size) < 10 and int(size) for size in sizes):
        raise ValueError(f"has the column {column!r} with the encoding {encoding}, which is not known")
    static = tuple(map(int, sizes)) or None

    def decode(data: memoryview, where: str) -> Any:
        kind, shape = fixed, static
        if kind is None:
            kind = _OF_ARRAYS.get(data[0]) if data else None
            if kind is None:
                raise ValueError("its type is not known")
            data = data[1:]
        if shape is None:
            if not data:
                raise ValueError("it has no shape")
            axes, width = data[0] >> 2, 1 << (data[0] & 3)
            shape = tuple(np.frombuffer(data[1 : 1 + axes * width], f"<u{width}").tolist())
            data = data[1 + axes * width :]
            if len(shape) != axes:
                raise ValueError("its shape is cut short")
        found = np.frombuffer(data, np.dtype(kind).newbyteorder("<")).reshape(shape)
        lists = sum(prod(shape[:axis]) for axis in range(1, len(shape)))
        if lists > 4 * found.size + _FREE_LISTS:
            raise ValueError(f"its shape makes {lists:,} lists of {found.size:,} numbers")
        return found if found.ndim == 1 and found.dtype.kind in "iu" else found.tolist()

    return decode


def _number(data: memoryview, kind: str) -> Any:
    found = np.frombuffer(data, kind)
    if len(found) != 1:
        raise ValueError(f"it has {len(data):,} bytes")
    return found[0].item()


def _short(data: memoryview) -> str:
    if len(data) > _DIGITS:
        raise ValueError(f"it has {len(data):,} digits")
    return str(data, "utf-8")
