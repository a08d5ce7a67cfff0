"""One shard: lays out the rows that a layout plans for it, and puts the shard and its record. A shard with a record is
finished, whether this process, an earlier one or a concurrent one has made it.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

from ...schemas.dataset.manifest import ShardRecord
from ...schemas.errors import IntegrityError
from ...schemas.tables.columns import with_usual_names
from ...stages.mask.policy import Mask
from ..store.open_store import Store
from ..store.sealed_notes import get_note, put_note
from .planned_rows import Account, PlannedRows, RowForm, Written
from .segments import Segments
from .table import NAME, PIECE, Documents, open_table


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to lay out: rows `first_row:last_row` of one window's layout, which have its pieces
    `first_piece:last_piece`.
    """

    index: int
    """Number of the shard within its split."""
    first_row: int
    last_row: int
    first_piece: int
    last_piece: int


@dataclass(frozen=True, slots=True)
class PackResult:
    """A shard, and its counts for the ledger."""

    file: ShardRecord
    """Name, size, hash and figures of the shard."""
    written: dict[int, Written]
    """Number of a source → what the shard holds of it."""
    record: str
    """Name of the record of this result."""


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to write: some rows of a window's layout."""

    out: Store
    cache: Store
    layout: str
    """Name of the window's layout in `out`, where the table is; see `window_plan.WindowPlan`."""
    prefix: str
    """Folder of the split's shards: `shards`, or `train/shards` and `holdout/shards`."""
    shard: ShardPlan
    masks: tuple[Mask, ...]
    """The mask of each source."""
    form: RowForm

    @property
    def record(self) -> str:
        """Name of the shard's record."""
        return f"_run/{self.prefix}/{self.shard.index:05d}.json"

    def __str__(self) -> str:
        return f"{self.prefix}, shard {self.shard.index} (rows {self.shard.first_row:,} to {self.shard.last_row:,})"

    def run(self) -> PackResult:
        """Lay out, write, put the shard, put its record.

        Raises:
            IntegrityError: an earlier run of the task wrote a different shard.
        """
        shard = self.shard
        schema = self.form.schema
        account = Account()  # counts what is written, and not what was planned
        rows = shard.last_row - shard.first_row
        tokens = 0
        max_docs = 0  # pieces of the fullest row
        highest_id = 0
        with self.out.draft() as draft:
            # A stream, not a file, because datasets.load_from_disk reads streams.
            with pa.ipc.new_stream(pa.PythonFile(draft.file, mode="w"), schema) as writer:
                if not rows:
                    # datasets cannot open a stream without a batch.
                    writer.write_batch(pa.RecordBatch.from_pylist([], schema))
                else:
                    planned, max_docs = self._planned()
                    tokens = int(planned.tokens.sum())
                    for batch in planned.batches(account):
                        writer.write_batch(batch)
                        renamed = with_usual_names(batch)
                        if "input_ids" in renamed.schema.names:  # pairs have none
                            highest_id = max(highest_id, pc.max(renamed.column("input_ids").values).as_py() or 0)
            size_and_hash = draft.size_and_hash
            # The content is in the name, so that another content never takes the place of a shard.
            name = f"{self.prefix}/{shard.index:05d}-{size_and_hash.hash[:16]}.arrow"
            self.out.put(draft, name)
        trained = sum(written.trained for written in account.values())
        record = ShardRecord(name, size_and_hash.bytes, size_and_hash.hash, rows, tokens, trained, max_docs, highest_id)
        result = PackResult(record, dict(sorted(account.items())), self.record)
        self._put_record(result)
        return result

    def _planned(self) -> tuple[PlannedRows, int]:
        """The rows of the shard, and how many pieces the fullest of them has."""
        shard = self.shard
        table = self.out.local(NAME)  # the file of the columns of documents
        stat = table.stat()
        documents, segments = _opened(table, (stat.st_ino, stat.st_mtime_ns), self.cache, self.masks)
        offsets = _numbers(self.out.local(f"{self.layout}.rows"), np.int64, shard.first_row, shard.last_row + 1)
        pieces = _numbers(self.out.local(f"{self.layout}.pieces"), PIECE, shard.first_piece, shard.last_piece)
        # Of a shard that begins with piece 7, rows that begin at 7 and 9 of all pieces begin at 0 and 2 of these.
        rows = PlannedRows(documents, segments, pieces, offsets - shard.first_piece, self.form)
        return rows, int((offsets[1:] - offsets[:-1]).max())

    def _put_record(self, result: PackResult) -> None:
        """Put the record of a shard that lies there, unless an earlier run of the task has put it.

        Raises:
            IntegrityError: the earlier run wrote a different shard.
        """
        # After the shard, so that a record names a file that is there. A shard without a record is written again.
        earlier = get_note(self.out, self.record, PackResult)
        if earlier is None:
            put_note(self.out, self.record, result)
        elif earlier.file != result.file:
            raise IntegrityError(
                f"packing is not deterministic: {self} was {earlier.file.name} before and is {result.file.name} now; "
                "please report it with the configuration"
            )


def _numbers(path: Path, kind: DTypeLike, first: int, last: int) -> NDArray[Any]:
    """Numbers `first` to `last - 1` of a file that holds nothing but numbers of a kind."""
    values = np.fromfile(path, kind, last - first, offset=first * np.dtype(kind).itemsize)
    if len(values) != last - first:
        raise IntegrityError(f"{path} is shorter than it was written; run again")
    return values


@lru_cache(maxsize=1)
def _opened(table: Path, stamp: tuple[int, int], cache: Store, masks: tuple[Mask, ...]) -> tuple[Documents, Segments]:
    """Map the table, and keep it for the next shard of the same run.

    Args:
        stamp: inode and time of modification of the file. They make the table of another run another argument: a
            process may work for several runs, one after the other, whose tables have the same path.
    """
    documents, origins, _ = open_table(table)
    paths = [cache.local(part) for part in origins.parts]
    return documents, Segments(paths, origins.segments, origins.sources, masks)


def forget_table() -> None:
    """Release the mapped files."""
    _opened.cache_clear()
