"""The packed rows of finished datasets, local or remote: random access, sizes, fingerprint, names of documents."""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.errors import InputError, IntegrityError, PacktrainError, did_you_mean
from ..schemas.jsontext import parse_json
from ..schemas.manifest import Manifest
from ..schemas.model_facts import ModelShape
from ..schemas.names import MANIFEST
from ..schemas.rows import ROW_SIZES_NAME
from .files import Files, LocalFiles, MappedFile, RemoteFiles, open_files
from .shard import Row, RowSizes, Shard

DOCUMENTS = "documents.parquet"
OPEN_SHARDS = 256
"""Most shards of a dataset that are mapped at once; each has an open file."""
MAKE_HOLDOUT = "`holdout: {fraction: 0.02}` in the run's configuration makes one"
"""Text that says how to get a split `holdout`."""


class PackedRows:
    """All rows of one split, in the order of the shards. Safe in threads; pickled as its arguments.

    Args:
        where: folder or URL that `packtrain run` wrote.
        split: `train`, or `holdout` if there is one.
        remote: `cache`, `cache_bytes`, `storage_options`: see `files.open_files`.

    Raises:
        InputError: there is no finished dataset, no such split, or its shards are Parquet.
        IntegrityError: the manifest or a shard is damaged.
    """

    def __init__(self, where: str | Path, split: str = "train", **remote: Any) -> None:
        self.where, self.split, self._remote = where, split, remote
        self.files = open_files(where, **remote)
        self.manifest = read_manifest(self.files)
        if self.manifest.preference:
            raise InputError(
                f"{where} holds preference pairs, which are not packed rows; open it with datasets.load_from_disk, for "
                "TRL's DPOTrainer"
            )
        record = self.manifest.splits.get(split)
        if record is None:
            known = self.manifest.splits
            fix = f"; {MAKE_HOLDOUT}" if split == "holdout" else did_you_mean(split, known)
            raise InputError(f"{where} has no split {split!r}; it has {', '.join(known)}{fix}")
        self.shards = record.shards
        self._starts = [0, *accumulate(shard.rows for shard in self.shards)]
        self.is_local = isinstance(self.files, LocalFiles)
        self.room = sum(shard.bytes for shard in self.shards)
        """Bytes of shards that this process may keep mapped."""
        if isinstance(self.files, RemoteFiles):
            # Space of files that were removed from the cache comes back when they are no longer mapped.
            processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)  # of this machine, which share the cache
            self.room = self.files.cache_bytes // (4 * processes)
        self._open: dict[int, Shard] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(PackedRows, **self._remote), (self.where, self.split)  # every process maps its own

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def max_length(self) -> int:
        """Capacity of a row, in tokens."""
        return self.manifest.max_length

    @property
    def tokens(self) -> int:
        """Tokens of the split."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def packing(self) -> dict[str, Any]:
        """The section `pack` of the configuration that made the dataset."""
        return dict(self.manifest.plan["config"]["pack"])

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the split's rows and their order, used to refuse states of another dataset."""
        text = "".join(f"{shard.hash} {shard.rows}\n" for shard in self.shards)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def row(self, index: int) -> Row:
        """Row `index`. Raises IndexError beyond the last one."""
        number = self.shard_of(index)
        return self._shard(number).row(index - self._starts[number])

    @cached_property
    def sizes(self) -> RowSizes:
        """Size of every row. Opens no shard."""
        return RowSizes(self._file(self.shards[0].name.partition("shards/")[0] + ROW_SIZES_NAME), len(self))

    def longest(self, beyond: int | None = None) -> int:
        """Tokens of the longest document (piece). For remote shards, which are not fetched, it is an upper bound.

        Args:
            beyond: if the bound is larger than this, the shards that may exceed it are fetched to make it exact.
        """
        bounds = [self.sizes.longest(begin, end) for begin, end in pairwise(self._starts)]
        highest = max(bounds, default=0)
        if not self.is_local and (beyond is None or highest <= beyond):
            return highest
        found = 0
        for bound, number in sorted(zip(bounds, range(len(bounds)), strict=True), reverse=True):
            if bound <= found:
                break
            found = max(found, self._shard(number).longest)
        return found

    def shard_of(self, index: int) -> int:
        """Number of the shard that holds row `index`."""
        number = bisect_right(self._starts, index) - 1
        if not 0 <= number < len(self.shards):
            raise IndexError(f"there is no row {index}; the split {self.split!r} has {len(self):,}")
        return number

    def fetch(self, number: int) -> None:
        """Download shard `number` into the cache, without keeping it open."""
        shard = self.shards[number]
        if number not in self._open:
            self.files.map(shard.name, shard.bytes, shard.hash)

    def documents(self) -> pa.BufferReader:
        """The table of documents, as a Parquet file."""
        return pa.BufferReader(self._file(DOCUMENTS).buffer)

    def _file(self, name: str) -> MappedFile:
        for file in self.manifest.files:
            if file.name == name:
                return self.files.map(name, file.bytes, file.hash)
        raise IntegrityError(f"{self.files.url(MANIFEST)} does not list {name}; pack again with this version")

    def _shard(self, number: int) -> Shard:
        """Open a shard, and before that close those opened first, until it fits. Rows in use keep their memory."""
        if (known := self._open.get(number)) is not None:
            return known
        mapped = self.shards[number].bytes + sum(self.shards[one].bytes for one in list(self._open))
        for oldest in list(self._open):
            if len(self._open) < OPEN_SHARDS and mapped <= self.room:
                break
            if self._open.pop(oldest, None) is not None:  # another thread may close it, too
                mapped -= self.shards[oldest].bytes
        found = self._open[number] = Shard(self.files, self.shards[number])
        return found


