"""The tasks of an export: check whether a shard's rows fit into the format, and write its files."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain

import msgspec
import pyarrow as pa

from ...schemas.errors import InputError, IntegrityError
from ...schemas.jsontext import decode_note
from ...schemas.manifest import ShardRecord
from ...stages.exchange.exchange_rows import ExchangeRows, MisfitError
from ..dataset.open import read_shard
from ..dataset.padding_check import check_padding
from ..dataset.verify import check_rows
from ..dataset.weight_check import check_weights
from ..store.checksummed import seal, unseal
from ..store.open import Store
from .options import ExportOptions
from .shard_writers import WRITERS, Drafts, ExportedFile, ShardCounts, ShardPlace

BATCH_ROWS = 512
"""Most rows in memory at a time."""
BATCH_TOKENS = 1 << 22
"""Most tokens in memory at a time, if all rows were full; at least one row."""


@dataclass(frozen=True, slots=True)
class ExportTask:
    """One shard."""

    dataset: Store
    shard: ShardRecord
    first_row: int
    """The split's rows before this shard, for messages."""
    place: ShardPlace
    options: ExportOptions
    out: Store | None
    """None to check only."""

    @property
    def destination(self) -> Store | None:
        """The store that holds the task's record."""
        return self.out

    @property
    def record(self) -> str:
        """Name of the task's record."""
        return f"_run/{self.place.split}/{self.place.index:05d}.json"

    def run(self) -> "ExportResult":
        """See `export_shard`."""
        return export_shard(self)

    def __str__(self) -> str:
        return f"{self.options.to} from {self.dataset.where(self.shard.name)}"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What became of a shard."""

    split: str
    index: int
    files: tuple[ExportedFile, ...]
    counts: ShardCounts


def export_shard(task: ExportTask) -> ExportResult:
    """Run one task: write the shard's files, then its record.

    Raises:
        InputError: the shard is damaged, or a row does not fit into the format.
    """
    counts, row = ShardCounts(), 0
    with ExitStack() as stack:
        writer = WRITERS[task.options.to](Drafts(task.out, stack), task.place, task.options)
        for batch in _batches(task):
            try:
                counts = counts.plus(writer.add(ExchangeRows.of(batch), batch))
            except MisfitError as error:
                at = task.first_row + row + error.row
                raise InputError(
                    f"{task.dataset.where(task.shard.name)}: row {at} of split {task.place.split} cannot be exported "
                    f"to {task.options.to}: {error}"
                ) from None
            row += batch.num_rows
        result = ExportResult(task.place.split, task.place.index, tuple(writer.close()), counts)
    if (counts.rows, counts.tokens, counts.trained) != (task.shard.rows, task.shard.tokens, task.shard.trained):
        raise _damaged(task, "its rows, tokens or trained labels are not those of the manifest")
    if task.out is not None:
        task.out.replace_bytes(task.record, seal(msgspec.json.encode(result)))
    return result


def read_result(out: Store, record: str) -> ExportResult | None:
    """The result of an earlier run of a task; None if there is none, or one of its files is missing or incomplete."""
    data = unseal(out.read(record))
    if data is None:
        return None
    try:
        result = decode_note(data, ExportResult)
    except msgspec.ValidationError:
        return None  # written by another version
    sound = all(out.size(file.record.name) == file.record.bytes for file in result.files)
    return result if sound else None


def _batches(task: ExportTask) -> Iterator[pa.RecordBatch]:
    """The rows of the shard, checked."""
    row, place = task.first_row, task.place
    count = max(1, min(BATCH_ROWS, BATCH_TOKENS // place.max_length))
    try:
        for whole in read_shard(task.dataset, task.shard, place.schema):
            for start in range(0, whole.num_rows, count):
                batch = whole.slice(start, count)
                more = check_padding(batch, place.alignment, place.pad_id), check_weights(batch)
                for bad, what in chain(check_rows(batch, place.max_length), *more):
                    raise _damaged(task, f"row {row + bad}: {what}")
                yield batch
                row += batch.num_rows
    except IntegrityError as error:
        raise InputError(str(error)) from error


def _damaged(task: ExportTask, what: str) -> InputError:
    return InputError(
        f"{task.dataset.where(task.shard.name)} is damaged: {what}; packtrain repair {task.dataset.url} rebuilds it"
    )
