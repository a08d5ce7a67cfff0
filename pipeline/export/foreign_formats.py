"""Packed rows in the formats of other trainers: one writer a format, which puts the rows of one shard into a folder.

The bytes depend on rows and options alone; rows of one shard are in memory at a time. Each writer names the sources of
its reader, whose rules it follows.
"""

import gzip
import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...schemas.arrays import view
from ...schemas.ragged import offsets_of, ranges, starts_of
from ...schemas.rows import IGNORE_INDEX
from ..dataset.huggingface import split_files

Array = NDArray[Any]
Row = dict[str, Array]
"""Column → the values of one packed row; see `schemas.tables.columns.PACKED_COLUMNS`."""


class MisfitError(ValueError):
    """A row does not fit into the format.

    Args:
        row: its place in the shard, from 0.
    """

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


@dataclass(frozen=True, slots=True)
class Layout:
    """What the rows have in common, and what a reader must be told besides them."""

    schema: pa.Schema
    row_length: int
    """Capacity of a row, in tokens."""
    pad_id: int
    dataset: str
    """Hash of the dataset's manifest."""
    shards: int = 1
    """Of the split."""
    eos_id: int | None = None
    """OLMo-core: the token after which its reader ends a document; None if it reads bounds from files."""
    multiple: int = 1
    """Megatron-Bridge: the length of each document at run time is padded to a multiple of this."""


Writer = Callable[[Iterable[pa.RecordBatch], Path, str, int, Layout], None]
"""(rows of a shard as they are stored, folder of the export, split, number of the shard in it, layout)."""


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows, one after the other."""
    for batch in batches:
        columns = {name: _split(batch.column(name)) for name in batch.schema.names}
        for number in range(batch.num_rows):
            yield {name: values[number] for name, values in columns.items()}


def _split(column: pa.ListArray) -> list[Array]:
    offsets = view(column.offsets)
    return np.split(view(column.flatten()), offsets[1:-1] - offsets[0]) if len(column) else []


def _trained(row: Row) -> NDArray[np.bool_]:
    """(T,) which tokens are trained, that is, predicted from the tokens before them."""
    return np.not_equal(row["labels"], IGNORE_INDEX)


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


# Parquet, for `datasets`, TRL and the Hub


def write_trl(batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout) -> None:
    """Parquet with all columns, also of a shard without rows. By these names, `datasets` finds the splits."""
    path = _made(folder / "data") / f"{split}-{index:05d}-of-{layout.shards:05d}.parquet"
    with pq.ParquetWriter(path, layout.schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)


# Folders of `datasets`, as `save_to_disk` writes them, for LLaMA-Factory and ms-swift

_MULTIPLE = 8
"""LLaMA-Factory's collator fills tokens, labels and mask up to this, but not positions."""
_NAMES = {"holdout": "validation"}
"""How LLaMA-Factory finds a held-out split."""
_LISTS = pa.list_(pa.field("item", pa.int32(), nullable=False))


def write_llama_factory(
    batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout
) -> None:
    """For `tokenized_path` with `neat_packing`, by the rules of `data/collator.py` of LLaMA-Factory 0.9.5.

    All rows have one length. `attention_mask` numbers the documents of a row from 1, and has 0 at padding; tokens see
    those of their own number.
    """
    length = -(-layout.row_length // _MULTIPLE) * _MULTIPLE
    columns: dict[str, list[Array]] = {"input_ids": [], "attention_mask": [], "labels": [], "position_ids": []}
    for row in _rows(batches):
        gap = length - len(row["input_ids"])
        lengths = row["seq_lengths"]
        columns["input_ids"].append(np.append(row["input_ids"], np.full(gap, layout.pad_id)))
        columns["attention_mask"].append(np.append(np.repeat(np.arange(len(lengths)) + 1, lengths), np.zeros(gap)))
        columns["labels"].append(np.append(row["labels"], np.full(gap, IGNORE_INDEX)))
        columns["position_ids"].append(np.append(row["position_ids"], np.zeros(gap)))
    table = pa.table({name: _list_column(values) for name, values in columns.items()})
    _write_part(table, folder, _NAMES.get(split, split), index, layout)


def write_swift(batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout) -> None:
    """For `cached_dataset` with `padding_free`, by the rules of `template/base.py` of ms-swift 4.6.0: beside tokens,
    labels and positions, which say where documents begin, `length` and, of its parts, `lengths`.
    """
    rows = list(_rows(batches))
    names = ("input_ids", "labels", "position_ids")
    lengths = np.array([len(row["input_ids"]) for row in rows], np.int32)
    table = pa.table(
        {name: _list_column([row[name] for row in rows]) for name in names}
        | {"lengths": _list_column(list(lengths[:, None])), "length": pa.array(lengths)}
    )
    _write_part(table, folder, _NAMES.get(split, split), index, layout)


def _list_column(lists: list[Array]) -> pa.Array:
    values = np.concatenate(lists, dtype=np.int32, casting="unsafe") if lists else np.zeros(0, np.int32)
    offsets = offsets_of([len(values) for values in lists], np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=_LISTS)


def _write_part(table: pa.Table, folder: Path, split: str, index: int, layout: Layout) -> None:
    """One Arrow file of a split; with the last one, the files by which `datasets.load_from_disk` finds all."""
    names = [f"data-{number:05d}-of-{layout.shards:05d}.arrow" for number in range(layout.shards)]
    place = _made(folder / split)
    with pa.OSFile(str(place / names[index]), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    if index < layout.shards - 1:
        return
    for name, content in split_files(table.schema, names, split, layout.dataset):
        (place / name).write_bytes(content)
    splits = sorted(path.name for path in folder.iterdir() if path.is_dir())
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}))


