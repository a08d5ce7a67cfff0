"""A finished dataset, read through its manifest. A dataset is finished if and only if it has one. Cheap to import."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.dataset.manifest import Manifest, ShardRecord
from ...schemas.dataset.names import MANIFEST, PLAN
from ...schemas.errors import InputError, IntegrityError, PacktrainError, did_you_mean
from ...schemas.files.arrow_sizes import require_bounded
from ...schemas.files.foreign import map_regular
from ..store.local import LocalStore, SizeAndHash, check_tree, hash_file
from ..store.open_store import Store, open_store, resolve_place
from ..store.run_lock import read_run_lock

if TYPE_CHECKING:
    import pyarrow as pa

EXPORT = "export.json"
"""The manifest of an export."""
_OWN = (MANIFEST, "_run", EXPORT)
"""At least one of these is in each folder that packtrain has written to."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished dataset: one that has a manifest."""

    store: Store
    manifest: Manifest

    def batches(self, shard: ShardRecord) -> "Iterator[pa.RecordBatch]":
        """The record batches of a shard, memory-mapped; columns and offsets are checked.

        Raises:
            IntegrityError: the shard is missing, damaged, or does not match its record.
        """
        import pyarrow as pa

        from ...schemas.tables.columns import schema_of

        path, rows, columns = self.store.where(shard.name), 0, schema_of(self.manifest.schema)
        again = "packtrain verify --repair rebuilds it"
        try:
            data = map_regular(self.store.local(shard))
            require_bounded(data, 0)
            for batch in pa.ipc.open_stream(data):
                if [(one.name, one.type) for one in batch.schema] != [(one.name, one.type) for one in columns]:
                    raise ValueError(f"it has the wrong columns: {batch.schema.names}")
                batch.validate(full=True)
                rows += batch.num_rows
                yield batch
        except FileNotFoundError:
            raise IntegrityError(f"{path} is missing; {again}") from None
        except PacktrainError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            raise IntegrityError(f"{path} cannot be read: {error}; {again}") from error
        if rows != shard.rows:  # a stream that was cut short between two batches is read without an error
            raise IntegrityError(f"{path} has {rows:,} rows, but the manifest says {shard.rows:,}; {again}")

    def sound_batches(self, shard: ShardRecord) -> "Iterator[pa.RecordBatch]":
        """As `batches`, of rows that keep the invariants of `row_checks`, for those who compute with them.

        Raises:
            IntegrityError: as `batches`; or names the first row that does not.
        """
        first = 0
        for batch in self.batches(shard):
            self._require_sound(batch, shard, first)
            first += batch.num_rows
            yield batch

    def _require_sound(self, batch: "pa.RecordBatch", shard: ShardRecord, first: int) -> None:
        """Raise IntegrityError for the first row of a batch that breaks an invariant.

        Args:
            first: the row of the shard that its first one is.
        """
        from .row_checks import row_problems

        for row, what in row_problems(batch, self.manifest):
            raise IntegrityError(
                f"{self.store.where(shard.name)}, row {first + row:,}: {what}; packtrain verify names all that is "
                "damaged, and verify --repair rebuilds it"
            )

    def row(self, index: int, split: str = "train") -> "pa.RecordBatch":
        """Return one packed row, as a batch of one.

        Raises:
            InputError: the split or the row does not exist.
            IntegrityError: it is damaged.
        """
        record = self.manifest.splits.get(split)
        if record is None:
            known = self.manifest.splits
            raise InputError(
                f"there is no split {split!r}; choose one of {', '.join(known)}{did_you_mean(split, known)}"
            )
        if not 0 <= index < record.rows:
            rows = f"rows 0 to {record.rows - 1}" if record.rows else "no rows"
            raise InputError(f"there is no row {index}; split {split!r} has {rows}")
        for shard in record.shards:
            if index >= shard.rows:
                index -= shard.rows
                continue
            first = 0
            for batch in self.batches(shard):
                if index < first + batch.num_rows:
                    row = batch.slice(index - first, 1)
                    self._require_sound(row, shard, index)
                    return row
                first += batch.num_rows
        raise IntegrityError("the shards have fewer rows than the manifest says; packtrain verify names them")

    def names(self, doc_ids: Collection[int]) -> dict[int, tuple[str, str]]:
        """Doc id → (id, source), for the doc ids that documents.parquet has; only row groups with some are read.

        Raises:
            IntegrityError: the file is missing or damaged.
        """
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        from ...schemas.arrays import numbers
        from ..pack.documents import NAME

        wanted = np.array(sorted(doc_ids), np.int64)
        try:
            record = {file.name: file for file in self.manifest.files}[NAME]
            path = self.store.local(record)
            if hash_file(path) != SizeAndHash(record.bytes, record.hash):  # pyarrow ends the process over some damage
                raise ValueError("its content does not match the manifest")
            with pq.ParquetFile(pa.BufferReader(map_regular(path, ahead=False))) as file:
                held = (file.metadata.row_group(group).column(0).statistics for group in range(file.num_row_groups))
                groups = [at for at, one in enumerate(held) if ((wanted >= one.min) & (wanted <= one.max)).any()]
                table = file.read_row_groups(groups, ["doc_id", "id", "source"])
            # Not by the filters of pyarrow.dataset, which imports pandas where it is installed: 0.2 s.
            table = table.filter(pc.is_in(table["doc_id"], numbers(wanted)))
            return {row["doc_id"]: (row["id"], row["source"]) for row in table.to_pylist()}
        except (OSError, pa.ArrowException, ValueError, TypeError, AttributeError, LookupError) as error:
            raise IntegrityError(
                f"{self.store.where(NAME)} is missing or damaged ({error}); packtrain verify --repair rebuilds it"
            ) from error


