"""The packed rows of finished datasets, local or remote: random access, sizes, fingerprint, names of documents."""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.errors import ConfigError, InputError, IntegrityError, PacktrainError, did_you_mean
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


@dataclass(frozen=True, slots=True)
class Source:
    """One packed dataset of a mixture, also in the configuration of a training."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # no field

    path: str | Path
    """Folder or URL that `packtrain run` wrote."""
    weight: float | None = None
    """The source's share of the mixture; only proportions count. If it is None for all sources, each source is read for
    its number of epochs, spread evenly, and all end together.
    """
    epochs: int | None = None
    """Number of times that the dataset is read; None for the loader's number of epochs."""
    split: str = "train"

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"a source has epochs={self.epochs}: must be at least 1")
        if self.weight is not None and not 0 < self.weight < float("inf"):
            raise ConfigError(f"a source has the weight {self.weight}; weights must be positive numbers")


class Part:
    """One split of one dataset, among those that `PackedRows` has.

    Args:
        source: where it is.
        first: number of its first row among all.
        remote: see `DatasetFiles`.

    Raises:
        InputError, IntegrityError: see `PackedRows`.
    """

    def __init__(self, source: Source, first: int, **remote: Any) -> None:
        self.where, self.split, self.first = source.path, source.split, first
        self.files = DatasetFiles(source.path, **remote)
        self.manifest = read_manifest(self.files)
        if self.manifest.preference:
            raise InputError(
                f"{self.where} holds preference pairs, which are not packed rows; open it with "
                "datasets.load_from_disk, for TRL's DPOTrainer"
            )
        record = self.manifest.splits.get(self.split)
        if record is None:
            known = self.manifest.splits
            fix = f"; {MAKE_HOLDOUT}" if self.split == "holdout" else did_you_mean(self.split, known)
            raise InputError(f"{self.where} has no split {self.split!r}; it has {', '.join(known)}{fix}")
        self.shards, self.rows, self.tokens = record.shards, record.rows, record.tokens

    @cached_property
    def sizes(self) -> RowSizes:
        """Size of every row. Opens no shard."""
        return RowSizes(self._file(self.shards[0].name.partition("shards/")[0] + ROW_SIZES_NAME), self.rows)

    @cached_property
    def longest(self) -> int:
        """Most tokens of a piece, with padding: those of the longest document, as far as `max_length` lets it."""
        import pyarrow.compute as pc

        tokens = pc.max(self._documents(["tokens"]).column(0)).as_py() or 0
        return int(min(self.manifest.max_length, tokens + self.manifest.alignment.row - 1))

    def names(self, doc_ids: Sequence[int]) -> dict[int, tuple[str, str, str, int]]:
        """For each document id, (example id, source, file, line) from the table beside the shards.

        Raises:
            IntegrityError: the table is missing or damaged.
        """
        if not doc_ids:
            return {}
        wanted = [("doc_id", "in", sorted(set(doc_ids)))]
        table = self._documents(["doc_id", "id", "source", "file", "line"], filters=wanted)
        ids, *rest = (column.to_pylist() for column in table.columns)
        return dict(zip(ids, zip(*rest, strict=True), strict=True))

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


class PackedRows:
    """All rows of one dataset's split, in the order of the shards, or of several, one after another. Safe in threads;
    pickled as its arguments.

    Args:
        data: folder or URL that `packtrain run` wrote; or a list of `Source`.
        split: `train`, or `holdout` if there is one; each `Source` has its own.
        remote: `cache`, `cache_bytes`, `storage_options`: see `DatasetFiles`.

    Raises:
        ConfigError: the list is empty.
        InputError: there is no finished dataset, no such split, or its shards are Parquet.
        IntegrityError: a manifest or a shard is damaged.
    """

    def __init__(self, data: str | Path | Sequence[Source], split: str = "train", **remote: Any) -> None:
        self._arguments = (data, split, remote)
        self.sources = [Source(data, split=split)] if isinstance(data, str | Path) else list(data)
        if not self.sources:
            raise ConfigError("no source was given; give a folder that packtrain run wrote")
        self.parts: list[Part] = []
        for source in self.sources:
            self.parts.append(Part(source, self.parts[-1].first + self.parts[-1].rows if self.parts else 0, **remote))
        self._shards = [(part, shard) for part in self.parts for shard in part.shards]
        self._starts = [0, *accumulate(shard.rows for _, shard in self._shards)]
        # The processes of a machine share the cache, and the space of a file that was removed from it comes back when
        # it is no longer mapped: this one maps a quarter of its part at most.
        room = remote.get("cache_bytes", CACHE_BYTES) // (4 * int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
        largest = max((shard.bytes for part, shard in self._shards if not part.files.is_local), default=1)
        self.most = max(1, min(OPEN_SHARDS, room // largest))
        """Most shards that are mapped at once; rows in use keep their memory."""
        self._shard = lru_cache(self.most)(self._open)

    def __reduce__(self) -> tuple[Any, ...]:
        data, split, remote = self._arguments
        return partial(PackedRows, **remote), (data, split)  # every process maps its own

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def max_length(self) -> int:
        """The largest capacity of a row, in tokens."""
        return max(part.manifest.max_length for part in self.parts)

    @property
    def max_docs(self) -> int:
        """Maximum number of documents in one row."""
        return max(shard.max_docs for _, shard in self._shards)

    @property
    def longest(self) -> int:
        """Most tokens of a document (piece), with padding. Raises IntegrityError if a table of documents is damaged."""
        return max(part.longest for part in self.parts)

    @property
    def weighted(self) -> bool:
        """Whether some of the rows have loss weights."""
        return any(part.manifest.weighted for part in self.parts)

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the rows and their order, used to refuse states of another dataset."""
        text = "".join(f"{shard.hash} {shard.rows}\n" for _, shard in self._shards)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def row(self, index: int) -> Row:
        """Row `index`. Raises IndexError beyond the last one."""
        number = self.shard_of(index)
        shard: Shard = self._shard(number)
        return shard.row(index - self._starts[number])

    def locate(self, row: int) -> tuple[Part, int]:
        """(its dataset, number of the row in it)."""
        part = self.parts[bisect_right(self.parts, row, key=lambda part: part.first) - 1]
        return part, row - part.first

    def costs(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(N,) costs of rows, in units of one token's matrix multiplications. Opens no shard."""
        costs = np.empty(len(rows))
        for part in self.parts:
            mine = (rows >= part.first) & (rows < part.first + part.rows)
            if mine.any():
                tokens, squares = part.sizes.of(rows[mine] - part.first)
                costs[mine] = tokens + _PAIR * squares
        return costs

    # Shards, counted through all datasets

    def shard_of(self, index: int) -> int:
        """Number of the shard that holds row `index`. Raises IndexError beyond the last row."""
        if not 0 <= index < len(self):
            raise IndexError(f"there is no row {index}; there are {len(self):,}")
        return bisect_right(self._starts, index) - 1

    def is_local(self, shard: int) -> bool:
        """Whether a shard is read where it lies."""
        return self._shards[shard][0].files.is_local

    def url_of(self, shard: int) -> str:
        """Full address of a shard."""
        part, record = self._shards[shard]
        return part.files.url(record.name)

    def fetch(self, shard: int) -> None:
        """Download a shard into the cache, without keeping it open."""
        part, record = self._shards[shard]
        part.files.map(record.name, record.bytes, record.hash)

    def _open(self, shard: int) -> Shard:
        part, record = self._shards[shard]
        return Shard(part.files, record)


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
