"""Digests of the documents of a finished dataset, which depend neither on the order of rows nor on where they end.

A digest is a sum over tokens, each mixed with its place in its document. N documents take about 100 bytes each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from ...schemas.fingerprint import GOLDEN, mix
from ...schemas.ragged import ranges, starts_of
from ...schemas.rows import IGNORE_INDEX, UNPADDED
from ...stages.arrays import list_lengths, view
from ..dataset.open_dataset import Finished
from ..observer import Observer
from ..pack.documents import NAME

TOKENS_AT_ONCE = 1 << 20
_PARTS = ("prompt_ids", "chosen_ids", "rejected_ids")
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Documents:
    """The packed documents of a dataset, in the order of documents.parquet. Unread numbers are 0."""

    ids: pa.Array
    """(N,) as `source/file:line`, from data."""
    tokens: NDArray[np.int64]
    """(N,) tokens of one copy in the rows, without padding; before any cut, if no rows were read."""
    copies: NDArray[np.int64]
    split: NDArray[np.int64]
    """(N,) place of the split in the manifest."""
    digests: NDArray[np.uint64]
    """(2, N) sums over all copies: of tokens, and of trained tokens."""


class _Pieces(NamedTuple):
    """Pieces of documents, each with at least one token. P pieces, T tokens."""

    owners: NDArray[np.int64]
    """(P,) doc_id."""
    starts: NDArray[np.int64]
    """(P,) a number by which the first piece of each copy is known: the smallest."""
    sizes: NDArray[np.int64]
    """(P,) tokens, with padding."""
    ends: NDArray[np.int64] | None
    """(P,) where padding begins in the document; None if it begins after the last token of the document, if at all."""
    places: NDArray[np.int64]
    """(T,) places in documents."""
    tokens: NDArray[np.int64]
    trained: NDArray[np.bool_]


def read_documents(dataset: Finished, *, quick: bool, observer: Observer) -> Documents:
    """Read the packed documents of a dataset.

    Args:
        quick: read documents.parquet alone, which has ids and lengths.

    Raises:
        IntegrityError: a file is missing or damaged, or the rows have a document that documents.parquet lacks.
    """
    table = _table(dataset)
    doc_ids, lengths = (view(table[name].combine_chunks()).astype(np.int64) for name in ("doc_id", "tokens"))
    ids, count = table["id"].cast(pa.large_string()).combine_chunks(), len(doc_ids)
    tokens, copies, split = (np.zeros(count, np.int64) for _ in range(3))
    sums, first = np.zeros((2, count), np.uint64), np.full(count, _FAR)
    if quick:
        return Documents(ids, lengths, copies, split, sums)
    for number, record in enumerate(dataset.manifest.splits.values()):
        for shard in record.shards:
            for pieces in (pieces for batch in dataset.batches(shard) for pieces in _pieces(batch)):
                if not len(pieces.owners):
                    continue
                at = np.searchsorted(doc_ids, pieces.owners)
                if not np.array_equal(doc_ids[np.minimum(at, count - 1)] if count else doc_ids, pieces.owners):
                    raise IntegrityError(
                        f"{dataset.store.url} has documents in its rows that {NAME} does not list; run packtrain verify"
                    )
                begins, ends = starts_of(pieces.sizes), lengths[at] if pieces.ends is None else pieces.ends
                real = pieces.places < np.repeat(ends, pieces.sizes)
                placed = pieces.tokens.astype(np.uint64) | (pieces.places.astype(np.uint64) << np.uint64(32))
                words = mix(placed * GOLDEN)
                for total, flags in zip(sums, (real, real & pieces.trained), strict=True):
                    np.add.at(total, at, np.add.reduceat(np.where(flags, words, np.uint64(0)), begins))
                np.add.at(tokens, at, np.add.reduceat(real, begins, dtype=np.int64))
                before = first[at]
                np.minimum.at(first, at, pieces.starts)
                copies[at[first[at] < before]] = 0
                np.add.at(copies, at[pieces.starts == first[at]], 1)
                split[at] = number
            observer.advance(shard.tokens, rows=shard.rows, tokens=shard.tokens)
    return Documents(ids, tokens // np.maximum(copies, 1), copies, split, sums)


def _table(dataset: Finished) -> pa.Table:
    where = dataset.store.where(NAME)
    record = next((file for file in dataset.manifest.files if file.name == NAME), None)
    try:
        if record is None:
            raise FileNotFoundError(NAME)
        path = dataset.store.local(NAME, bytes=record.bytes, hash=record.hash)
        with pq.ParquetFile(path) as file:
            return file.read(columns=["doc_id", "id", "tokens"])
    except (pa.ArrowException, OSError) as error:
        raise IntegrityError(
            f"{where} is damaged or missing ({error}); `packtrain verify --repair` rebuilds it"
        ) from None


def _pieces(batch: pa.RecordBatch) -> Iterator[_Pieces]:
    """Yield the pieces of packed rows, or of pairs, a few rows at a time."""
    pairs = _PARTS[0] in batch.schema.names
    size = sum(int(list_lengths(batch.column(name)).sum()) for name in (_PARTS if pairs else ("input_ids",)))
    step = max(1, batch.num_rows * TOKENS_AT_ONCE // max(size, 1))
    for row in range(0, batch.num_rows, step):
        some = batch.slice(row, step)
        yield from (_part_of_pairs(some, kind) for kind in range(len(_PARTS))) if pairs else [_packed(some)]


def _packed(batch: pa.RecordBatch) -> _Pieces:
    flat = {name: view(batch.column(name).flatten()) for name in batch.schema.names}
    there = flat["seq_lengths"] > 0
    sizes, starts = (flat[name][there].astype(np.int64) for name in ("seq_lengths", "doc_starts"))
    ends = flat[UNPADDED][there].astype(np.int64) + starts if UNPADDED in flat else None
    places = flat["position_ids"].astype(np.int64) + np.repeat(starts, sizes)
    trained = flat["labels"] != IGNORE_INDEX
    return _Pieces(flat["doc_ids"][there], starts, sizes, ends, places, flat["input_ids"], trained)


def _part_of_pairs(batch: pa.RecordBatch, kind: int) -> _Pieces:
    """Make pieces of the prompts, chosen or rejected completions, with places that are not those of other parts."""
    column = batch.column(_PARTS[kind])
    sizes = list_lengths(column)
    there = sizes > 0
    owners, count = view(batch.column("doc_ids").flatten())[there], int(there.sum())
    starts = np.full(count, (1, 0, 2)[kind])  # the chosen completion is never empty, so it counts copies
    places, trained = ranges(0, sizes) + (kind << 29), np.full(int(sizes.sum()), kind > 0)
    return _Pieces(owners, starts, sizes[there], np.full(count, _FAR), places, view(column.flatten()), trained)
