"""Takes rows from inputs whose rows have numbers: Megatron's pairs and MDS shards. They become lines of JSON."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ...inputs.containers import mds, megatron
from ...inputs.containers.detect import Compression, Container

_READERS = {
    Container.MEGATRON: (megatron.document_count, megatron.some_documents),
    Container.MDS: (mds.sample_count, mds.some_samples),
}
"""(how many rows a file has, some of them)"""


def is_numbered(container: Container) -> bool:
    """Whether rows are taken by number."""
    return container in _READERS


def count_numbered(path: Path, container: Container) -> int:
    """How many rows a file has.

    Raises:
        InputError: it is damaged.
    """
    return _READERS[container][0](path)


def take_numbered(path: Path, container: Container, places: Sequence[float], each: int, to: Path) -> int:
    """Take rows from several places, and return how many.

    Args:
        places: from 0 to 1, ascending.
        each: rows of each place.

    Raises:
        InputError: the file is damaged.
    """
    count, some = _READERS[container]
    every, at, rows = count(path), 0, 0
    with to.open("wb") as file:
        for place in places:
            start = max(at, int(place * every))
            found = some(path, start, each)
            _write(found, file)
            rows, at = rows + len(found), start + len(found)
    return rows


def take_unpacked(path: Path, packing: Compression, count: int, to: BinaryIO) -> tuple[int, int]:
    """Take the first rows of a compressed MDS shard. Returns how many, and how many it has.

    Raises:
        InputError: the file is damaged.
    """
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "shard.mds"
        mds.unpack_shard(path, packing, plain)
        found = mds.some_samples(plain, 0, count)
        _write(found, to)
        return len(found), mds.sample_count(plain)


def _write(rows: list[dict[str, Any]], to: BinaryIO) -> None:
    to.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
