"""Loaders side by side: each gives flattened batches of the same packed rows.

A peer reads with no worker process, and gets a collator that does no more than it must. Most read in the order of
the shards, which is their fastest; the best of those that can also in a random order. A peer that
is not installed is reported by name, with the reason.
"""

import importlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

TOKEN_COLUMNS = ("input_ids", "labels", "position_ids")
IGNORED = -100
COLUMNS = (*TOKEN_COLUMNS, "seq_lengths")

IN_ORDER, SHUFFLED = "packtrain, in order", "packtrain, full"
"""packtrain as it comes, in the two orders."""
EPOCHS = 1000
"""Epochs of packtrain's loader, which joins them: so many that no measurement reaches the last."""

Batch = dict[str, Any]
"""`input_ids`, `labels`, `position_ids` int64 (1, T) and `cu_seq_lens_q` int32 (D + 1,), at least."""
Row = Mapping[str, Any]
"""The columns of one packed row, arrays or tensors."""


class MissingPeerError(Exception):
    """A peer that cannot be imported here; says why."""


def imported(name: str) -> Any:
    """A peer's module.

    Raises:
        MissingPeerError: it, or something that it needs, is not installed or cannot be loaded.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken dependency raises whatever it likes
        raise MissingPeerError(f"cannot import {name}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Contender:
    """One way to read the dataset."""

    name: str
    passes: Callable[[int], Iterator[Any]]
    """Rows a step → batches: at least one epoch of them, then the iterator ends and is asked for again."""
    permuted: bool
    """Whether rows come in a random order; else as they lie in the shards."""
    kind: str
    """`packtrain`, `peer`, `by hand` (a peer around somebody's own conversion) or `limit` (no loader at all)."""


def flatten_arrays(rows: Sequence[Row]) -> Batch:
    """A collator for rows of int32 arrays: joined and converted in one pass."""
    batch: Batch = {
        name: torch.from_numpy(np.concatenate([row[name] for row in rows], dtype=np.int64)).unsqueeze(0)
        for name in TOKEN_COLUMNS
    }
    return batch | boundaries(np.concatenate([row["seq_lengths"] for row in rows]))


def flatten_tensors(rows: Sequence[Row]) -> Batch:
    """A collator for rows of int64 tensors."""
    batch: Batch = {name: torch.cat([row[name] for row in rows]).unsqueeze(0) for name in TOKEN_COLUMNS}
    return batch | boundaries(torch.cat([row["seq_lengths"] for row in rows]).numpy())


def boundaries(lengths: NDArray[Any]) -> Batch:
    """What varlen attention needs, from (D,) lengths."""
    bounds = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=bounds[1:])
    cu_seq_lens, longest = torch.from_numpy(bounds), int(lengths.max())
    return {
        "cu_seq_lens_q": cu_seq_lens,
        "cu_seq_lens_k": cu_seq_lens,
        "max_length_q": longest,
        "max_length_k": longest,
    }


# No loader: what memory allows.


@dataclass(frozen=True)
class Chunk:
    """A record batch's memory."""

    rows: int
    columns: dict[str, tuple[NDArray[Any], list[int]]]
    """Values, and where each row begins in them."""


def map_chunks(shards: Sequence[Path]) -> list[Chunk]:
    """The record batches of the shards, memory-mapped."""
    chunks = []
    for path in shards:
        with pa.memory_map(str(path)) as source:
            for batch in pa.ipc.open_stream(source):
                columns = {}
                for name in COLUMNS:
                    column = batch.column(name)
                    values = np.frombuffer(column.values.buffers()[1], np.int32)
                    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
                    columns[name] = (values, offsets.tolist())
                chunks.append(Chunk(batch.num_rows, columns))
    return chunks


Span = tuple[Chunk, int, int]
"""Rows first .. last - 1 of a chunk."""


def spans_in_order(chunks: Sequence[Chunk], rows_per_step: int) -> list[list[Span]]:
    """For each whole step, its rows: as few spans as there can be."""
    steps: list[list[Span]] = []
    step: list[Span] = []
    missing = rows_per_step
    for chunk in chunks:
        first = 0
        while first < chunk.rows:
            last = min(chunk.rows, first + missing)
            step.append((chunk, first, last))
            missing -= last - first
            first = last
            if not missing:
                steps.append(step)
                step, missing = [], rows_per_step
    return steps


