"""The files of one input: usually one; of Megatron, an `.idx`, its `.bin`, and the same two of its mask.

The mask of `train/data.idx` is `train-mask/data.idx`, as `packtrain export` writes it.
"""

from dataclasses import dataclass
from pathlib import Path

import blake3

from ....schemas.errors import InputError

INDEX, DATA = ".idx", ".bin"


@dataclass(frozen=True, slots=True)
class Measure:
    """Whether files have changed, as far as their status says."""

    size: int
    """Bytes of all files."""
    stamp: int
    """Modification time of a single file in nanoseconds; of several, a number that changes with any of their times."""


def data_of(index: Path) -> Path:
    """The `.bin` of an index."""
    return index.with_suffix(DATA)


def is_index(path: Path) -> bool:
    """Whether a file is the index of a pair, by its name and its neighbour."""
    return path.suffix == INDEX and data_of(path).is_file()


def mask_of(index: Path) -> Path | None:
    """The index of a pair's mask: None without a folder of masks.

    Raises:
        InputError: there is such a folder, but it has no mask for this pair.
    """
    masks = _masks(index)
    if masks is None:
        return None
    mask = masks / index.name
    if not is_index(mask):
        raise InputError(
            f"{index} has no mask: {masks} has no {mask.name} with a {data_of(mask).name}; put them there, or rename "
            "that folder if it does not say which tokens are trained"
        )
    return mask


def is_mask(index: Path) -> bool:
    """Whether a pair is the mask of another."""
    index = index.absolute()
    folder = index.parent.name.removesuffix("-mask")
    return folder not in ("", index.parent.name) and is_index(index.parent.with_name(folder) / index.name)


def parts_of(path: Path) -> tuple[Path, ...]:
    """All files of an input, the one that names it first.

    Raises:
        InputError: see `mask_of`.
    """
    if not is_index(path):
        return (path,)
    mask = mask_of(path)
    return (path, data_of(path), *((mask, data_of(mask)) if mask is not None else ()))


def measure(path: Path) -> Measure:
    """The status of an input's files.

    Raises:
        InputError: see `mask_of`.
        OSError: a file is missing.
    """
    found = [one.stat() for one in parts_of(path)]
    times = [one.st_mtime_ns for one in found]
    stamp = times[0] if len(times) == 1 else int.from_bytes(blake3.blake3(repr(times).encode()).digest(7))
    return Measure(sum(one.st_size for one in found), stamp)


def _masks(index: Path) -> Path | None:
    folder = index.absolute().parent
    masks = folder.with_name(f"{folder.name}-mask") if folder.name else None
    return masks if masks is not None and masks.is_dir() else None