# Megatron-Bridge

_INT32 = pa.list_(pa.field("item", pa.int32(), nullable=False))
_INT8 = pa.list_(pa.field("item", pa.int8(), nullable=False))
_BRIDGE = pa.schema([("input_ids", _INT32), ("loss_mask", _INT8), ("seq_start_id", _INT32)])
_GROUP_ROWS = 500
"""Rows of a row group, as its own writer makes them; the reader keeps one in memory."""


def write_bridge(batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout) -> None:
    """Packed Parquet by the rules of `src/megatron/bridge/data/packing/` of Megatron-Bridge at commit 067f987
    (22 August 2026).

    A row has `input_ids`, `seq_start_id` (where each document begins, from 0) and `loss_mask`, in which a place stands
    for the token that is predicted there, the next one. The reader drops the last token of every document from the
    inputs, so a document of L stored tokens has L - 1 places at run time, which must be a multiple.
    """
    made: list[tuple[Array, Array, Array]] = []
    for row in _rows(batches):
        lengths = row["seq_lengths"]
        stored = -(-(lengths - 1) // layout.multiple) * layout.multiple + 1
        ids, mask = np.full(stored.sum(), layout.pad_id, np.int32), np.zeros(stored.sum(), np.int8)
        places = ranges(starts_of(stored), lengths)
        ids[places] = row["input_ids"]
        # The first token of a piece is never trained, so no piece reaches into another.
        mask[places] = np.append(_trained(row)[1:], False)
        made.append((ids, mask, starts_of(stored).astype(np.int32)))
    columns = dict(zip(_BRIDGE.names, zip(*made, strict=True), strict=True))
    path = _made(folder / split) / f"{index:05d}.idx.parquet"
    pq.write_table(pa.table(columns, schema=_BRIDGE), path, row_group_size=_GROUP_ROWS, compression="zstd")


# Megatron

_CODES = {"uint8": 1, "int32": 4}


def write_megatron(batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout) -> None:
    """A pair of `.bin` and `.idx` by the rules of `megatron/core/datasets/indexed_dataset.py` of megatron-core 0.16.1,
    and the mask as a pair of uint8. A sequence is one piece of a document, and a Megatron document is one packed row.
    """
    kinds: dict[Path, np.dtype[Any]] = {
        folder / split: np.dtype(np.int32),
        folder / f"{split}-mask": np.dtype(np.uint8),
    }
    lengths: list[Array] = []
    tokens, mask = (_made(place) / f"{index:05d}.bin" for place in kinds)
    with tokens.open("wb") as ids, mask.open("wb") as flags:
        for row in _rows(batches):
            ids.write(row["input_ids"].tobytes())
            flags.write(_trained(row).tobytes())
            lengths.append(row["seq_lengths"])
    bounds = np.cumsum([0, *map(len, lengths)])
    for place, dtype in kinds.items():
        (place / f"{index:05d}.idx").write_bytes(_megatron_index(np.concatenate(lengths), bounds, dtype))


def _megatron_index(lengths: Array, bounds: Array, dtype: "np.dtype[Any]") -> bytes:
    """The `.idx` of a `.bin` whose numbers have this type.

    A mark, version 1, a code for the type, the number of sequences and of document bounds; then for each sequence its
    length (int32), and for each its first byte (int64); then the bounds (int64): document d is sequences `bounds[d]` to
    `bounds[d + 1] - 1`.
    """
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, _CODES[dtype.name], len(lengths), len(bounds))
    pointers = starts_of(lengths) * dtype.itemsize
    return head + lengths.astype("<i4").tobytes() + pointers.astype("<i8").tobytes() + bounds.astype("<i8").tobytes()


# MosaicML streaming

_MDS_END = b'], "version": 2}'
"""How an `index.json` ends."""


