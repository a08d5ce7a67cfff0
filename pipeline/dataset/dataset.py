"""A finished dataset for people who look at it in Python: what `packtrain.open` gives."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.dataset.ledger import Ledger
from ...schemas.dataset.manifest import Manifest, SplitRecord
from ...schemas.notebook import Shown, Table
from ...schemas.units import plural
from .open_dataset import Finished, open_dataset

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, repr=False)
class Dataset(Shown):
    """A finished dataset."""

    _finished: Finished
    notes: tuple[str, ...] = ()
    """What the run said, if `packtrain.run` returned the dataset: what it found in the data, which share of the
    supervised tokens is trained, and what is not used. Empty for a dataset that was opened."""

    @property
    def path(self) -> str:
        """Its folder or URL."""
        return self._finished.store.url

    @property
    def manifest(self) -> Manifest:
        """What it was made from, and every file of it."""
        return self._finished.manifest

    @property
    def hash(self) -> str:
        """Its fingerprint: equal for equal bytes, on any machine and with any workers."""
        return self.manifest.hash

    @property
    def splits(self) -> Mapping[str, SplitRecord]:
        """`train`, and `holdout` if there is one: their shards, rows and tokens."""
        return self.manifest.splits

    @property
    def ledger(self) -> Ledger:
        """What became of every row, token and label, by source."""
        return self.manifest.ledger

    def documents(self) -> "pa.Table":
        """The table of all examples, packed or not, with what became of each; `to_pandas()` makes a DataFrame.

        Raises:
            IntegrityError: documents.parquet is missing or damaged.
        """
        return self._finished.documents()

    def rows(self, split: str = "train") -> "pa.Table":
        """The packed rows of a split, in their order, mapped from its shards: input_ids, labels, position_ids,
        seq_lengths, doc_starts and doc_ids; or the preference pairs.

        Raises:
            InputError: there is no such split.
            IntegrityError: a shard is missing or damaged.
        """
        import pyarrow as pa

        from ...schemas.tables.columns import schema_of

        record = self._finished.split(split)
        batches = (batch for shard in record.shards for batch in self._finished.batches(shard))
        schema = schema_of(self.manifest.schema)
        # Rows of some options have other names in the shards; these are the names that readers know.
        return pa.Table.from_batches((batch.rename_columns(schema.names) for batch in batches), schema)

    def summary(self) -> str:
        notes = f"; {plural(len(self.notes), 'note')} in .notes" if self.notes else ""
        return f"{self.path}, {self.manifest.summary()}{notes}"

    def tables(self) -> Iterator[Table]:
        if self.notes:
            yield Table("Notes of the run", ("",), [(note,) for note in self.notes])
        yield from self.manifest.tables()


def open(folder: str | Path) -> Dataset:
    """A finished dataset: its splits, its ledger, its documents and its rows.

    >>> dataset = packtrain.open("packed")
    >>> dataset.splits["train"].rows == dataset.rows("train").num_rows
    True
    >>> dataset.documents().column_names[:3]
    ['doc_id', 'id', 'source']
    >>> sorted(dataset.ledger.sources)
    ['chats', 'pairs']

    Args:
        folder: what `packtrain run` wrote, or its URL.

    Raises:
        InputError: the folder has no finished dataset; says what works on it, or how the run ended.
        IntegrityError: the manifest is damaged; or something in the folder leads out of it, or is not a regular file.
    """
    return Dataset(open_dataset(folder))
