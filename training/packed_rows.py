"""The packed rows of one split as a trainer reads them: random access to mapped shards, costs, a fingerprint. Nothing
is copied until a batch is made.
"""

import os
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.dataset.document_table import DocumentOrigin
from ..schemas.dataset.files import CACHE_BYTES, DatasetFiles, MappedFile
from ..schemas.dataset.manifest import Manifest, read_manifest
from ..schemas.dataset.names import MANIFEST
from ..schemas.dataset.reader import DatasetReader
from ..schemas.dataset.row_batch import Row, RowBatch
from ..schemas.dataset.shards import RowSizes
from ..schemas.errors import InputError
from ..schemas.fingerprint import short_hash
from ..schemas.rows import PACKED_OUTCOME
from ..schemas.tables.columns import shares_tokens

LINEAGE = "packtrain/dataset"
"""Key under which logs, checkpoints and models name the dataset that they were trained on."""
OPEN_SHARDS = 256
"""Most shards that are mapped at once, because each has an open file."""
_PAIR_COST = 32 * 4096 / 6.7e9
"""What attention costs for each of a document's ℓ² pairs, in units of one token's matrix multiplications. Forward and
backward, a token costs 6 operations for each parameter, and a document 6 · ℓ² · hidden for each layer: here of a model
with 6.7 billion parameters, 32 layers and 4,096 dimensions. Other sizes differ by a factor of two or three.
"""


