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
    """One shard to lay out: rows `first_row:last_row` of one window's layout."""

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
    """The shard."""
    written: dict[int, Written]
    """By the number of the source."""
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
        account, shard, schema = Account(), self.shard, self.form.schema
        rows, tokens, max_docs, highest = shard.last_row - shard.first_row, 0, 0, 0
        with self.out.draft() as draft:
            # A stream, not a file, because datasets.load_from_disk reads streams.
            with pa.ipc.new_stream(pa.PythonFile(draft.file, mode="w"), schema) as writer:
                if not rows:
                    writer.write_batch(pa.RecordBatch.from_pylist([], schema))  # datasets cannot open a stream without
                else:
                    planned, max_docs = self._planned()
                    tokens = int(planned.tokens.sum())
                    for batch in planned.batches(account):
                        writer.write_batch(batch)
                        usual = with_usual_names(batch)
                        if "input_ids" in usual.schema.names:  # pairs have none
                            highest = max(highest, pc.max(usual.column("input_ids").values).as_py() or 0)
            put = draft.size_and_hash
            name = f"{self.prefix}/{shard.index:05d}-{put.hash[:16]}.arrow"
            self.out.put(draft, name)
        trained = sum(one.trained for one in account.values())
        record = ShardRecord(name, put.bytes, put.hash, rows, tokens, trained, max_docs, highest)
        result = PackResult(record, dict(sorted(account.items())), self.record)
        self._note(result)
        return result

    def _planned(self) -> tuple[PlannedRows, int]:
        """The rows, and the most pieces of one."""
        shard, table = self.shard, self.out.local(NAME)
        stamp = table.stat()
        documents, segments = _opened(table, (stamp.st_ino, stamp.st_mtime_ns), self.cache, self.masks)
        offsets = _numbers(self.out.local(f"{self.layout}.rows"), np.int64, shard.first_row, shard.last_row + 1)
        pieces = _numbers(self.out.local(f"{self.layout}.pieces"), PIECE, shard.first_piece, shard.last_piece)
        rows = PlannedRows(documents, segments, pieces, offsets - shard.first_piece, self.form)
        return rows, int((offsets[1:] - offsets[:-1]).max())

    def _note(self, result: PackResult) -> None:
        earlier = get_note(self.out, self.record, PackResult)
        if earlier is None:
            put_note(self.out, self.record, result)
        elif earlier.file != result.file:
            raise IntegrityError(
                f"packing is not deterministic: {self} was {earlier.file.name} before and is {result.file.name} now; "
                "please report it with the configuration"
            )


def _numbers(path: Path, kind: DTypeLike, first: int, last: int) -> NDArray[Any]:
    """Numbers `first` to `last - 1` of a file that holds nothing else."""
    found = np.fromfile(path, kind, last - first, offset=first * np.dtype(kind).itemsize)
    if len(found) != last - first:
        raise IntegrityError(f"{path} is shorter than it was written; run again")
    return found


@lru_cache(maxsize=1)
def _opened(table: Path, stamp: tuple[int, int], cache: Store, masks: tuple[Mask, ...]) -> tuple[Documents, Segments]:
    """Map the table. Kept for the next shard of the same run.

    Args:
        stamp: of the file; a process may work for several runs.
    """
    documents, origins, _ = open_table(table)
    paths = [cache.local(part) for part in origins.parts]
    return documents, Segments(paths, origins.segments, origins.sources, masks)


def forget_table() -> None:
    """Release the mapped files."""
    _opened.cache_clear()
