"""Digests of the documents of a finished dataset, which depend neither on the order of rows nor on where they end.

A digest is a sum over tokens, each mixed with its place in its document. N documents take about 120 bytes each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_PARTS = ("prompt_ids", "chosen_ids", "rejected_ids")
_Words = NDArray[np.uint64]


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
    digests: _Words
    trained: _Words
    """(N,) digests of the trained tokens."""


@dataclass(frozen=True, slots=True)
class _Pieces:
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
    ids = table["id"].cast(pa.large_string()).combine_chunks()
    count = len(doc_ids)
    tokens, copies, split = (np.zeros(count, np.int64) for _ in range(3))
    if quick:
        nothing = np.zeros(count, np.uint64)
        return Documents(ids, lengths, copies, split, nothing, nothing)
    sums = np.zeros((4, count), np.uint64)  # low and high halves of words, of all tokens and of the trained ones
    first = np.full(count, np.iinfo(np.int64).max)
    for number, record in enumerate(dataset.manifest.splits.values()):
        for shard in record.shards:
            for pieces in (pieces for batch in dataset.batches(shard) for pieces in _pieces(batch)):
                at = np.searchsorted(doc_ids, pieces.owners)
                if not np.array_equal(doc_ids[np.minimum(at, count - 1)] if count else doc_ids, pieces.owners):
                    raise IntegrityError(
                        f"{dataset.store.url} has documents in its rows that {NAME} does not list; run packtrain verify"
                    )
                _add(pieces, at, lengths[at], sums, tokens)
                before = first[at]
                np.minimum.at(first, at, pieces.starts)
                copies[at[first[at] < before]] = 0
                np.add.at(copies, at[pieces.starts == first[at]], 1)
                split[at] = number
            observer.advance(shard.tokens, rows=shard.rows, tokens=shard.tokens)
    each = np.maximum(copies, 1)
    digests, trained = (_one_copy(low, high, each.astype(np.uint64)) for low, high in (sums[:2], sums[2:]))
    return Documents(ids, tokens // each, copies, split, digests, trained)


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
        if pairs:
            yield from (_part_of_pairs(some, kind) for kind in range(len(_PARTS)))
        else:
            yield _packed(some)


def _packed(batch: pa.RecordBatch) -> _Pieces:
    flat = {name: view(batch.column(name).flatten()) for name in batch.schema.names}
    there = flat["seq_lengths"] > 0
    sizes, starts = (flat[name][there].astype(np.int64) for name in ("seq_lengths", "doc_starts"))
    return _Pieces(
        owners=flat["doc_ids"][there],
        starts=starts,
        sizes=sizes,
        ends=flat[UNPADDED][there].astype(np.int64) + starts if UNPADDED in flat else None,
        places=flat["position_ids"].astype(np.int64) + np.repeat(starts, sizes),
        tokens=flat["input_ids"],
        trained=flat["labels"] != IGNORE_INDEX,
    )


def _part_of_pairs(batch: pa.RecordBatch, kind: int) -> _Pieces:
    """Make pieces of the prompts, chosen or rejected completions, with places that are not those of other parts."""
    column, owners = batch.column(_PARTS[kind]), view(batch.column("doc_ids").flatten())
    sizes = list_lengths(column)
    there = sizes > 0
    return _Pieces(
        owners=owners[there],
        starts=np.full(int(there.sum()), (1, 0, 2)[kind]),  # the chosen completion is never empty, so it counts copies
        sizes=sizes[there],
        ends=np.full(int(there.sum()), np.iinfo(np.int64).max),
        places=ranges(0, sizes) + (kind << 29),
        tokens=view(column.flatten()),
        trained=np.full(int(sizes.sum()), kind > 0),
    )


def _add(
    pieces: _Pieces, at: NDArray[np.int64], lengths: NDArray[np.int64], sums: _Words, tokens: NDArray[np.int64]
) -> None:
    """Add pieces of the documents `at`, (P,), that have so many tokens, (P,), to (4, N) sums and (N,) tokens."""
    if not len(at):
        return
    words = mix((pieces.tokens.astype(np.uint64) | (pieces.places.astype(np.uint64) << _HALF)) * GOLDEN)
    real = pieces.places < np.repeat(lengths if pieces.ends is None else pieces.ends, pieces.sizes)
    words[~real] = 0
    trained = np.where(pieces.trained, words, np.uint64(0))
    begins = starts_of(pieces.sizes)
    for total, each in zip(sums, (words & _LOW, words >> _HALF, trained & _LOW, trained >> _HALF), strict=True):
        np.add.at(total, at, np.add.reduceat(each, begins))
    np.add.at(tokens, at, np.add.reduceat(real, begins, dtype=np.int64))


def _one_copy(low: _Words, high: _Words, copies: _Words) -> Any:
    """Return (N,) digests of one copy. The remainders are 0 if all copies of a document are cut alike."""
    rest = (low % copies) ^ ((high % copies) << _HALF)
    return mix((low // copies) ^ mix(high // copies + GOLDEN) ^ rest)