class PackedRows:
    """The rows of one split of a finished dataset, in the order of its shards. Safe in threads.

    Args:
        address: folder or URL that `packtrain run` wrote.
        split: `train`, or `holdout` if there is one.
        remote: `cache`, `cache_bytes` and `storage_options`, which `DatasetFiles` takes for remote files.

    Raises:
        InputError: there is no finished dataset, or no such split.
        IntegrityError: a manifest or a shard is damaged.
    """

    def __init__(self, address: str | Path, split: str = "train", **remote: Any) -> None:
        # "resume" is what messages advise after a temporary failure of a store.
        self.files = DatasetFiles(address, resume="resume", **remote)
        self._reader = DatasetReader(self.files, _finished_manifest(self.files))
        self._split = split
        if self.manifest.has_unpacked_pairs:
            raise InputError(
                f"{address} was packed with pack.strategy: none, which gives preference pairs as columns for TRL's "
                "DPOTrainer: open it with datasets.load_from_disk, or pack with pack.strategy: bfd for this reader"
            )
        self._shards = self._reader.split(split).shards
        # The first row of each shard, and the number of all rows: shards of 3 and 2 rows give 0, 3, 5.
        self._starts = [0, *accumulate(shard.rows for shard in self._shards)]
        self.max_mapped = OPEN_SHARDS
        """Most shards that are mapped at once; rows in use keep their memory."""
        cache_bytes = remote.get("cache_bytes", CACHE_BYTES)
        # A cache without a limit (None) removes no file, so no space is lost to files that are removed but mapped.
        if not self.files.is_local and self._shards and cache_bytes is not None:
            # A file that was removed from the cache takes its space until nothing maps it. The processes of a machine
            # share the cache, so this one maps a quarter of its part at most, and at least one shard.
            processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
            mapped_bytes = cache_bytes // (4 * processes)
            largest = max(shard.bytes for shard in self._shards)
            self.max_mapped = max(1, min(OPEN_SHARDS, mapped_bytes // largest))
        # A shard by its number; the ones used last stay mapped.
        self._shard = lru_cache(self.max_mapped)(self._open)

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def manifest(self) -> Manifest:
        """What the dataset was made from, and every file of it."""
        return self._reader.manifest

    @property
    def shares_tokens(self) -> bool:
        """Whether documents of a row share tokens."""
        return shares_tokens(self.manifest.schema)

    @property
    def has_pairs(self) -> bool:
        """Whether its documents are the sides of preference pairs."""
        return self.manifest.has_packed_pairs

    @property
    def row_length(self) -> int:
        """The capacity of a row, in tokens."""
        return self.manifest.row_length

    @property
    def longest_allowed(self) -> int:
        """Most tokens that a piece may have by the configuration, with padding."""
        return self.manifest.longest_padded

    @property
    def max_docs(self) -> int:
        """Maximum number of documents in one row."""
        return max(shard.max_docs for shard in self._shards)

    @property
    def highest_id(self) -> int:
        """The highest token id."""
        return max((shard.highest_id for shard in self._shards), default=0)

    @cached_property
    def longest(self) -> int:
        """No piece has more tokens than this, with padding.

        It is the length of the longest packed document and the most padding that a last piece of a row can have, but at
        most what the configuration allows.

        Raises:
            IntegrityError: the document table is missing or damaged.
        """
        import pyarrow.compute as pc

        packed = self._reader.documents(["tokens"], {"outcome": [PACKED_OUTCOME]})
        tokens = pc.max(packed.column(0)).as_py() or 0  # of the only column, "tokens"; 0 if nothing is packed
        # A row is padded to a multiple of `alignment.row` behind its last piece: by one token less than that at most.
        return int(min(self.longest_allowed, tokens + self.manifest.pack.alignment.row - 1))

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the rows and their order, used to refuse states of another dataset."""
        text = "".join(f"{shard.hash} {shard.rows}\n" for shard in self._shards)
        return short_hash(text.encode(), size=16)

    @cached_property
    def lineage(self) -> dict[str, str]:
        """The manifest's hash under `LINEAGE`, for the configuration that a log shows."""
        return {LINEAGE: self.manifest.hash}

    def row(self, index: int) -> Row:
        """Row `index`. Raises IndexError beyond the last one, and IntegrityError if its file was changed."""
        batch, number = self._locate(index)
        return batch.row(number)

    def neighbours_joined(self, indices: Sequence[int]) -> Iterator[Row]:
        """Rows in the order of `indices`. Rows that stand one after another in a record batch come as one Row.

        Of rows 7 8 9 3 4, the first Row has 7 to 9, and the second 3 and 4. This saves Python's time for every row: a
        batch of 32 rows of 4,096 tokens in stored order is made in 115 µs in place of 290, on two busy cores, from the
        page cache. Where no two are neighbours, the search for them adds 4 %.

        Raises:
            IndexError: there is no such row.
            IntegrityError: its file was changed.
        """
        place = 0  # in `indices`
        while place < len(indices):
            first = indices[place]
            batch, number = self._locate(first)
            count = 1
            while (
                place + count < len(indices)
                and indices[place + count] == first + count  # its neighbour,
                and number + count < len(batch)  # in the same record batch
            ):
                count += 1
            yield batch.rows(number, number + count)
            place += count

    def _locate(self, index: int) -> tuple[RowBatch, int]:
        """The record batch of row `index`, and the number of the row in it.

        Raises:
            IndexError: there is no such row.
            IntegrityError: its file was changed.
        """
        shard_number = self.shard_of(index)
        shard: _Shard = self._shard(shard_number)
        return shard.locate(index - self._starts[shard_number])

    def costs(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(N,) costs of rows, in units of one token's matrix multiplications. Opens no shard."""
        sizes = self._sizes
        sizes.file.check()  # reading a mapped file that was cut would kill the process
        return sizes.tokens[rows] + _PAIR_COST * sizes.squares[rows]

    def origins(self, doc_ids: Collection[int]) -> dict[int, DocumentOrigin]:
        """Document id → where it came from, by the document table beside the shards.

        Raises:
            IntegrityError: the table is missing or damaged.
        """
        return self._reader.origins(set(doc_ids))

    def batches(self) -> Iterator[tuple[int, RowBatch]]:
        """All record batches, each with the number of its first row. Raises IntegrityError if a file was changed."""
        for number, start in enumerate(self._starts[:-1]):
            shard: _Shard = self._shard(number)
            for begin, batch in shard.batches():
                yield start + begin, batch

    # Shards

    def shard_of(self, index: int) -> int:
        """Number of the shard that holds row `index`. Raises IndexError beyond the last row."""
        if not 0 <= index < len(self):
            raise IndexError(f"there is no row {index}; there are {len(self):,}")
        # Shards that begin at rows 0 and 3: row 2 is in shard 0, row 3 in shard 1.
        return bisect_right(self._starts, index) - 1

    def url_of(self, shard: int) -> str:
        """Full address of a shard."""
        return self.files.where(self._shards[shard].name)

    def fetch(self, shard: int) -> None:
        """Download a shard into the cache, without keeping it open."""
        self.files.map(self._shards[shard])

    def _open(self, shard: int) -> "_Shard":
        """Map a shard. Only `_shard` calls it, which keeps what it gives."""
        file, batches = self._reader.map_shard(self._shards[shard])
        return _Shard(file, batches)

    @cached_property
    def _sizes(self) -> RowSizes:
        """The sizes of all rows, from a file beside the shards."""
        return self._reader.row_sizes(self._split)


class _Shard:
    """One mapped shard: its record batches, and the first row of each."""

    def __init__(self, file: MappedFile, batches: list[pa.RecordBatch]) -> None:
        self._file = file
        self._starts = [0, *accumulate(batch.num_rows for batch in batches)]
        # The lengths of all columns are compared here, once, and not again for each row.
        self._batches = [RowBatch(batch, file.where) for batch in batches]

    def batches(self) -> Iterator[tuple[int, RowBatch]]:
        """Its record batches, each with the number of its first row in the shard."""
        for begin, batch in zip(self._starts, self._batches, strict=False):  # the last start is the end of the shard
            self._file.check()
            yield begin, batch

    def locate(self, index: int) -> tuple[RowBatch, int]:
        """The record batch of row `index` of the shard, and the number of the row in it."""
        self._file.check()
        # Batches that begin at rows 0 and 3: row 2 is in batch 0, row 3 in batch 1.
        number = bisect_right(self._starts, index) - 1
        return self._batches[number], index - self._starts[number]


def _finished_manifest(files: DatasetFiles) -> Manifest:
    """The manifest of a finished dataset.

    Raises:
        InputError: there is no finished dataset.
        IntegrityError: the manifest is damaged, or of another version of packtrain.
    """
    manifest = read_manifest(files)
    if manifest is not None:
        return manifest
    state = f"has no {MANIFEST}, so it is not a finished dataset"
    if files.is_local and not files.folder.is_dir():
        state = "is a file" if files.folder.exists() else "does not exist"
    raise InputError(f"{files.address} {state}; give the folder that `packtrain run` wrote")
