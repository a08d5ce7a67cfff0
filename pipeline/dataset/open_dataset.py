"""Read a finished dataset through its manifest."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ...schemas.errors import InputError, IntegrityError, PacktrainError, did_you_mean
from ...schemas.manifest import Manifest, ShardRecord
from ...schemas.rows import schema_of
from ..store.local import LocalStore
from ..store.open_store import Store
from .manifests import open_output, read_manifest
from .wait import unfinished


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished dataset: one that has a manifest."""

    store: Store
    manifest: Manifest

    def batches(self, shard: ShardRecord) -> Iterator[pa.RecordBatch]:
        """The record batches of a shard; see `read_shard`."""
        return read_shard(self.store, shard, schema_of(self.manifest.schema))

    def row(self, index: int, split: str = "train") -> pa.RecordBatch:
        """Return one packed row, as a batch of one.

        Raises:
            InputError: the split or the row does not exist.
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
            for batch in self.batches(shard):
                if index < batch.num_rows:
                    return batch.slice(index, 1)
                index -= batch.num_rows
        raise IntegrityError("the shards have fewer rows than the manifest says; packtrain verify names them")


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
        raise InputError(f"{folder} {unfinished(store)}")
    return Finished(store, manifest)


def read_shard(store: Store, shard: ShardRecord, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The record batches of a shard, memory-mapped.

    Raises:
        IntegrityError: the shard is missing, damaged, or does not match its record.
    """
    rows, path = 0, store.where(shard.name)
    try:
        file = store.local(shard)
        with pa.memory_map(str(file)) as source:
            for batch in pa.ipc.open_stream(source):
                rows += batch.num_rows
                yield _checked(batch, schema)
    except FileNotFoundError:
        raise IntegrityError(f"{path} is missing; packtrain verify --repair rebuilds it") from None
    except PacktrainError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}; packtrain verify --repair rebuilds it") from error
    if rows != shard.rows:
        # A stream that was cut short between two batches is read without an error.
        raise IntegrityError(
            f"{path} has {rows:,} rows, but the manifest says {shard.rows:,}; packtrain verify --repair rebuilds it"
        )


def _checked(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch after checking columns and offsets, so that reading it stays within its memory."""
    if [(field.name, field.type) for field in batch.schema] != [(field.name, field.type) for field in schema]:
        raise ValueError(f"it has the wrong columns: {batch.schema.names}")
    batch.validate(full=True)
    return batch
