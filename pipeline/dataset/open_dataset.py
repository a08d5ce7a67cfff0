"""A finished dataset in a store, read through its manifest. A dataset is finished if and only if it has one."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.dataset.files import DatasetFiles
from ...schemas.dataset.manifest import Manifest, ShardRecord, read_manifest
from ...schemas.dataset.names import MANIFEST, PLAN
from ...schemas.dataset.reader import DatasetReader
from ...schemas.errors import InputError, IntegrityError
from ..store.local import LocalStore, check_tree
from ..store.open_store import Store, open_store, resolve_place
from ..store.run_lock import Activity, read_run_lock

if TYPE_CHECKING:
    import pyarrow as pa

EXPORT = "export.json"
"""The manifest of an export."""
_OWN = (MANIFEST, "_run", EXPORT)
"""At least one of these is in each folder that packtrain has written to."""


@dataclass(frozen=True, slots=True)
class Finished(DatasetReader):
    """A finished dataset, with the store that has it."""

    store: Store

    @classmethod
    def in_store(cls, store: Store, manifest: Manifest) -> "Finished":
        """The dataset in a store, by its manifest."""
        # A folder as a path: its name may look like a URL.
        place = store.root if isinstance(store, LocalStore) else store.url
        # `cache_bytes=None` does not limit the local copies of remote files.
        return cls(DatasetFiles(place, cache_bytes=None), manifest, store)

    def sound_batches(self, shard: ShardRecord) -> "Iterator[pa.RecordBatch]":
        """The record batches of a shard, one after another. Every row is checked for what trainers rely on, so that
        code may compute with them.

        Raises:
            IntegrityError: the shard is missing or damaged; or a row breaks an invariant: the message names the first.
        """
        first_row = 0
        for batch in self.batches(shard):
            self._require_sound(batch, shard, first_row)
            first_row += batch.num_rows
            yield batch

    def _require_sound(self, batch: "pa.RecordBatch", shard: ShardRecord, first_row: int) -> None:
        """Raise IntegrityError for the first row of a batch that breaks an invariant.

        Args:
            first_row: the row of the shard that the batch begins with.
        """
        from .row_checks import row_problems

        for row, problem in row_problems(batch, self.manifest):
            raise IntegrityError(
                f"{self.store.where(shard.name)}, row {first_row + row:,}: {problem}; packtrain verify names all that "
                "is damaged, and verify --repair rebuilds it"
            )

    def row(self, index: int, split: str = "train") -> "pa.RecordBatch":
        """Return one packed row, as a batch of one.

        Raises:
            InputError: the split or the row does not exist.
            IntegrityError: it is damaged.
        """
        record = self.split(split)
        if not 0 <= index < record.rows:
            rows = f"rows 0 to {record.rows - 1}" if record.rows else "no rows"
            raise InputError(f"there is no row {index}; split {split!r} has {rows}")
        # Of shards with 3 and 2 rows, row 4 of the split is row 1 of the second.
        for shard in record.shards:
            if index >= shard.rows:
                index -= shard.rows
                continue
            first_row = 0
            for batch in self.batches(shard):
                if index < first_row + batch.num_rows:
                    row = batch.slice(index - first_row, 1)
                    self._require_sound(row, shard, index)
                    return row
                first_row += batch.num_rows
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
        raise InputError(f"{folder} {_unfinished(store)}")
    return Finished.in_store(store, manifest)


def open_output(folder: str | Path) -> Store:
    """Open the store of a folder that a run wrote, given by path or URL.

    All code that reads or repairs a dataset opens it here. The check here, together with the names that `Manifest`
    refuses, makes sure that no path leads out of the folder and that every file in it is a regular file.

    Raises:
        IntegrityError: the folder contains a link that leads out, a named pipe or the like.
    """
    store = open_store(resolve_place(str(folder), Path.cwd()))
    # In a folder without any of these names, nothing of ours is read, so links in it are none of our business.
    if isinstance(store, LocalStore) and any(os.path.lexists(store.root / name) for name in _OWN):
        check_tree(store.root)
    return store


def _unfinished(store: Store) -> str:
    """What is known of a place without a manifest, as the end of a sentence that begins with its name."""
    if store.exists(EXPORT):
        return "is an export, not a dataset; give the dataset that it was made from"
    holder, activity = read_run_lock(store)
    if holder is None and not store.exists(PLAN):
        # No run was ever here.
        return f"has no {MANIFEST}, so it is not a finished dataset; give the folder that `packtrain run` wrote"
    state = "Run the same configuration again to continue where it stopped"
    if holder is not None and activity is Activity.WORKING:
        state = f"{holder} is working on it"
    elif holder is not None and holder.error is not None:
        state = (
            f"The run ended with: {holder.error}. Once that is corrected, the same command continues where it stopped"
        )
    return f"is not finished: it has no {MANIFEST}. {state}"
