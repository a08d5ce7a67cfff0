"""The one reader of finished datasets: its files through its manifest."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InputError, IntegrityError, did_you_mean
from ..rows import ROW_SIZES_NAME
from ..tables.columns import schema_of
from .document_table import Conditions, DocumentOrigin, origins_of, read_documents
from .files import DatasetFiles, MappedFile
from .manifest import FileRecord, Manifest, ShardRecord, SplitRecord
from .names import DOCUMENT_TABLE, MANIFEST
from .shards import RowSizes, read_batches, read_row_sizes

if TYPE_CHECKING:
    import pyarrow as pa

MAKE_HOLDOUT = "`holdout: {fraction: 0.02}` in the run's configuration makes one"
"""Text that says how to get a split `holdout`."""


@dataclass(frozen=True, slots=True)
class DatasetReader:
    """A finished dataset: one that has a manifest. Each method maps the file that it reads, and none is kept open."""

    files: DatasetFiles
    manifest: Manifest

    def split(self, name: str) -> SplitRecord:
        """A split's shards, rows and tokens.

        Raises:
            InputError: there is no such split; says which there are.
        """
        splits = self.manifest.splits
        if name in splits:
            return splits[name]
        # If `holdout` is missing, the run was not configured to make one. Any other name is most likely misspelt.
        fix = f"; {MAKE_HOLDOUT}" if name == "holdout" else did_you_mean(name, splits)
        raise InputError(f"{self.files.address} has no split {name!r}; it has {', '.join(splits)}{fix}")

    def file(self, name: str) -> FileRecord:
        """A file beside the shards.

        Raises:
            IntegrityError: the manifest does not list it.
        """
        for record in self.manifest.files:
            if record.name == name:
                return record
        raise IntegrityError(f"{self.files.where(MANIFEST)} does not list {name}; pack again with this version")

    def map_shard(self, shard: ShardRecord) -> tuple[MappedFile, "list[pa.RecordBatch]"]:
        """A shard and its record batches, of which only the headers are read.

        Raises:
            IntegrityError: it is missing or damaged, or does not match its record.
        """
        file = self.files.map(shard)
        return file, list(read_batches(file, shard.rows, schema_of(self.manifest.schema), validate=False))

    def batches(self, shard: ShardRecord) -> "Iterator[pa.RecordBatch]":
        """The record batches of a shard, whose columns, offsets and values are checked, one after another.

        Raises:
            IntegrityError: the shard is missing or does not match its record; or, while iterating, a batch is damaged.
        """
        file = self.files.map(shard, ahead=True)  # every page of it will be needed
        return read_batches(file, shard.rows, schema_of(self.manifest.schema), validate=True)

    def row_sizes(self, split: str) -> RowSizes:
        """The sizes of a split's rows.

        Preference pairs that are not packed have no such file. Nor has a split without shards: the name of its first
        shard says where the file is.

        Raises:
            IntegrityError: their file is missing or damaged, or does not match the manifest.
        """
        record = self.split(split)
        return read_row_sizes(self.files.map(self.file(row_sizes_name(record))), record.rows)

    def documents(self, columns: Sequence[str] | None = None, conditions: Conditions | None = None) -> "pa.Table":
        """The document table: a row for each example.

        Args:
            columns: which to read; None for all.
            conditions: only documents that meet all of them; None for every document.

        Raises:
            IntegrityError: documents.parquet is missing or damaged.
        """
        record = self.file(DOCUMENT_TABLE)
        return read_documents(self.files.map(record), record.hash, columns, conditions)

    def origins(self, doc_ids: Collection[int]) -> dict[int, DocumentOrigin]:
        """Document id → where it came from. Ids that the document table does not have are left out.

        Raises:
            IntegrityError: documents.parquet is missing or damaged.
        """
        return origins_of(self.documents(("doc_id", *DocumentOrigin._fields), {"doc_id": doc_ids}))


def row_sizes_name(split: SplitRecord) -> str:
    """The file of a split's row sizes, beside the folder of its shards: `train/rows.arrow`."""
    return split.shards[0].name.partition("shards/")[0] + ROW_SIZES_NAME
