"""Packed rows in the formats of other trainers: one function a format, which writes one split into a folder.

The bytes depend on rows and options alone. Each function names the sources of its reader, whose rules it follows.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of, ranges, starts_of, sums_of
from ...schemas.rows import IGNORE_INDEX
from ...stages.arrays import lists, view

MDS_BYTES = 1 << 26
"""Bytes after which a new MDS shard begins, as in `MDSWriter`."""


class MisfitError(ValueError):
    """A row does not fit into the format.

    Attributes:
        row: the row, counted from the first of its batch.
    """

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


@dataclass(frozen=True, slots=True)
class Options:
    """What a reader must be told besides the rows."""

    dtype: str = "int32"
    """The type of token arrays."""
    eos_id: int = 0
    """OLMo-core: the token after which its reader ends a document."""
    multiple: int = 1
    """Megatron-Bridge: the length of each document at run time is padded to a multiple of this."""


@dataclass(frozen=True, slots=True)
class SplitRows:
    """The rows of one split."""

    name: str
    shards: Sequence[Callable[[], Iterator[pa.RecordBatch]]]
    """Each gives the batches of a shard, none without rows; a shard may have no batch."""
    schema: pa.Schema
    max_length: int
    pad_id: int


class Rows:
    """R packed rows of D pieces and T tokens, as plain arrays; see `schemas.rows.PACKED`.

    Attributes:
        ids: (T,) token ids.
        trained: (T,) which tokens are trained, that is, predicted from the tokens before them.
        lengths: (D,) tokens of each piece.
        row_pieces: (R + 1,) where each row's pieces begin.
        row_tokens: (R + 1,) where each row's tokens begin.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.ids: NDArray[np.int32] = view(batch.column("input_ids").flatten())
        self.trained: NDArray[np.bool_] = np.not_equal(view(batch.column("labels").flatten()), IGNORE_INDEX)
        self.lengths: NDArray[np.int32] = view(batch.column("seq_lengths").flatten())
        self.row_pieces, self.row_tokens = (_offsets(batch.column(name)) for name in ("seq_lengths", "input_ids"))

    def __len__(self) -> int:
        return len(self.row_tokens) - 1

    def ids_as(self, dtype: "np.dtype[Any]") -> NDArray[Any]:
        """(T,) the ids in another type.

        Raises:
            MisfitError: one does not fit into it.
        """
        most = np.iinfo(dtype).max
        if (bad := self.ids > most).any():
            token = int(np.argmax(bad))
            what = f"token id {int(self.ids[token]):,} does not fit into {dtype}, which holds at most {most:,}"
            raise MisfitError(_row_of(self.row_tokens, token), what)
        return self.ids.astype(dtype, copy=False)


# Parquet, for `datasets`, TRL and the Hub


def write_trl(split: SplitRows, folder: Path, options: Options) -> None:
    """Parquet with all columns, under the names that the Hub gives to shards."""
    (folder / "data").mkdir(exist_ok=True)
    for index, batches in enumerate(split.shards):
        name = f"data/{split.name}-{index:05d}-of-{len(split.shards):05d}.parquet"
        with pq.ParquetWriter(folder / name, split.schema, compression="zstd") as writer:
            for batch in batches():
                writer.write_batch(batch)


# Megatron-Bridge

_INT32 = pa.list_(pa.field("item", pa.int32(), nullable=False))
_INT8 = pa.list_(pa.field("item", pa.int8(), nullable=False))
_BRIDGE = pa.schema([("input_ids", _INT32), ("loss_mask", _INT8), ("seq_start_id", _INT32)])
_GROUP_ROWS = 500
"""Rows of a row group, as its own writer makes them; the reader keeps one in memory."""


