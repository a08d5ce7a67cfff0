"""Reading a finished dataset, through its manifest only."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..schemas.errors import InputError, IntegrityError, PacktrainError
from ..schemas.hints import did_you_mean
from ..schemas.manifest import Manifest, ShardRecord
from ..schemas.rows import PACKED, PREFERENCE
from .manifests import open_output, read_manifest
from .store import LocalStore
from .stores import Store


@dataclass(frozen=True, slots=True)
class Finished:
    """A dataset whose manifest is there."""

    store: Store
    manifest: Manifest

    def batches(self, shard: ShardRecord) -> Iterator[pa.RecordBatch]:
        """The record batches of a shard, mapped where the format allows.

        Raises:
            IntegrityError: the shard is missing, damaged, or has other rows than its record says.
        """
        rows, path = 0, self.store.where(shard.name)
        try:
            file = self.store.local(shard.name, bytes=shard.bytes, hash=shard.hash)
            if shard.name.endswith(".parquet"):
                for batch in pq.ParquetFile(file).iter_batches():
                    rows += batch.num_rows
                    yield self._checked(batch)
            else:
                with pa.memory_map(str(file)) as source:
                    for batch in pa.ipc.open_stream(source):
                        rows += batch.num_rows
                        yield self._checked(batch)
        except FileNotFoundError:
            raise IntegrityError(f"{path} is missing; run the same configuration again to write it anew") from None
        except PacktrainError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            raise IntegrityError(f"{path} cannot be read: {error}; packtrain repair makes it again") from error
        if rows != shard.rows:
            # A stream that is cut between two batches reads as shorter, without an error.
            raise IntegrityError(
                f"{path} has {rows:,} rows, but the manifest says {shard.rows:,}; packtrain repair makes it again"
            )

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch whose columns and offsets are what they must be, so that reading it stays within its memory."""
        schema = PREFERENCE if self.manifest.preference else PACKED
        if [(field.name, field.type) for field in batch.schema] != [(field.name, field.type) for field in schema]:
            raise ValueError(f"its columns are not those of a row, but {batch.schema.names}")
        batch.validate(full=True)
        return batch

    def row(self, index: int, split: str = "train") -> pa.RecordBatch:
        """One packed row, as a batch of one.

        Raises:
            InputError: there is no such split or row.
        """
        record = self.manifest.splits.get(split)
        if record is None:
            known = self.manifest.splits
            raise InputError(f"there is no split {split!r}; there are: {', '.join(known)}{did_you_mean(split, known)}")
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
        folder: where it is, or its URL.

    Raises:
        InputError: there is none in the folder.
        IntegrityError: its manifest is damaged; something in it leads out of the folder, or is not a file.
    """
    store = open_output(folder)
    if isinstance(store, LocalStore) and not store.root.is_dir():
        state = "is a file" if store.root.exists() else "does not exist"
        raise InputError(f"{folder} {state}; give the folder that `packtrain run` wrote")
    manifest = read_manifest(store)
    if manifest is None:
        raise InputError(
            f"{folder} has no manifest.json: nothing finished is in it; give the folder that `packtrain run` wrote"
        )
    return Finished(store, manifest)
