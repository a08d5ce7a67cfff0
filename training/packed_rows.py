"""The packed rows of a finished dataset, local or remote: random access, sizes, fingerprint, names of documents."""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.errors import InputError, IntegrityError, PacktrainError, did_you_mean
from ..schemas.jsontext import parse_json
from ..schemas.manifest import Manifest
from ..schemas.names import MANIFEST
from ..schemas.rows import ROW_SIZES_NAME
from .dataset_files import CACHE_BYTES, DatasetFiles, MappedFile
from .mapped_shard import Row, RowSizes, Shard

DOCUMENTS = "documents.parquet"
OPEN_SHARDS = 256
"""Most shards that are mapped at once, because each has an open file."""
_PAIR = 32 * 4096 / 6.7e9
"""What attention costs for each of a document's ℓ² pairs, in units of one token's matrix multiplications. Forward and
backward, a token costs 6 operations for each parameter, and a document 6 · ℓ² · hidden for each layer: here of a model
with 6.7 billion parameters, 32 layers and 4,096 dimensions. Other sizes differ by a factor of two or three.
"""
MAKE_HOLDOUT = "`holdout: {fraction: 0.02}` in the run's configuration makes one"
"""Text that says how to get a split `holdout`."""


class PackedRows:
    """The rows of one split of a finished dataset, in the order of its shards. Safe in threads.

    Pickled as its arguments.

    Args:
        where: folder or URL that `packtrain run` wrote.
        split: `train`, or `holdout` if there is one.
        remote: `cache`, `cache_bytes`, `storage_options`: see `DatasetFiles`.

    Raises:
        InputError: there is no finished dataset, or no such split.
        IntegrityError: a manifest or a shard is damaged.
    """

    def __init__(self, where: str | Path, split: str = "train", **remote: Any) -> None:
        self._arguments = (where, split, remote)
        self.where, self.split = where, split
        self.files = DatasetFiles(where, **remote)
        self.manifest = read_manifest(self.files)
        if self.manifest.preference:
            raise InputError(
                f"{where} holds preference pairs, which are not packed rows; open it with datasets.load_from_disk, "
                "for TRL's DPOTrainer"
            )
        record = self.manifest.splits.get(split)
        if record is None:
            known = self.manifest.splits
            fix = f"; {MAKE_HOLDOUT}" if split == "holdout" else did_you_mean(split, known)
            raise InputError(f"{where} has no split {split!r}; it has {', '.join(known)}{fix}")
        self._shards = record.shards
        self._starts = [0, *accumulate(shard.rows for shard in self._shards)]
        # The processes of a machine share the cache, and the space of a file that was removed from it comes back when
        # it is no longer mapped: this one maps a quarter of its part at most.
        room = remote.get("cache_bytes", CACHE_BYTES) // (4 * int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
        largest = 1 if self.files.is_local else max((shard.bytes for shard in self._shards), default=1)
        self.most = max(1, min(OPEN_SHARDS, room // largest))
        """Most shards that are mapped at once; rows in use keep their memory."""
        self._shard = lru_cache(self.most)(self._open)

    def __reduce__(self) -> tuple[Any, ...]:
        where, split, remote = self._arguments
        return partial(PackedRows, **remote), (where, split)  # every process maps its own

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def max_length(self) -> int:
        """The capacity of a row, in tokens."""
        return self.manifest.max_length

    @property
    def max_docs(self) -> int:
        """Maximum number of documents in one row."""
        return max(shard.max_docs for shard in self._shards)

    @cached_property
    def longest(self) -> int:
        """Most tokens of a piece, with padding: those of the longest document, as far as `max_length` lets it. Raises
        IntegrityError as `names`.
        """
        import pyarrow.compute as pc

        tokens = pc.max(self._documents(["tokens"]).column(0)).as_py() or 0
        return int(min(self.max_length, tokens + self.manifest.alignment.row - 1))

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the rows and their order, used to refuse states of another dataset."""
        text = "".join(f"{shard.hash} {shard.rows}\n" for shard in self._shards)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def row(self, index: int) -> Row:
        """Row `index`. Raises IndexError beyond the last one."""
        number = self.shard_of(index)
        shard: Shard = self._shard(number)
        return shard.row(index - self._starts[number])

    def costs(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(N,) costs of rows, in units of one token's matrix multiplications. Opens no shard."""
        tokens, squares = self._sizes.of(rows)
        return tokens + _PAIR * squares

    def names(self, doc_ids: Sequence[int]) -> dict[int, tuple[str, str, str, int]]:
        """For each document id, (example id, source, file, line) from the table beside the shards.

        Raises:
            IntegrityError: the table is missing or damaged.
        """
        wanted = [("doc_id", "in", sorted(set(doc_ids)))]
        table = self._documents(["doc_id", "id", "source", "file", "line"], filters=wanted)
        ids, *rest = (column.to_pylist() for column in table.columns)
        return dict(zip(ids, zip(*rest, strict=True), strict=True))

    # Shards

    def shard_of(self, index: int) -> int:
        """Number of the shard that holds row `index`. Raises IndexError beyond the last row."""
        if not 0 <= index < len(self):
            raise IndexError(f"there is no row {index}; there are {len(self):,}")
        return bisect_right(self._starts, index) - 1

    def url_of(self, shard: int) -> str:
        """Full address of a shard."""
        return self.files.url(self._shards[shard].name)

    def fetch(self, shard: int) -> None:
        """Download a shard into the cache, without keeping it open."""
        record = self._shards[shard]
        self.files.map(record.name, record.bytes, record.hash)

    def _open(self, shard: int) -> Shard:
        return Shard(self.files, self._shards[shard])

    # Files beside them

    @cached_property
    def _sizes(self) -> RowSizes:
        return RowSizes(self._file(self._shards[0].name.partition("shards/")[0] + ROW_SIZES_NAME), len(self))

    def _documents(self, columns: list[str], **options: Any) -> pa.Table:
        import pyarrow.parquet as pq

        try:
            return pq.read_table(pa.BufferReader(self._file(DOCUMENTS).buffer), columns=columns, **options)
        except (OSError, pa.ArrowException, IntegrityError) as error:
            url = self.files.url(DOCUMENTS)
            raise IntegrityError(f"{url} is missing or damaged ({error}); run the same configuration again") from error

    def _file(self, name: str) -> MappedFile:
        for file in self.manifest.files:
            if file.name == name:
                return self.files.map(name, file.bytes, file.hash)
        raise IntegrityError(f"{self.files.url(MANIFEST)} does not list {name}; pack again with this version")


def read_manifest(files: DatasetFiles) -> Manifest:
    """The manifest of a finished dataset.

    Raises:
        InputError: there is no finished dataset.
        IntegrityError: the manifest cannot be read.
    """
    try:
        return Manifest.from_json(parse_json(files.read(MANIFEST)))
    except (FileNotFoundError, NotADirectoryError):
        what = f"has no {MANIFEST}, so it is not a finished dataset"
        if files.is_local and not files.folder.is_dir():
            what = "is a file" if files.folder.exists() else "does not exist"
        raise InputError(f"{files.where} {what}; give the folder that `packtrain run` wrote") from None
    except PacktrainError:  # the error's own message says more
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"{files.url(MANIFEST)} is not a manifest of this version of packtrain ({error!r}); delete it, and run the "
            "dataset's configuration again, which makes only what is missing"
        ) from error