def write_mds(batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout) -> None:
    """An MDS shard with all columns by the rules of `streaming/base/format/mds/` of mosaicml-streaming 0.13.0, and what
    the split's `index.json` says of it.

    The number of samples (uint32), where each begins and the last one ends (uint32, from the start of the file), a JSON
    text with the columns, and the samples: the size of each column (uint32, columns sorted by name), then their values.

    Raises:
        MisfitError: the shard has 4 GiB or more.
    """
    names = sorted(layout.schema.names)
    kinds = [layout.schema.field(name).type.value_type for name in names]
    config = {
        "column_encodings": [f"ndarray:{np.dtype(kind.to_pandas_dtype())}" for kind in kinds],
        "column_names": names,
        "column_sizes": [None] * len(names),
        "compression": None,
        "format": "mds",
        "hashes": ["sha256"],
        "size_limit": None,
        "version": 2,
    }
    samples = []
    for row in _rows(batches):
        data = [_mds_array(row[name]) for name in names]
        samples.append(np.array([len(one) for one in data], "<u4").tobytes() + b"".join(data))
    about = json.dumps(config, sort_keys=True).encode()
    begins = np.cumsum([4 + 4 * (len(samples) + 1) + len(about), *map(len, samples)])
    if begins[-1] >= 1 << 32:
        raise MisfitError(0, "its shard has 4 GiB or more; pack with a smaller output.shard_bytes")
    whole = b"".join([struct.pack("<I", len(samples)), begins.astype("<u4").tobytes(), about, *samples])
    name = f"shard.{index:05d}.mds"
    (_made(folder / split) / name).write_bytes(whole)
    raw = {"basename": name, "bytes": len(whole), "hashes": {"sha256": hashlib.sha256(whole).hexdigest()}}
    entry = json.dumps({**config, "raw_data": raw, "samples": len(samples), "zip_data": None}, sort_keys=True)
    # The index grows in place. Writing it anew for each of thousands of shards takes minutes.
    with (folder / split / "index.json").open("a+b") as file:
        begins_with = b", " if file.tell() else b'{"shards": ['
        file.truncate(max(0, file.tell() - len(_MDS_END)))
        file.write(begins_with + entry.encode() + _MDS_END)


def _mds_array(values: Array) -> bytes:
    """An array of one dimension: the byte `1 << 2 | w`, its length in `1 << w` bytes, then its numbers. `w` is the
    smallest that can be, as its own writer has it."""
    width = next(width for width in range(3) if len(values) < 1 << (8 << width))
    return bytes([1 << 2 | width]) + len(values).to_bytes(1 << width, "little") + values.tobytes()


# OLMo-core


def write_olmo(batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout) -> None:
    """Token arrays of uint32 and masks by the rules of `src/olmo_core/data/` of OLMo-core 3.0.0.

    A `.npy` has no header: numbers of one type, end to end. The mask has one byte a token and is not shifted. A
    `.csv.gz` beside it has a line `begin,end` for every document, from which `NumpyPackedFSLDataset` takes documents.

    With an end-of-sequence token, also for `NumpyFSLDataset`: it cuts the array into rows of `sequence_length`, so rows
    are filled up, and a row into documents after every such token.

    Raises:
        MisfitError: that reader would not cut a row where its pieces end.
    """
    # Any id but the end-of-sequence token, after which the reader would cut.
    filler = layout.pad_id if layout.pad_id != layout.eos_id else int(layout.eos_id == 0)
    place, masks = _made(folder / split), _made(folder / f"{split}-mask")
    name = f"{index:05d}.npy"
    bounds: list[str] = []
    begin = 0
    with (place / name).open("wb") as tokens, (masks / name).open("wb") as mask:
        for number, row in enumerate(_rows(batches)):
            if layout.eos_id is not None and not _ends_fit(row, layout.eos_id):
                raise MisfitError(
                    number,
                    f"a document has the end-of-sequence token {layout.eos_id} inside, where NumpyFSLDataset would cut "
                    "it, or does not end with it, and would be joined to the next one; leave --eos-id out, and read "
                    "documents by NumpyPackedFSLDataset with use_array_if_local=False",
                )
            rest = 0 if layout.eos_id is None else layout.row_length - len(row["input_ids"])
            tokens.write(row["input_ids"].astype(np.uint32).tobytes() + np.full(rest, filler, np.uint32).tobytes())
            mask.write(_trained(row).tobytes() + bytes(rest))
            ends = begin + np.cumsum(row["seq_lengths"])
            bounds += [f"{end - length},{end}\n" for end, length in zip(ends, row["seq_lengths"], strict=True)]
            begin += len(row["input_ids"]) + rest
    # Without a time, so that the bytes are always the same.
    (place / f"{index:05d}.csv.gz").write_bytes(gzip.compress("".join(bounds).encode(), mtime=0))


def _ends_fit(row: Row, eos_id: int) -> bool:
    """Whether the reader cuts a row where its pieces end, and nowhere else.

    The last piece may end without an end-of-sequence token, because only masked filling follows it.
    """
    cuts = row["input_ids"] == eos_id
    ends = np.cumsum(row["seq_lengths"]) - 1
    return bool(cuts[ends[:-1]].all() and not np.delete(cuts, ends).any())


FORMATS: dict[str, Writer] = {
    "megatron-bridge": write_bridge,
    "megatron": write_megatron,
    "mds": write_mds,
    "olmo-core": write_olmo,
    "trl": write_trl,
    "llama-factory": write_llama_factory,
    "ms-swift": write_swift,
}
WITH_EMPTY_SHARDS = ("trl", "llama-factory", "ms-swift")
"""Formats whose files are numbered, so that one of a shard without rows may not be missing."""