def write_bridge(split: SplitRows, folder: Path, options: Options) -> None:
    """Packed Parquet by the rules of `src/megatron/bridge/data/packing/` of Megatron-Bridge at commit 067f987
    (22 August 2026), and an entry of `metadata.json`, which its reader needs for CUDA graphs.

    A row has `input_ids`, `seq_start_id` (where each document begins, from 0) and `loss_mask`, in which a place stands
    for the token that is predicted there, the next one. The reader drops the last token of every document from the
    inputs, so a document of L stored tokens has L - 1 places at run time, which must be a multiple.

    Raises:
        MisfitError: a row gets longer than `max_length` by padding.
    """
    (folder / split.name).mkdir()
    longest = most = rows = documents = tokens = 0
    shortest = 2**31
    for index, batches in enumerate(split.shards):
        writer = None
        for batch in batches():
            made = _bridge_rows(Rows(batch), options.multiple, split.pad_id, split.max_length)
            writer = writer or pq.ParquetWriter(
                folder / split.name / f"{index:05d}.idx.parquet", _BRIDGE, compression="zstd"
            )
            writer.write_batch(made, row_group_size=_GROUP_ROWS)
            starts, sizes = made.column("seq_start_id"), np.diff(_offsets(made.column("input_ids")))
            counts = np.diff(_offsets(starts))
            ends = np.cumsum(sizes)
            begins = view(starts.flatten()) + np.repeat(ends - sizes, counts)
            longest = max(longest, int(np.diff(begins, append=ends[-1]).max()))
            most, shortest = max(most, int(counts.max())), min(shortest, int(sizes.min()))
            rows, documents, tokens = rows + len(sizes), documents + int(counts.sum()), tokens + int(sizes.sum())
        if writer is not None:
            writer.close()
    facts = {
        "dataset_max_seqlen": longest,
        "max_samples_per_bin": most,
        "packing_factor": round(documents / max(rows, 1), 2),
        "packing_efficiency": round(100 * tokens / (max(rows, 1) * split.max_length), 2),
        "pack_size": split.max_length,
        "min_packed_seqlen": shortest,
    }
    path = folder / "metadata.json"
    before = json.loads(path.read_bytes()) if path.exists() else []
    path.write_text(json.dumps(before + [facts] * bool(rows)) + "\n")


def _bridge_rows(rows: Rows, multiple: int, pad_id: int, max_length: int) -> pa.RecordBatch:
    counts = np.diff(rows.row_pieces)
    stored = -(-(rows.lengths - 1) // multiple) * multiple + 1
    sizes = sums_of(stored, rows.row_pieces)
    at_run_time = sizes - counts
    if (at_run_time > max_length).any():
        row = int(np.argmax(at_run_time > max_length))
        raise MisfitError(
            row,
            f"with documents padded to multiples of {multiple} for pad_seq_to_mult, it would have "
            f"{int(at_run_time[row]):,} tokens, more than max_length ({max_length:,}); pack with pack.align={multiple}",
        )
    ids, mask = np.full(int(stored.sum()), pad_id, np.int32), np.zeros(int(stored.sum()), np.int8)
    places = ranges(starts_of(stored), rows.lengths)
    ids[places] = rows.ids
    # The first token of a piece is never trained, so no piece reaches into another.
    mask[places] = np.append(rows.trained[1:], False)
    offsets = offsets_of(sizes)
    begins = starts_of(stored) - np.repeat(offsets[:-1], counts)
    columns = [
        lists(offsets, ids, _INT32),
        lists(offsets, mask, _INT8),
        lists(rows.row_pieces, begins.astype(np.int32), _INT32),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_BRIDGE)


# Megatron

_CODES = {"uint8": 1, "int32": 4, "uint16": 8}


def write_megatron(split: SplitRows, folder: Path, options: Options) -> None:
    """Pairs of `.bin` and `.idx` by the rules of `megatron/core/datasets/indexed_dataset.py` of megatron-core 0.16.1,
    and the mask as pairs of uint8. A sequence is one piece of a document, and a Megatron document is one packed row.

    Raises:
        MisfitError: a token id does not fit into the type.
    """
    tokens, mask = folder / split.name, folder / f"{split.name}-mask"
    kinds = {tokens: np.dtype(options.dtype), mask: np.dtype(np.uint8)}
    for place in kinds:
        place.mkdir()
    for index, batches in enumerate(split.shards):
        lengths, bounds = [np.zeros(0, np.int32)], [np.zeros(1, np.int64)]
        with (tokens / f"{index:05d}.bin").open("wb") as ids, (mask / f"{index:05d}.bin").open("wb") as flags:
            for batch in batches():
                rows = Rows(batch)
                ids.write(rows.ids_as(kinds[tokens]).tobytes())
                flags.write(rows.trained.tobytes())
                lengths.append(rows.lengths.copy())
                bounds.append(rows.row_pieces[1:] + bounds[-1][-1])
        for place, dtype in kinds.items():
            if len(bounds) > 1:
                data = megatron_index(np.concatenate(lengths), np.concatenate(bounds), dtype)
                (place / f"{index:05d}.idx").write_bytes(data)
            else:  # the reader cannot map an empty file
                (place / f"{index:05d}.bin").unlink()


def megatron_index(lengths: NDArray[np.int32], bounds: NDArray[np.int64], dtype: "np.dtype[Any]") -> bytes:
    """The `.idx` of a `.bin` whose numbers have this type.

    A mark, version 1, a code for the type, the number of sequences and of document bounds; then for each sequence its
    length (int32), and for each its first byte (int64); then the bounds (int64): document d is sequences `bounds[d]` to
    `bounds[d + 1] - 1`.
    """
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, _CODES[dtype.name], len(lengths), len(bounds))
    pointers = starts_of(lengths) * dtype.itemsize
    return head + lengths.astype("<i4").tobytes() + pointers.astype("<i8").tobytes() + bounds.astype("<i8").tobytes()


