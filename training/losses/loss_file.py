"""The record of a training's losses: a row for each document (piece) of each step, in its folder `losses`.

Each start of a training writes an Arrow IPC stream of its own, named after the steps that were made before it:
`after-step-50.arrows` begins with step 51. Whatever was written for these steps before is then no longer part of the
training: files from there on are deleted, and of earlier ones only the steps before are read. So every step stands
once, whatever was repeated. A stream is only appended to: what a kill cuts short is its last batch.

A document takes about 8 bytes, compressed, and each batch 1 KB more.
"""

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.errors import InputError
from ...schemas.jsontext import parse_json
from ..shard import view

_LOG = logging.getLogger(__name__)
FOLDER = "losses"
FORMAT = 1
LOSSES = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("step", pa.int32()),
            ("rank", pa.int32()),
            ("dataset", pa.int32()),
            ("row", pa.int64()),
            ("place", pa.int32()),
            ("doc_id", pa.int64()),
            ("tokens", pa.int32()),
            ("loss", pa.float32()),
        )
    ]
)
"""`step` counts from 1; `dataset` is a place in `LossRecord.datasets`; `row` is a row of its split, and `place` the
document's place in it, both from 0. `tokens` is the number of trained tokens, at least 1, and `loss` the sum of their
cross-entropies before the step."""
_NAME = re.compile(r"after-step-(\d{1,12})\.arrows")
_META = b"packtrain"
_BEGIN = b"\xff" * 4
"""The first bytes of an Arrow IPC stream."""


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """One dataset of a training, as it was then."""

    where: str
    """Folder or URL."""
    split: str
    hash: str
    """Of its manifest."""


class LossWriter:
    """Appends to the record of one start of a training. The first process alone has one.

    Args:
        out: the training's folder.
        step: number of steps made before.
        datasets: what it trains on.
    """

    def __init__(self, out: Path, step: int, datasets: Sequence[TrainedOn]) -> None:
        self._folder, self._step = out / FOLDER, step
        meta = json.dumps({"format": FORMAT, "datasets": [asdict(one) for one in datasets]})
        self._schema = LOSSES.with_metadata({_META: meta})
        self._sink: Any = None
        self._stream: Any = None
        self._failed = False

    def write(self, table: dict[str, Any]) -> None:
        """Append the documents of whole steps: arrays (D,) by the names of LOSSES.

        A disk that is full does not end a training: there is one warning, and nothing more is recorded.
        """
        if self._failed:
            return
        try:
            self._stream = self._stream or self._opened()
            columns = [_array(table[field.name], field.type) for field in self._schema]
            self._stream.write_batch(pa.record_batch(columns, schema=self._schema))
        except (OSError, pa.ArrowException) as error:
            self._failed = True
            _LOG.warning("the losses of documents are no longer recorded in %s: %s", self._folder, error)

    def close(self) -> None:
        """End the stream."""
        try:
            if self._stream is not None:
                self._stream.close()
                self._sink.close()
        except (OSError, pa.ArrowException) as error:
            _LOG.warning("the losses of the last documents are not recorded in %s: %s", self._folder, error)
        self._sink = self._stream = None

    def _opened(self) -> Any:
        # Not before the first steps are made: a training that resumes only to find that all were made writes nothing.
        self._folder.mkdir(parents=True, exist_ok=True)
        for path, step in _files(self._folder):
            if step >= self._step:
                path.unlink()
        self._sink = pa.OSFile(str(self._folder / f"after-step-{self._step}.arrows"), "wb")
        return pa.ipc.new_stream(self._sink, self._schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))


@dataclass(frozen=True, slots=True)
class LossRecord:
    """What a training recorded."""

    out: Path
    datasets: tuple[TrainedOn, ...]
    table: pa.Table
    """LOSSES, by step."""

    def column(self, name: str) -> NDArray[Any]:
        """(D,) a column of the table."""
        chunks = self.table.column(name).chunks
        empty = np.zeros(0, LOSSES.field(name).type.to_pandas_dtype())
        return np.concatenate([empty, *(view(chunk, chunk.type) for chunk in chunks)])


def read_losses(out: Path) -> LossRecord:
    """All steps of a training, each once.

    Raises:
        InputError: the folder is not that of a training, or has no record, or a damaged one.
    """
    if not out.is_dir():
        raise InputError(f"there is no folder {out}; give the folder that a training wrote, its `out`")
    files = _files(out / FOLDER)
    if not files:
        if (out / "manifest.json").is_file():
            why = "it is a dataset; give the folder that a training wrote, its `out`"
        elif (out / ".training.lock").exists() or any(out.glob("checkpoint-*")):
            why = (
                "the training ended before its first logging step, or its loss_kernel gives only their sum. "
                "Train again, with document_losses: true"
            )
        else:
            why = "give the folder that packtrain train wrote, its `out`"
        raise InputError(f"{out} has no losses of documents: {why}")
    datasets: tuple[TrainedOn, ...] = ()
    batches: list[pa.RecordBatch] = []
    for number, (path, step) in enumerate(files):
        end = files[number + 1][1] if number + 1 < len(files) else None
        found, here = _read(path)
        if datasets and found and [one.hash for one in found] != [one.hash for one in datasets]:
            raise InputError(f"{path} is of other datasets than {files[number - 1][0].name}; delete what is not wanted")
        datasets = found or datasets
        for batch in here:
            steps = view(batch.column(0), pa.int32())
            first = int(np.searchsorted(steps, step, side="right"))
            last = len(steps) if end is None else int(np.searchsorted(steps, end, side="right"))
            batches.append(batch.slice(first, last - first).replace_schema_metadata())
    table = pa.Table.from_batches(batches, LOSSES)
    if not len(table):
        raise _damaged(files[0][0])
    return LossRecord(out, datasets, table)


def _array(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Not `pyarrow.array`, which would import pandas."""
    data = np.ascontiguousarray(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def _files(folder: Path) -> list[tuple[Path, int]]:
    """The streams, and the number of steps made before each; ascending."""
    found = [(path, int(match[1])) for path in folder.glob("*.arrows") if (match := _NAME.fullmatch(path.name))]
    return sorted(found, key=lambda one: one[1])


def _read(path: Path) -> tuple[tuple[TrainedOn, ...], list[pa.RecordBatch]]:
    """The whole batches of a stream, up to where it was cut short.

    Raises:
        InputError: it is no stream, or one of another version.
    """
    batches: list[pa.RecordBatch] = []
    datasets: tuple[TrainedOn, ...] = ()
    try:
        with path.open("rb") as file:
            if not _BEGIN.startswith(file.read(len(_BEGIN))):
                raise _damaged(path)
            file.seek(0)
            with pa.ipc.open_stream(file) as stream:
                datasets = _datasets(path, stream.schema)
                while True:
                    batches.append(stream.read_next_batch())
    except StopIteration:
        pass
    except PermissionError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; change its permissions") from None
    except (OSError, pa.ArrowException) as error:
        _LOG.debug("%s ends early: %s", path, error)
    return datasets, batches


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is damaged: no step can be read from it; restore it from a copy, or train again")


def _datasets(path: Path, schema: pa.Schema) -> tuple[TrainedOn, ...]:
    """Raises InputError for a file that is not one of this version."""
    try:
        meta = parse_json((schema.metadata or {})[_META])
        if meta["format"] == FORMAT and schema.equals(LOSSES):
            return tuple(TrainedOn(**{name: str(value) for name, value in one.items()}) for one in meta["datasets"])
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise InputError(
        f"{path} is not a record of losses of this version of packtrain; read it with the one that trained"
    )
