"""Random access to the packed rows of one dataset, local or remote."""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from threading import Lock
from typing import Any

from ...schemas.config.hints import did_you_mean
from ...schemas.errors import InputError, IntegrityError, PacktrainError
from ...schemas.jsontext import parse_json
from ...schemas.manifest import Manifest
from ...schemas.names import MANIFEST
from ...schemas.rows import ROW_SIZES_NAME
from .arrow_shard import Chunk, PackedRow, RowSpan, Shard, open_shard
from .row_sizes import RowSizes
from .shard_files import CACHE_BYTES, CachedFile, LocalShardFiles, ShardFiles, Verify, open_shard_files

DOCUMENTS = "documents.parquet"
OPEN_SHARDS = 512
"""Maximum number of mapped shards. Systems allow a process about 65,000 mappings; reopening a shard takes a
millisecond.
"""


MAKE_HOLDOUT = "`holdout: {fraction: 0.02}` in the run's configuration makes one"
"""Text that says how to get a split `holdout`."""


def held_room(cache_bytes: int) -> int:
    """Maximum bytes of a cache that one process keeps in use; mapped files cannot be evicted, and other ranks share the
    cache.
    """
    return cache_bytes // (4 * int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


class PackedRows:
    """All rows of one split, in the order of the shards. Thread-safe.

    Args:
        where: folder or URL that `packtrain run` wrote.
        split: `train`, or `holdout` if there is one.
        cache, cache_bytes, storage_options, verify: see `shard_files.open_shard_files`.

    Raises:
        InputError: there is no finished dataset, no such split, or its shards are Parquet.
        IntegrityError: the manifest or a shard is damaged.
    """

    def __init__(
        self,
        where: str | Path,
        split: str = "train",
        *,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        storage_options: dict[str, Any] | None = None,
        verify: str = Verify.NEVER,
    ) -> None:
        self.files = open_shard_files(
            where, cache=cache, cache_bytes=cache_bytes, storage_options=storage_options, verify=verify
        )
        self.where = where
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
        self.split = split
        self.shards = record.shards
        self._starts = [0, *accumulate(shard.rows for shard in self.shards)]
        self._arguments = {
            "cache": cache,
            "cache_bytes": cache_bytes,
            "storage_options": storage_options,
            "verify": verify,
        }
        self._room = float("inf") if isinstance(self.files, LocalShardFiles) else held_room(cache_bytes)
        self._open: dict[int, Shard] = {}
        self._mapped = 0
        self._lock = Lock()

    def __getstate__(self) -> tuple[str | Path, str, dict[str, Any]]:
        return self.where, self.split, self._arguments

    def __setstate__(self, state: tuple[str | Path, str, dict[str, Any]]) -> None:
        where, split, arguments = state
        self.__init__(where, split, **arguments)  # type: ignore[misc]  # every process maps its own

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def max_length(self) -> int:
        """Capacity of a row, in tokens."""
        return self.manifest.max_length

    @property
    def max_docs(self) -> int:
        """Maximum number of documents in one row."""
        return max((shard.max_docs for shard in self.shards), default=0)

    @property
    def tokens_in_all(self) -> int:
        """Tokens of the split."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def shuffled(self) -> bool:
        """Whether packing shuffled the rows."""
        return bool(self.packing["shuffle"])

    @property
    def packing(self) -> dict[str, Any]:
        """The section `pack` of the configuration that made the dataset."""
        return dict(self.manifest.plan["config"]["pack"])

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the split's rows and their order, used to refuse states of another dataset."""
        digest = hashlib.blake2b(digest_size=16)
        for shard in self.shards:
            digest.update(f"{shard.hash} {shard.rows}\n".encode())
        return digest.hexdigest()

    def row(self, index: int) -> PackedRow:
        """Return row `index`. Raises IndexError beyond the last one."""
        chunk, at = self._find(index)
        tokens, docs = slice(chunk.tokens[at], chunk.tokens[at + 1]), slice(chunk.docs[at], chunk.docs[at + 1])
        ids, labels, positions, lengths, starts, doc_ids = chunk.values
        unpadded = None if chunk.unpadded is None else chunk.unpadded[docs]
        weights = None if chunk.weights is None else chunk.weights[tokens]
        return PackedRow(
            ids[tokens],
            labels[tokens],
            positions[tokens],
            lengths[docs],
            starts[docs],
            doc_ids[docs],
            seq_lengths_unpadded=unpadded,
            loss_weights=weights,
        )

    def row_spans(self, rows: list[int]) -> Iterator[RowSpan]:
        """Return the rows in their order, with adjacent rows joined to one span."""
        begin = 0
        while begin < len(rows):
            chunk, at = self._find(rows[begin])
            end = self._joined(rows, begin, len(chunk.tokens) - 1 - at)
            after = at + end - begin
            tokens, docs = slice(chunk.tokens[at], chunk.tokens[after]), slice(chunk.docs[at], chunk.docs[after])
            ids, labels, positions, lengths, _, _ = chunk.values
            unpadded = None if chunk.unpadded is None else chunk.unpadded[docs]
            span = RowSpan(ids[tokens], labels[tokens], positions[tokens], lengths[docs], seq_lengths_unpadded=unpadded)
            if after > at + 1:
                span.bounds = chunk.tokens[at : after + 1].tolist(), chunk.docs[at : after + 1].tolist()
            if chunk.weights is not None:
                span.loss_weights = chunk.weights[tokens]
            yield span
            begin = end

    @cached_property
    def sizes(self) -> RowSizes:
        """Size of every row. Opens no shard."""
        name = self.shards[0].name.partition("shards/")[0] + ROW_SIZES_NAME
        return RowSizes(self._file(name), len(self), self.files.url(name))

    @property
    def longest_at_most(self) -> int:
        """Upper bound on the tokens of a document (piece). Opens no shard."""
        return self.sizes.longest(0, len(self))

    @cached_property
    def longest(self) -> int:
        """Return the tokens of the longest document (piece). Opens the shards that may contain it, usually one."""
        bounds = [
            (self.sizes.longest(begin, end), number) for number, (begin, end) in enumerate(pairwise(self._starts))
        ]
        found = 0
        for bound, number in sorted(bounds, reverse=True):
            if bound <= found:
                break
            shard = self._open.get(number) or self._map(number)
            found = max(found, shard.longest)
        return found

    def shard_of(self, index: int) -> int:
        """Number of the shard that holds row `index`."""
        number = bisect_right(self._starts, index) - 1
        if not 0 <= number < len(self.shards):
            raise IndexError(f"there is no row {index}; the split {self.split!r} has {len(self):,}")
        return number

    def url_of(self, index: int) -> str:
        """Full address of the shard that holds row `index`."""
        return self.files.url(self.shards[self.shard_of(index)].name)

    def fetch(self, number: int) -> None:
        """Download shard `number` into the cache without keeping it open. Does nothing for a local folder."""
        shard = self.shards[number]
        if number not in self._open and not isinstance(self.files, LocalShardFiles):
            self.files.hold(shard.name, shard.bytes, shard.sha256).close()

    def documents(self) -> CachedFile:
        """The table of documents, as a local file."""
        return self._file(DOCUMENTS)

    def _file(self, name: str) -> CachedFile:
        for file in self.manifest.files:
            if file.name == name:
                return self.files.hold(name, file.bytes, file.sha256)
        raise IntegrityError(f"{self.files.url(MANIFEST)} does not list {name}; pack again with this version")

    @staticmethod
    def _joined(rows: list[int], begin: int, room: int) -> int:
        """Return the end of the run of adjacent rows that begins at `rows[begin]`, at most `room` rows later."""
        end, last = begin + 1, min(len(rows), begin + room)
        ahead = rows[begin] - begin
        while end < last and rows[end] == ahead + end:
            end += 1
        return end

    def _find(self, index: int) -> tuple[Chunk, int]:
        """Return the chunk that holds a row, and the row's number in it."""
        number = self.shard_of(index)
        index -= self._starts[number]
        shard = self._open.get(number) or self._map(number)
        at = bisect_right(shard.starts, index) - 1
        return shard.chunk(at), index - shard.starts[at]

    def _map(self, number: int) -> Shard:
        record = self.shards[number]
        with self._lock:
            # Close shards in the order of opening, before the new one uses space. A row in use keeps its memory mapped,
            # but does not keep its file.
            while self._open and (len(self._open) >= OPEN_SHARDS or self._mapped + record.bytes > self._room):
                oldest = next(iter(self._open))
                del self._open[oldest]
                self._mapped -= self.shards[oldest].bytes
        held = self.files.hold(record.name, record.bytes, record.sha256)
        shard = open_shard(held, record, self.files.url(record.name))
        with self._lock:
            if number not in self._open:
                self._open[number] = shard
                self._mapped += record.bytes
        return shard