# MosaicML streaming

_VALUES = {pa.int32(): "int32", pa.int64(): "int64", pa.float32(): "float32"}
"""Arrow type → its name in numpy, which MDS takes."""


def write_mds(split: SplitRows, folder: Path, options: Options) -> None:
    """MDS shards with all columns by the rules of `streaming/base/format/mds/` of mosaicml-streaming 0.13.0, and their
    `index.json`. One shard is in memory at a time."""
    (folder / split.name).mkdir()
    names = sorted(split.schema.names)
    config = {
        "column_encodings": [f"ndarray:{_VALUES[split.schema.field(name).type.value_type]}" for name in names],
        "column_names": names,
        "column_sizes": [None] * len(names),
        "compression": None,
        "format": "mds",
        "hashes": ["sha256"],
        "size_limit": MDS_BYTES,
        "version": 2,
    }
    entries = []
    for index, batches in enumerate(split.shards):
        for part, samples in enumerate(_mds_groups(batches)):
            data = mds_shard(samples, config)
            name = f"shard.{index:05d}.{part:05d}.mds"
            (folder / split.name / name).write_bytes(data)
            raw = {"basename": name, "bytes": len(data), "hashes": {"sha256": hashlib.sha256(data).hexdigest()}}
            entries.append({**config, "raw_data": raw, "samples": len(samples), "zip_data": None})
    (folder / split.name / "index.json").write_text(json.dumps({"shards": entries, "version": 2}, sort_keys=True))


def mds_samples(batch: pa.RecordBatch) -> list[bytes]:
    """Each row as a sample: the size of each column (uint32, columns sorted by name), then their values."""
    columns = []
    for name in sorted(batch.schema.names):
        column = batch.column(name)
        columns.append(np.split(view(column.flatten()), _offsets(column)[1:-1]))
    samples = []
    for values in zip(*columns, strict=True):
        data = [_mds_array(value) for value in values]
        samples.append(np.array([len(one) for one in data], np.uint32).tobytes() + b"".join(data))
    return samples


def mds_shard(samples: Sequence[bytes], config: dict[str, Any]) -> bytes:
    """The number of samples (uint32), where each begins and the last one ends (uint32, from the start of the file), a
    JSON text with the columns, and the samples."""
    about = json.dumps(config, sort_keys=True).encode()
    begins = np.cumsum([4 + 4 * (len(samples) + 1) + len(about), *map(len, samples)], dtype=np.uint32)
    return np.uint32(len(samples)).tobytes() + begins.tobytes() + about + b"".join(samples)


