"""Folders of MosaicML's MDS shards, as their `index.json` lists them."""

import hashlib
from pathlib import Path
from typing import Any

from ....schemas.errors import InputError
from ....stages.exchange.mds_samples import ShardFile, ShardFiles, is_index, read_index
from ..containers.detect import is_data

INDEX = "index.json"
EXPORT = "export.json"
"""The manifest of an export of packtrain, which is no data."""
_READ = ("", ".zstd", ".zst", ".gz")
"""Suffixes of compressions that are read."""
_CHUNK = 4 << 20


def find_shards(folder: Path) -> list[str] | None:
    """Whether a folder holds MDS shards: an empty list if it does, the names of its splits if its folders do, and None
    if it holds something else.
    """
    try:
        if _has_index(folder):
            return []
        held = list(folder.iterdir())
        if any(is_data(one.name) and one.name != EXPORT for one in held if one.is_file()):
            return None
        return sorted(one.name for one in held if one.is_dir() and _has_index(one)) or None
    except OSError:  # whatever else reads the folder says so
        return None


def shard_files(folder: Path) -> list[tuple[Path, ShardFile]]:
    """The files of a folder's shards, in their order: the plain one of each where it exists, else the compressed one.

    Raises:
        InputError: the index is damaged or names files outside of the folder, or a shard is missing, has another size,
            or is compressed in a way that is not read.
    """
    index = folder / INDEX
    try:
        try:
            shards = read_index(index.read_bytes())
        except ValueError as error:
            raise InputError(f"{index} {error}; write the dataset again, or name its shards by a pattern") from None
        found = [_shard(folder, shard) for shard in shards if shard.raw.samples]
    except OSError as error:
        raise InputError(f"{index} cannot be used: {error.strerror}; fix that, or copy the dataset again") from error
    if not found:
        raise InputError(f"{index} lists no samples; leave {folder} out, or fill it")
    return found


def check_shard(path: Path, announced: ShardFile, samples: int) -> None:
    """Compare a shard with what its index says of it.

    Raises:
        InputError: it has another hash, or another number of samples.
    """
    if samples != announced.samples:
        raise InputError(
            f"{path} has {samples:,} samples, and {INDEX} says {announced.samples:,}; copy the dataset again"
        )
    digests = {name: digest for name, _ in announced.hashes if (digest := _hash(name)) is not None}
    if not digests:
        return
    with path.open("rb", buffering=0) as file:
        while data := file.read(_CHUNK):
            for digest in digests.values():
                digest.update(data)
    for name, expected in announced.hashes:
        if name in digests and digests[name].hexdigest() != expected.lower():
            raise InputError(f"{path} does not match its {name} in {INDEX}: it is damaged; copy it again")


def _has_index(folder: Path) -> bool:
    index = folder / INDEX
    return index.is_file() and (is_index(index.read_bytes()) or any(folder.glob("*.mds*")))


def _shard(folder: Path, shard: ShardFiles) -> tuple[Path, ShardFile]:
    for one in (shard.raw, shard.zip):
        path = folder / one.name if one is not None else None
        if one is None or path is None or not path.is_file():
            continue
        suffix = one.name.rpartition(".mds")[2]
        if ".mds" not in one.name or suffix not in _READ:
            raise InputError(
                f"{path} is not read: a shard is called .mds, or .mds.zstd or .mds.gz if it is compressed; write it "
                "again, without compression or with zstd"
            )
        if path.stat().st_size != one.bytes:
            raise InputError(f"{path} has {path.stat().st_size:,} bytes, and {INDEX} says {one.bytes:,}; copy it again")
        return path, one
    raise InputError(f"{folder} is incomplete: its {INDEX} names {shard.raw.name}, which is missing; copy it again")


def _hash(name: str) -> Any:
    """A new digest; None for an algorithm that this machine does not have."""
    if name.startswith("xxh"):
        import xxhash

        return getattr(xxhash, name)() if name in xxhash.algorithms_available else None
    fixed = name in hashlib.algorithms_guaranteed and not name.startswith("shake")
    return hashlib.new(name, usedforsecurity=False) if fixed else None