def spans_permuted(chunks: Sequence[Chunk], rows_per_step: int) -> list[list[Span]]:
    """The same steps of permuted rows, each a span of its own."""
    rows = [(chunk, row, row + 1) for chunk in chunks for row in range(chunk.rows)]
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    whole = range(0, len(rows) - rows_per_step + 1, rows_per_step)
    return [[rows[index] for index in order[begin : begin + rows_per_step]] for begin in whole]


def bare_epoch(plan: Callable[[int], list[list[Span]]], reuse: bool, rows_per_step: int) -> Iterator[dict[str, Any]]:
    """Only the copy with conversion: three int64 arrays a step; fresh ones, or the same ones again and again."""
    buffers = {name: np.empty(0, np.int64) for name in TOKEN_COLUMNS}
    for spans in plan(rows_per_step):
        out = {}
        for name in TOKEN_COLUMNS:
            parts = []
            for chunk, first, last in spans:
                values, offsets = chunk.columns[name]
                parts.append(values[offsets[first] : offsets[last]])
            total = sum(map(len, parts))
            if not reuse:
                target = np.empty(total, np.int64)
            else:
                if len(buffers[name]) < total:
                    buffers[name] = np.empty(total + total // 8, np.int64)
                target = buffers[name][:total]
            begin = 0
            for part in parts:
                target[begin : begin + len(part)] = part
                begin += len(part)
            out[name] = target[None]
        yield out


def bare_contenders(shards: Sequence[Path]) -> list[Contender]:
    """The limits: in order and permuted, fresh and reused."""
    chunks = map_chunks(shards)
    made = []
    for order, spans in (("in order", spans_in_order), ("permuted", spans_permuted)):
        plans: dict[int, list[list[Span]]] = {}

        def plan(
            rows_per_step: int,
            plans: dict[int, list[list[Span]]] = plans,
            spans: Callable[[Sequence[Chunk], int], list[list[Span]]] = spans,
        ) -> list[list[Span]]:
            if rows_per_step not in plans:
                plans[rows_per_step] = spans(chunks, rows_per_step)
            return plans[rows_per_step]

        for reuse in (False, True):
            name = f"bare copy, {order}, {'the same arrays again' if reuse else 'fresh arrays'}"
            made.append(Contender(name, partial(bare_epoch, plan, reuse), spans is spans_permuted, "limit"))
    return made


# Peers.


def hf_contenders(folder: Path) -> list[Contender]:
    """`datasets.load_from_disk` on the same folder, through torch's DataLoader and by itself."""
    datasets = imported("datasets")
    from torch.utils.data import DataLoader

    table = datasets.load_from_disk(str(folder)).select_columns(list(COLUMNS))
    made = []
    for form, collate in (("torch", flatten_tensors), ("numpy", flatten_arrays)):
        formatted = table.with_format(form)
        streamed = table.to_iterable_dataset().with_format(form)
        variants = (
            ("map-style", formatted, False),
            ("map-style, shuffled", formatted, True),
            ("iterable", streamed, False),
        )
        for kind, dataset, shuffle in variants:

            def passes(
                rows: int, dataset: Any = dataset, collate: Any = collate, shuffle: bool = shuffle
            ) -> Iterator[Batch]:
                return iter(DataLoader(dataset, rows, shuffle, collate_fn=collate, num_workers=0))

            made.append(Contender(f"datasets, {form}, {kind}", passes, shuffle, "peer"))
    arrow = table.with_format("arrow")

    def by_hand(rows: int) -> Iterator[Batch]:
        for part in arrow.iter(batch_size=rows):
            arrays = {
                name: np.concatenate([chunk.flatten().to_numpy() for chunk in part.column(name).chunks])
                for name in COLUMNS
            }
            yield flatten_arrays([arrays])

    made.append(Contender("datasets, arrow, converted by hand", by_hand, False, "by hand"))
    return made


def trl_contenders(folder: Path) -> list[Contender]:
    """The collator of TRL's SFTTrainer with `padding_free`, over the folder as `datasets` reads it."""
    datasets = imported("datasets")
    trainer = imported("trl.trainer.sft_trainer")
    from torch.utils.data import DataLoader

    names = ["input_ids", "labels", "seq_lengths"]
    table = datasets.load_from_disk(str(folder)).select_columns(names)
    collate = trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)

    def passes(rows: int) -> Iterator[Batch]:
        return iter(DataLoader(table, batch_size=rows, collate_fn=collate, num_workers=0))

    return [Contender("datasets, TRL's padding-free collator", passes, False, "peer")]