def _mds_groups(batches: Callable[[], Iterator[pa.RecordBatch]]) -> Iterator[list[bytes]]:
    held: list[bytes] = []
    size = 0
    for batch in batches():
        for sample in mds_samples(batch):
            if held and size + len(sample) > MDS_BYTES:
                yield held
                held, size = [], 0
            held.append(sample)
            size += len(sample) + 4
    if held:
        yield held


def _mds_array(values: NDArray[Any]) -> bytes:
    """An array of one dimension: the byte `1 << 2 | w`, its length in `1 << w` bytes, then its numbers. `w` is the
    smallest that can be, as its own writer has it."""
    width = next(width for width in range(3) if len(values) < 1 << (8 << width))
    return bytes([1 << 2 | width]) + len(values).to_bytes(1 << width, "little") + values.tobytes()


# OLMo-core


def write_olmo(split: SplitRows, folder: Path, options: Options) -> None:
    """Token arrays and masks by the rules of `src/olmo_core/data/` of OLMo-core 2.5.0 at commit fa6c501 (22 June 2026);
    3.0.0 has the same.

    A `.npy` has no header: numbers of one unsigned type, end to end. `NumpyFSLDataset` cuts it into rows of
    `sequence_length`, so rows are filled up, and a row into documents after every end-of-sequence token. The mask has
    one byte a token and is not shifted.

    Raises:
        MisfitError: the reader would not cut a row where its pieces end, or a token id does not fit into the type.
    """
    capacity, dtype = split.max_length, np.dtype(options.dtype)
    # Any id but the end-of-sequence token, after which the reader would cut.
    filler = split.pad_id if split.pad_id != options.eos_id else int(options.eos_id == 0)
    place, masks = folder / split.name, folder / f"{split.name}-mask"
    place.mkdir()
    masks.mkdir()
    for index, batches in enumerate(split.shards):
        files = [place / f"{index:05d}.npy", masks / f"{index:05d}.npy"]
        with files[0].open("wb") as tokens, files[1].open("wb") as mask:
            for batch in batches():
                rows = Rows(batch)
                check_bounds(rows, options.eos_id)
                filled = np.full(len(rows) * capacity, filler, dtype)
                flags = np.zeros(len(filled), np.bool_)
                places = ranges(np.arange(len(rows)) * capacity, np.diff(rows.row_tokens))
                filled[places], flags[places] = rows.ids_as(dtype), rows.trained
                tokens.write(filled.tobytes())
                mask.write(flags.tobytes())
        if not files[0].stat().st_size:
            for path in files:
                path.unlink()


def check_bounds(rows: Rows, eos_id: int) -> None:
    """Refuse rows that the reader would not cut where their pieces end.

    The last piece of a row may end without an end-of-sequence token, because only masked filling follows it.

    Raises:
        MisfitError: a piece has the token inside; or another one follows a piece that does not end with it.
    """
    cuts = rows.ids == eos_id
    ends = np.cumsum(rows.lengths, dtype=np.int64)
    closed = cuts[ends - 1]
    cuts[ends - 1] = False
    if cuts.any():
        raise MisfitError(
            _row_of(rows.row_tokens, int(np.argmax(cuts))),
            f"a document has the end-of-sequence token {eos_id} inside, and OLMo-core would cut it there; "
            "it can take only data whose documents have that token at their end alone; choose another --to",
        )
    closed[rows.row_pieces[1:] - 1] = True
    if not closed.all():
        raise MisfitError(
            _row_of(rows.row_pieces, int(np.argmin(closed))),
            f"a document does not end with the end-of-sequence token {eos_id}, so OLMo-core would join it to the next "
            "one; choose another --to",
        )


FORMATS: dict[str, Callable[[SplitRows, Path, Options], None]] = {
    "megatron-bridge": write_bridge,
    "megatron": write_megatron,
    "mds": write_mds,
    "olmo-core": write_olmo,
    "trl": write_trl,
}


def _offsets(column: pa.ListArray) -> NDArray[np.int64]:
    offsets = view(column.offsets).astype(np.int64)
    return offsets - offsets[0] if len(offsets) else np.zeros(1, np.int64)


def _row_of(offsets: NDArray[np.int64], place: int) -> int:
    """The row of a token or piece."""
    return int(np.searchsorted(offsets, place, side="right")) - 1