class ConcatRows:
    """The rows of several datasets, one after another.

    Args:
        parts: at least one dataset; each has rows.
    """

    def __init__(self, parts: Sequence[PackedRows]) -> None:
        self.parts = list(parts)
        self._starts = [0, *accumulate(map(len, self.parts))]

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def max_length(self) -> int:
        """The largest capacity of a row, in tokens."""
        return max(part.max_length for part in self.parts)

    @property
    def max_docs(self) -> int:
        """Maximum number of documents in one row."""
        return max(shard.max_docs for part in self.parts for shard in part.shards)

    @property
    def weighted(self) -> bool:
        """Whether some of the rows have loss weights."""
        return any(part.manifest.weighted for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of all rows and their order."""
        text = "".join(part.fingerprint for part in self.parts)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def longest(self, beyond: int | None = None) -> int:
        """See `PackedRows.longest`."""
        return max(part.longest(beyond) for part in self.parts)

    def first_of(self, part: int) -> int:
        """Number of the first row of a dataset."""
        return self._starts[part]

    def locate(self, row: int) -> tuple[int, int]:
        """(number of the dataset, number of the row in it)."""
        part = bisect_right(self._starts, row) - 1
        return part, row - self._starts[part]

    def row(self, index: int) -> Row:
        """Row `index`."""
        part, index = self.locate(index)
        return self.parts[part].row(index)

    def url_of(self, index: int) -> str:
        """Full address of the shard that holds row `index`."""
        part, index = self.locate(index)
        rows = self.parts[part]
        return rows.files.url(rows.shards[rows.shard_of(index)].name)

    def costs(self, rows: NDArray[np.int64], shape: ModelShape) -> NDArray[np.float64]:
        """(N,) costs of rows, in units of one token's matrix multiplications. Opens no shard."""
        costs = np.empty(len(rows))
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for part in np.unique(owners).tolist():
            mine = owners == part
            costs[mine] = shape.weigh(*self.parts[part].sizes.of(rows[mine] - self._starts[part]))
        return costs


def read_manifest(files: Files) -> Manifest:
    """The manifest of a finished dataset.

    Raises:
        InputError: there is no finished dataset.
        IntegrityError: the manifest cannot be read.
    """
    try:
        return Manifest.from_json(parse_json(files.read(MANIFEST)))
    except (FileNotFoundError, NotADirectoryError):
        what = f"has no {MANIFEST}, so it is not a finished dataset"
        if isinstance(files, LocalFiles) and not files.folder.is_dir():
            what = "is a file" if files.folder.exists() else "does not exist"
        raise InputError(f"{files.where} {what}; give the folder that `packtrain run` wrote") from None
    except PacktrainError:  # the error's own message says more
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"{files.url(MANIFEST)} is not a manifest of this version of packtrain ({error!r}); "
            "packtrain verify --repair rebuilds it"
        ) from error


def document_names(rows: PackedRows, doc_ids: Sequence[int]) -> dict[int, tuple[str, str, str, int]]:
    """For each document id, (example id, source, file, line) from the table beside the shards.

    Raises:
        IntegrityError: the table is missing or damaged.
    """
    import pyarrow.parquet as pq

    if not doc_ids:
        return {}
    columns = ["doc_id", "id", "source", "file", "line"]
    try:
        table = pq.read_table(rows.documents(), columns=columns, filters=[("doc_id", "in", sorted(set(doc_ids)))])
    except (OSError, pa.ArrowException, IntegrityError) as error:
        url = rows.files.url(DOCUMENTS)
        raise IntegrityError(f"{url} is missing or damaged ({error}); run the same configuration again") from error
    ids, *rest = (table.column(name).to_pylist() for name in columns)
    return dict(zip(ids, zip(*rest, strict=True), strict=True))