def open_dataset(folder: str | Path) -> Finished:
    """Open a finished dataset.

    Args:
        folder: its path or URL.

    Raises:
        InputError: the folder has no finished dataset; says what works on it, or how the run ended.
        IntegrityError: the manifest is damaged; or something in the folder leads out of it, or is not a regular file.
    """
    store = open_output(folder)
    if isinstance(store, LocalStore) and not store.root.is_dir():
        state = "is a file" if store.root.exists() else "does not exist"
        raise InputError(f"{folder} {state}; give the folder that `packtrain run` wrote")
    manifest = read_manifest(store)
    if manifest is None:
        raise InputError(f"{folder} {_unfinished(store)}")
    return Finished(store, manifest)


def open_output(folder: str | Path) -> Store:
    """Open the store of a folder that a run wrote, given by path or URL.

    All code that reads or repairs a dataset opens it here. The check here, together with the names that `Manifest`
    refuses, makes sure that no path leads out of the folder and that every file in it is a regular file.

    Raises:
        IntegrityError: the folder contains a link that leads out, a named pipe or the like.
    """
    store = open_store(resolve_place(str(folder), Path.cwd()))
    # Of another folder nothing is read, and what it holds is not for packtrain to judge.
    if isinstance(store, LocalStore) and any(os.path.lexists(store.root / name) for name in _OWN):
        check_tree(store.root)
    return store


def read_manifest(store: Store) -> Manifest | None:
    """The manifest of a finished dataset, or None.

    Raises:
        IntegrityError: see `Manifest.read`.
    """
    data = store.read(MANIFEST)
    return None if data is None else Manifest.read(data, store.where(MANIFEST))


def _unfinished(store: Store) -> str:
    """What is known of a place without a manifest, after its name."""
    if store.exists(EXPORT):
        return "is an export, not a dataset; give the dataset that it was made from"
    holder, working = read_run_lock(store)
    if holder is None and not store.exists(PLAN):
        return f"has no {MANIFEST}, so it is not a finished dataset; give the folder that `packtrain run` wrote"
    state = "Run the same configuration again to continue where it stopped"
    if holder is not None and working:
        state = f"{holder} is working on it"
    elif holder is not None and holder.error is not None:
        state = f"The run ended with: {holder.error}. {state}"
    return f"is not finished: it has no {MANIFEST}. {state}"
