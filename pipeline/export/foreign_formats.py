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
from ...schemas.ragged import lengths_of, offsets_of, ranges, starts_of
from ...schemas.rows import IGNORE_INDEX
from ..dataset.huggingface import split_files

Array = NDArray[Any]
Row = dict[str, Array]
"""Column, such as `input_ids` → (T,) its values in one packed row, or one for each piece, such as `seq_lengths`."""


class MisfitError(ValueError):
    """The format cannot hold a row.

    Args:
        row: its number in the shard, from 0.
        reason: a clause for messages.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


@dataclass(frozen=True, slots=True)
class Layout:
    """What a writer needs to know besides the rows."""

    schema: pa.Schema
    """Of the rows as they are stored."""
    row_length: int
    """Capacity of a row, in tokens."""
    pad_id: int
    """The token that fills rows up."""
    dataset: str
    """Hash of the dataset's manifest."""
    shards: int = 1
    """How many shards the split has."""
    eos_id: int | None = None
    """For OLMo-core: the token after which its reader ends a document; None if it reads bounds from files."""
    document_multiple: int = 1
    """For Megatron-Bridge: its reader pads documents to a multiple of this."""


Writer = Callable[[Iterable[pa.RecordBatch], Path, str, int, Layout], None]
"""(rows of a shard as they are stored, folder of the export, split, number of the shard in it, layout)."""


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows, one after the other."""
    for batch in batches:
        columns = {name: _lists(batch.column(name)) for name in batch.schema.names}
        for number in range(batch.num_rows):
            yield {name: lists[number] for name, lists in columns.items()}


def _lists(column: pa.ListArray) -> list[Array]:
    """The lists of a column as arrays that share its memory."""
    if not len(column):
        return []
    # A batch may be a slice of a longer one, whose first offset is not 0.
    offsets = view(column.offsets)
    return np.split(view(column.flatten()), offsets[1:-1] - offsets[0])


def _trained_mask(row: Row) -> NDArray[np.bool_]:
    """(T,) which tokens are trained, that is, predicted from the tokens before them."""
    return np.not_equal(row["labels"], IGNORE_INDEX)


def _make_folder(folder: Path) -> Path:
    """Make a folder, unless an earlier shard has made it, and return it."""
    folder.mkdir(exist_ok=True)
    return folder


def _round_up(length: Any, multiple: int) -> Any:
    """A length, or an array of them, rounded up: 16 for 9 and a multiple of 8."""
    return -(-length // multiple) * multiple


# Parquet, for `datasets`, TRL and the Hub


def write_trl(batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout) -> None:
    """Parquet with all columns, also of a shard without rows. By these names, `datasets` finds the splits."""
    path = _make_folder(folder / "data") / f"{split}-{index:05d}-of-{layout.shards:05d}.parquet"
    with pq.ParquetWriter(path, layout.schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)


# Folders of `datasets`, as `save_to_disk` writes them, for LLaMA-Factory and ms-swift

_LLAMA_FACTORY_MULTIPLE = 8
"""LLaMA-Factory's collator fills tokens, labels and mask up to a multiple of this, but not positions, so rows are
stored with such a length."""
_SPLIT_NAMES = {"holdout": "validation"}
"""Split → the name by which LLaMA-Factory and ms-swift find it, where it is another one."""
_INT32_LIST = pa.list_(pa.field("item", pa.int32(), nullable=False))
"""Lists of int32 without nulls."""


def write_llama_factory(
    batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout
) -> None:
    """For `tokenized_path` with `neat_packing`, by the rules of `data/collator.py` of LLaMA-Factory 0.9.5.

    All rows have one length. `attention_mask` numbers the documents of a row from 1, and has 0 at padding; a token
    sees the tokens with its own number.
    """
    stored_length = _round_up(layout.row_length, _LLAMA_FACTORY_MULTIPLE)
    columns: dict[str, list[Array]] = {"input_ids": [], "attention_mask": [], "labels": [], "position_ids": []}
    for row in _rows(batches):
        padding = stored_length - len(row["input_ids"])
        lengths = row["seq_lengths"]
        # Documents of 3 and 2 tokens in a row of 8: 1 1 1 2 2 0 0 0.
        document_numbers = np.repeat(np.arange(len(lengths)) + 1, lengths)
        columns["input_ids"].append(np.append(row["input_ids"], np.full(padding, layout.pad_id)))
        columns["attention_mask"].append(np.append(document_numbers, np.zeros(padding, np.int64)))
        columns["labels"].append(np.append(row["labels"], np.full(padding, IGNORE_INDEX)))
        columns["position_ids"].append(np.append(row["position_ids"], np.zeros(padding, np.int64)))
    table = pa.table({name: _list_column(lists) for name, lists in columns.items()})
    _write_part(table, folder, _SPLIT_NAMES.get(split, split), index, layout)


def write_swift(batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout) -> None:
    """For `cached_dataset` with `padding_free`, by the rules of `template/base.py` of ms-swift 4.6.0.

    Beside tokens, labels, and positions, which say where documents begin, a row has its `length`, and the `lengths` of
    its parts.
    """
    rows = list(_rows(batches))
    row_lengths = np.array([len(row["input_ids"]) for row in rows], np.int32)
    columns = {name: _list_column([row[name] for row in rows]) for name in ("input_ids", "labels", "position_ids")}
    columns["lengths"] = _list_column(list(row_lengths[:, None]))  # a row is one part, to its reader
    columns["length"] = pa.array(row_lengths)
    table = pa.table(columns)
    _write_part(table, folder, _SPLIT_NAMES.get(split, split), index, layout)


def _list_column(lists: list[Array]) -> pa.Array:
    """A column of int32 lists, from one (T,) array of numbers for each row."""
    # Padded arrays are of int64 or of floats; all their values are below 2³¹.
    values = np.zeros(0, np.int32)
    if lists:
        values = np.concatenate(lists, dtype=np.int32, casting="unsafe")
    offsets = offsets_of(lengths_of(lists), np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=_INT32_LIST)


def _write_part(table: pa.Table, folder: Path, split: str, index: int, layout: Layout) -> None:
    """One Arrow file of a split; with the last one, the files by which `datasets.load_from_disk` finds all."""
    names = [f"data-{number:05d}-of-{layout.shards:05d}.arrow" for number in range(layout.shards)]
    split_folder = _make_folder(folder / split)
    with pa.OSFile(str(split_folder / names[index]), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    # Shards are written in order, so the last one finds all others, of this split and of those before.
    if index < layout.shards - 1:
        return
    for name, content in split_files(table.schema, names, split, layout.dataset):
        (split_folder / name).write_bytes(content)
    splits = sorted(path.name for path in folder.iterdir() if path.is_dir())
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}))


# Megatron-Bridge

_INT8_LIST = pa.list_(pa.field("item", pa.int8(), nullable=False))
"""Lists of int8 without nulls."""
_BRIDGE_SCHEMA = pa.schema([("input_ids", _INT32_LIST), ("loss_mask", _INT8_LIST), ("seq_start_id", _INT32_LIST)])
_ROW_GROUP_ROWS = 500
"""Rows of a row group, as its own writer makes them; the reader keeps one group in memory."""


def write_bridge(batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout) -> None:
    """Packed Parquet by the rules of `src/megatron/bridge/data/packing/` of Megatron-Bridge at commit 067f987
    (22 August 2026).

    A row has `input_ids`, `seq_start_id` (where each document begins, from 0) and `loss_mask`, in which a position
    stands for the token that is predicted there, the next one. The reader drops the last token of every document from
    the inputs, so a document of L stored tokens has L - 1 positions at run time, which must be a multiple of
    `Layout.document_multiple`: with 4, documents of 6 and 2 tokens are stored as 9 and 5.
    """
    columns: dict[str, list[Array]] = {name: [] for name in _BRIDGE_SCHEMA.names}
    for row in _rows(batches):
        # With a multiple of 4, documents of 6 and 2 tokens are stored as 9 and 5, which start at 0 and 9. Their tokens
        # stand at the positions 0 1 2 3 4 5 9 10, and padding at all others.
        lengths = row["seq_lengths"]
        stored_lengths = _round_up(lengths - 1, layout.document_multiple) + 1
        stored_starts = starts_of(stored_lengths)
        row_length = stored_lengths.sum()
        positions = ranges(stored_starts, lengths)
        input_ids = np.full(row_length, layout.pad_id, np.int32)
        input_ids[positions] = row["input_ids"]
        # Shifted by one: position i says whether token i + 1 is trained. The first token of a piece is never trained,
        # so no piece reaches into another.
        loss_mask = np.zeros(row_length, np.int8)
        loss_mask[positions] = np.append(_trained_mask(row)[1:], False)
        columns["input_ids"].append(input_ids)
        columns["loss_mask"].append(loss_mask)
        columns["seq_start_id"].append(stored_starts.astype(np.int32))
    table = pa.table(columns, schema=_BRIDGE_SCHEMA)
    path = _make_folder(folder / split) / f"{index:05d}.idx.parquet"
    pq.write_table(table, path, row_group_size=_ROW_GROUP_ROWS, compression="zstd")


# Megatron

_TYPE_CODES = {"uint8": 1, "int32": 4}
"""Type of the numbers of a `.bin` → its code in the `.idx`."""


def write_megatron(batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout) -> None:
    """A pair of `.bin` and `.idx` by the rules of `megatron/core/datasets/indexed_dataset.py` of megatron-core 0.16.1,
    and the mask as a pair of uint8. A sequence is one piece of a document, and a Megatron document is one packed row.
    """
    token_folder = _make_folder(folder / split)
    mask_folder = _make_folder(folder / f"{split}-mask")
    piece_lengths: list[Array] = []
    with (
        (token_folder / f"{index:05d}.bin").open("wb") as token_file,
        (mask_folder / f"{index:05d}.bin").open("wb") as mask_file,
    ):
        for row in _rows(batches):
            token_file.write(row["input_ids"].tobytes())
            mask_file.write(_trained_mask(row).tobytes())
            piece_lengths.append(row["seq_lengths"])
    # Rows of 2 and 3 pieces have the bounds 0, 2 and 5. A shard without rows, which has no lengths, is never written.
    bounds = np.cumsum([0, *map(len, piece_lengths)])
    lengths = np.concatenate(piece_lengths)
    (token_folder / f"{index:05d}.idx").write_bytes(_megatron_index(lengths, bounds, np.dtype(np.int32)))
    (mask_folder / f"{index:05d}.idx").write_bytes(_megatron_index(lengths, bounds, np.dtype(np.uint8)))


def _megatron_index(lengths: Array, bounds: Array, dtype: "np.dtype[Any]") -> bytes:
    """The `.idx` of a `.bin` whose numbers have this type.

    Its bytes: a mark, version 1, a code for the type, the number of sequences and of document bounds; then for each
    sequence its length (int32), and for each its first byte (int64); then the bounds (int64): document d is sequences
    `bounds[d]` to `bounds[d + 1] - 1`.

    Args:
        lengths: (D,) numbers in each sequence, that is, tokens of each piece.
        bounds: (R + 1,) the first sequence of each Megatron document, that is, of each row.
    """
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, _TYPE_CODES[dtype.name], len(lengths), len(bounds))
    first_bytes = starts_of(lengths) * dtype.itemsize
    return (
        header + lengths.astype("<i4").tobytes() + first_bytes.astype("<i8").tobytes() + bounds.astype("<i8").tobytes()
    )


# MosaicML streaming

_MDS_END = b'], "version": 2}'
"""How an `index.json` ends."""


def write_mds(batches: Iterable[pa.RecordBatch], folder: Path, split: str, index: int, layout: Layout) -> None:
    """An MDS shard with all columns by the rules of `streaming/base/format/mds/` of mosaicml-streaming 0.13.0, and what
    the split's `index.json` says of it.

    Its bytes: the number of samples (uint32), where each begins and the last one ends (uint32, from the start of the
    file), a JSON text with the columns, and the samples: the size of each column (uint32, columns sorted by name), then
    their values.

    Raises:
        MisfitError: the shard has 4 GiB or more.
    """
    names = sorted(layout.schema.names)
    types = [layout.schema.field(name).type.value_type for name in names]
    config = {
        "column_encodings": [f"ndarray:{np.dtype(type.to_pandas_dtype())}" for type in types],
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
        values = [_mds_array(row[name]) for name in names]
        sizes = np.array([len(value) for value in values], "<u4")
        samples.append(sizes.tobytes() + b"".join(values))
    description = json.dumps(config, sort_keys=True).encode()
    # The number of samples, where each begins and the last one ends, and the text.
    header_bytes = 4 + 4 * (len(samples) + 1) + len(description)
    sample_starts = np.cumsum([header_bytes, *map(len, samples)])  # and where the last one ends
    if sample_starts[-1] >= 1 << 32:
        # The whole shard is too large, and its first row stands for it.
        raise MisfitError(0, "its shard has 4 GiB or more; pack with a smaller output.shard_bytes")
    content = b"".join([struct.pack("<I", len(samples)), sample_starts.astype("<u4").tobytes(), description, *samples])
    name = f"shard.{index:05d}.mds"
    (_make_folder(folder / split) / name).write_bytes(content)
    raw = {"basename": name, "bytes": len(content), "hashes": {"sha256": hashlib.sha256(content).hexdigest()}}
    entry = json.dumps({**config, "raw_data": raw, "samples": len(samples), "zip_data": None}, sort_keys=True)
    # The index grows in place: its end is cut off, and written again behind the new entry. Writing all of it again for
    # each of thousands of shards takes minutes.
    with (folder / split / "index.json").open("a+b") as file:
        before_entry = b", " if file.tell() else b'{"shards": ['
        file.truncate(max(0, file.tell() - len(_MDS_END)))
        file.write(before_entry + entry.encode() + _MDS_END)


def _mds_array(values: Array) -> bytes:
    """An array of one dimension: the byte `1 << 2 | w`, its length in `1 << w` bytes, then its numbers. `w` is the
    smallest that can be, as its own writer has it. Of 300 numbers, w is 1, and the length takes 2 bytes.
    """
    # One byte holds lengths below 256, two bytes those below 65,536, four bytes those below 2³².
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
    fill_id = layout.pad_id
    if fill_id == layout.eos_id:
        fill_id = 1 if layout.eos_id == 0 else 0
    token_folder = _make_folder(folder / split)
    mask_folder = _make_folder(folder / f"{split}-mask")
    name = f"{index:05d}.npy"
    bounds: list[str] = []
    row_start = 0  # of the row in the file, in tokens
    with (token_folder / name).open("wb") as token_file, (mask_folder / name).open("wb") as mask_file:
        for number, row in enumerate(_rows(batches)):
            if layout.eos_id is not None and not _is_cut_at_pieces(row, layout.eos_id):
                raise MisfitError(
                    number,
                    f"a document has the end-of-sequence token {layout.eos_id} inside, where NumpyFSLDataset would cut "
                    "it, or does not end with it, and would be joined to the next one; leave --eos-id out, and read "
                    "documents by NumpyPackedFSLDataset with use_array_if_local=False",
                )
            padding = 0 if layout.eos_id is None else layout.row_length - len(row["input_ids"])
            token_file.write(row["input_ids"].astype(np.uint32).tobytes())
            token_file.write(np.full(padding, fill_id, np.uint32).tobytes())
            mask_file.write(_trained_mask(row).tobytes() + bytes(padding))
            # A row from token 100 on with pieces of 3 and 2 tokens gives `100,103` and `103,105`.
            ends = row_start + np.cumsum(row["seq_lengths"])
            bounds += [f"{end - length},{end}\n" for end, length in zip(ends, row["seq_lengths"], strict=True)]
            row_start += len(row["input_ids"]) + padding
    # Without a time, so that the bytes are always the same.
    (token_folder / f"{index:05d}.csv.gz").write_bytes(gzip.compress("".join(bounds).encode(), mtime=0))


def _is_cut_at_pieces(row: Row, eos_id: int) -> bool:
    """Whether a reader that cuts after each end-of-sequence token cuts a row where its pieces end, and nowhere else.

    The last piece may end without an end-of-sequence token, because only masked filling follows it.
    """
    is_eos = row["input_ids"] == eos_id
    # Pieces of 3 and 2 tokens end with the tokens 2 and 4.
    last_tokens = np.cumsum(row["seq_lengths"]) - 1
    return bool(is_eos[last_tokens[:-1]].all() and not np.delete(is_eos, last_tokens).any())


WRITERS: dict[str, Writer] = {
    "megatron-bridge": write_bridge,
    "megatron": write_megatron,
    "mds": write_mds,
    "olmo-core": write_olmo,
    "trl": write_trl,
    "llama-factory": write_llama_factory,
    "ms-swift": write_swift,
}
"""Name of a format, as in `EXPORT_FORMATS` → what writes a shard in it."""