def read_manifest(files: ShardFiles) -> Manifest:
    """Read the manifest of a finished dataset.

    Raises:
        InputError: there is no finished dataset.
        IntegrityError: the manifest cannot be read.
    """
    url = files.url(MANIFEST)
    try:
        return Manifest.from_json(parse_json(files.read(MANIFEST)))
    except FileNotFoundError:
        if isinstance(files, LocalShardFiles) and not files.folder.exists():
            raise InputError(f"{files.where} does not exist; give the folder that `packtrain run` wrote") from None
        raise InputError(f"{files.where} has no {MANIFEST}, so it is not a finished dataset{_above(files)}") from None
    except NotADirectoryError:
        raise InputError(f"{files.where} is a file; give the folder that `packtrain run` wrote") from None
    except PacktrainError:  # the error's own message says more
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"{url} is not a manifest of this version of packtrain ({error!r}); packtrain repair rebuilds it"
        ) from error


def _above(files: ShardFiles) -> str:
    """Return a hint for a user who gave a split's folder."""
    if not isinstance(files, LocalShardFiles):
        return ""
    folder = files.folder.absolute()
    if not (folder.parent / MANIFEST).exists():
        return ""
    return f"; for a part of it, open {folder.parent} with split={folder.name!r}"


def document_names(rows: PackedRows, doc_ids: list[int]) -> dict[int, tuple[str, str, str, int]]:
    """Read, for each document id, (example id, source, file, line) from the table beside the shards.

    Raises:
        IntegrityError: the table is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = ["doc_id", "id", "source", "file", "line"]
    try:
        held = rows.documents()
        table = pq.read_table(held.path, columns=columns, filters=[("doc_id", "in", sorted(set(doc_ids)))])
        held.close()
    except (OSError, pa.ArrowException, IntegrityError) as error:
        url = rows.files.url(DOCUMENTS)
        raise IntegrityError(f"{url} is missing or damaged ({error}); run the same configuration again") from error
    ids, *rest = (table.column(name).to_pylist() for name in columns)
    return dict(zip(ids, zip(*rest, strict=True), strict=True))