def torchdata_contenders(folder: Path) -> list[Contender]:
    """torchdata's StatefulDataLoader over `datasets`."""
    loader = imported("torchdata.stateful_dataloader").StatefulDataLoader
    datasets = imported("datasets")
    table = datasets.load_from_disk(str(folder)).select_columns(list(COLUMNS)).with_format("numpy")

    def passes(rows: int) -> Iterator[Batch]:
        return iter(loader(table, batch_size=rows, collate_fn=flatten_arrays, num_workers=0))

    return [Contender("torchdata StatefulDataLoader over datasets, numpy", passes, False, "peer")]


def streaming_contenders(folder: Path, shards: Sequence[Path], work: Path) -> list[Contender]:
    """MosaicML streaming on MDS shards of the same rows."""
    streaming = imported("streaming")
    from torch.utils.data import DataLoader

    out = work / "mds"
    shutil.rmtree(out, ignore_errors=True)
    columns = dict.fromkeys(COLUMNS, "ndarray:int32")
    with streaming.MDSWriter(out=str(out), columns=columns, size_limit=64 << 20) as writer:
        for chunk in map_chunks(shards):
            for row in range(chunk.rows):
                writer.write({name: v[o[row] : o[row + 1]] for name, (v, o) in chunk.columns.items()})

    def passes(rows: int, shuffle: bool) -> Iterator[Batch]:
        streaming.base.util.clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(local=str(out), shuffle=shuffle, batch_size=rows, num_canonical_nodes=1)
        return iter(DataLoader(dataset, batch_size=rows, collate_fn=flatten_arrays, num_workers=0))

    return [
        Contender(f"MosaicML streaming, MDS{', shuffled' * shuffle}", partial(passes, shuffle=shuffle), shuffle, "peer")
        for shuffle in (False, True)
    ]


def packtrain_contenders(folder: Path) -> list[Contender]:
    """Ours: as it comes, without a thread, in other orders."""
    from packtrain.training import PackedLoader

    variants: list[tuple[str, dict[str, Any]]] = [
        (IN_ORDER, {"order": "sequential"}),
        ("packtrain, in order, prefetch=0", {"order": "sequential", "prefetch": 0}),
        (SHUFFLED, {"order": "full", "first_epoch_sequential": False}),
        ("packtrain, full, prefetch=0", {"order": "full", "first_epoch_sequential": False, "prefetch": 0}),
    ]

    def passes(rows: int, options: dict[str, Any]) -> Iterator[Batch]:
        return iter(PackedLoader(folder, rows_per_step=rows, epochs=EPOCHS, **options))

    return [
        Contender(name, partial(passes, options=options), options["order"] != "sequential", "packtrain")
        for name, options in variants
    ]


def all_contenders(folder: Path, work: Path) -> tuple[list[Contender], dict[str, str]]:
    """Everything that can run here; and, by name, why the others cannot."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    shards = [folder / shard["name"] for shard in manifest["splits"]["train"]["shards"]]
    makers: dict[str, Callable[[], list[Contender]]] = {
        "packtrain": partial(packtrain_contenders, folder),
        "bare copy": partial(bare_contenders, shards),
        "MosaicML streaming": partial(streaming_contenders, folder, shards, work),
        "datasets": partial(hf_contenders, folder),
        "TRL": partial(trl_contenders, folder),
        "torchdata": partial(torchdata_contenders, folder),
    }
    made: list[Contender] = []
    missing: dict[str, str] = {}
    for name, make in makers.items():
        try:
            made += make()
        except MissingPeerError as error:
            missing[name] = str(error)
    return made, missing
