"""Which blocks of the inputs a stream packs together: windows, known from the scan alone.

An epoch's blocks are put in an order chosen by the seed and cut into windows of at most so many source bytes. No
block has to be encoded to know which window it stands in, so any window can be reached at once.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..schemas.config import RunConfig, SourceConfig
from ..schemas.fingerprint import fingerprint
from .planning import mix64, window_seed
from .sources import BLOCK_BYTES, InputFile, labels, resolve_paths, scan_file
from .store import LocalStore

BLOCK_ORDER = 2**63
"""Seeds the order of an epoch's blocks, where the number of a window seeds the order of its rows."""


class Blocks:
    """All blocks of all inputs, numbered in the order of sources, files and places: what `packtrain run` encodes.

    Args:
        files: as scanned.
        window_bytes: source bytes of a window, at most; a larger block is a window of its own.
        seed: of the order.
    """

    def __init__(self, files: Sequence[InputFile], window_bytes: int, seed: int) -> None:
        self.files = tuple(files)
        self.window_bytes = window_bytes
        self.seed = seed
        self._file = np.repeat(np.arange(len(files)), [len(file.blocks) for file in files])
        first = np.cumsum([0, *(len(file.blocks) for file in files)])
        self._index = np.arange(len(self._file)) - first[self._file]
        self._sizes = np.array([block.end - block.start for file in files for block in file.blocks], dtype=np.int64)
        names = {name: number for number, name in enumerate(dict.fromkeys(file.source for file in files))}
        self._sources = np.array([names[file.source] for file in files])[self._file]
        self._windows = lru_cache(maxsize=2)(self._cut)

    def __len__(self) -> int:
        return len(self._sizes)

    def windows(self, epoch: int) -> list[NDArray[np.int64]]:
        """The windows of an epoch in their order; each holds its blocks' numbers, ascending.

        Blocks are permuted within their source, and the sources interleaved evenly, so that every window holds
        each of them by its share.
        """
        return self._windows(epoch)

    def _cut(self, epoch: int) -> list[NDArray[np.int64]]:
        keys = mix64(np.arange(len(self), dtype=np.uint64), window_seed(window_seed(self.seed, epoch), BLOCK_ORDER))
        share = np.zeros(len(self))
        for source in np.unique(self._sources):
            mine = np.flatnonzero(self._sources == source)
            mine = mine[np.argsort(keys[mine], kind="stable")]
            share[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
        order = np.lexsort((self._sources, share))
        cuts, size = [0], 0
        for place, more in enumerate(self._sizes[order].tolist()):
            if size and size + more > self.window_bytes:
                cuts.append(place)
                size = 0
            size += more
        return [np.sort(part) for part in np.split(order.astype(np.int64), cuts[1:])]

    def select(self, numbers: NDArray[np.int64]) -> list[InputFile]:
        """The files that hold these blocks, each with these blocks alone. `numbers` ascend."""
        out = []
        for index in np.unique(self._file[numbers]).tolist():
            file = self.files[index]
            mine = self._index[numbers[self._file[numbers] == index]]
            out.append(replace(file, blocks=tuple(file.blocks[block] for block in mine.tolist())))
        return out


def scan_inputs(config: RunConfig, base: Path, cache: LocalStore) -> list[InputFile]:
    """All files of all sources, hashed and cut. A file that was scanned before is not read again.

    The cache keeps a note of every scan under the file's path, size, inode and times, the time of its last change
    of any kind among them, which no program can set back. Every block's hash is checked again when it is encoded.

    Raises:
        ConfigError: a file is missing, see `resolve_paths`.
        InputError: a file is empty or cannot be read.
    """
    files = []
    for source in config.sources:
        paths = resolve_paths(source, base)
        for path, label in zip(paths, labels(paths), strict=True):
            files.append(_scan(source, path, label, cache))
    return files


def _scan(source: SourceConfig, path: Path, label: str, cache: LocalStore) -> InputFile:
    name = _note(source, path)
    kept = cache.read(name)
    if kept is not None:
        try:
            file = msgspec.json.decode(kept, type=InputFile, dec_hook=_path)
            return replace(file, source=source.name, label=label, path=path)
        except msgspec.MsgspecError:
            pass  # of another version, or damaged: the file itself says it better
    file = scan_file(source.name, label, path, source.max_row_bytes)
    if _note(source, path) == name:  # else it changed meanwhile, and the note would be of neither state
        cache.replace_bytes(name, msgspec.json.encode(file, enc_hook=str))
    return file


def _note(source: SourceConfig, path: Path) -> str:
    stat = path.stat()
    times = [stat.st_mtime_ns, stat.st_ctime_ns]
    what = [str(path.absolute()), stat.st_size, stat.st_ino, *times, source.max_row_bytes, BLOCK_BYTES]
    return f"scans/{fingerprint(what)}.json"


def _path(kind: type, text: str) -> Path:
    """The one field that JSON has no type for."""
    return Path(text)
