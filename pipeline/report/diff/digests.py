"""Computes, from a dataset's rows, digests of each example's tokens and trained tokens, and counts both.

A digest is a sum over tokens, each mixed with its position in the document. So it depends neither on the order of rows
nor on where documents are cut. Digests take about 70 bytes per document, in anonymous files if there are many.
"""

import tempfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from ....schemas.errors import IntegrityError
from ....schemas.ragged import ranges, starts_of
from ....schemas.rows import IGNORE_INDEX, UNPADDED
from ....schemas.splitmix import GOLDEN, mix
from ....stages.arrays import list_lengths, view
from ...dataset.open import Finished
from ...observer import Observer
from ...pack.documents import NAME
from ...store.anonymous_files import nameless

IN_MEMORY = 1 << 20
"""With more documents than this, arrays are kept in files."""
TOKENS_AT_ONCE = 1 << 17
"""Number of tokens digested at once: few enough for the processor's cache."""
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_PARTS = ("prompt_ids", "chosen_ids", "rejected_ids")
_Words = NDArray[np.uint64]


class Digests:
    """Digests of N packed documents, in the order of `documents.parquet`.

    Args:
        names: maps the (source, file) of renamed files to the (source, file) to use in ids instead.
    """

    def __init__(self, dataset: Finished, names: "Mapping[tuple[str, str], tuple[str, str]] | None" = None) -> None:
        self.dataset = dataset
        self.splits = list(dataset.manifest.splits)
        self.sources = [source["name"] for source in dataset.manifest.plan["config"]["sources"]]
        self.count = sum(group.num_rows for group in self._groups())
        count = self.count
        self.doc_ids: NDArray[np.int64] = _array(count, np.int64)
        self.keys: _Words = _array(count, np.uint64)
        """(N,) hashes of the ids."""
        self.source: NDArray[np.int16] = _array(count, np.int16)
        self.lengths: NDArray[np.int32] = _array(count, np.int32)
        """(N,) tokens before any cut."""
        self.tokens: NDArray[np.int64] = _array(count, np.int64)
        """(N,) tokens of one copy in the rows; the average, if copies are cut differently."""
        self.trained: NDArray[np.int64] = _array(count, np.int64)
        """(N,) trained tokens of one copy in the rows; the average, if copies are cut differently."""
        self.copies: NDArray[np.int32] = _array(count, np.int32)
        self.split: NDArray[np.int8] = _array(count, np.int8)
        self.digests: _Words = _array(count, np.uint64)
        self.labels: _Words = _array(count, np.uint64)
        """(N,) digests of the trained tokens."""
        self._read_documents(names or {})

    def read_rows(self, observer: Observer) -> None:
        """Fill in everything that can only be learned from the rows.

        Raises:
            IntegrityError: a shard is missing or damaged, or has documents that `documents.parquet` lacks.
        """
        sums = [_array(self.count, np.uint64) for _ in range(4)]
        firsts = _array(self.count, np.int32)
        firsts[:] = np.iinfo(np.int32).max
        aligned = self.dataset.manifest.alignment.pads
        preference = self.dataset.manifest.preference
        for number, split in enumerate(self.splits):
            for shard in self.dataset.manifest.splits[split].shards:
                for batch in self.dataset.batches(shard):
                    for part in _lots(batch, preference):
                        self._add(_Pairs(part) if preference else _Pieces(part), number, sums, firsts, aligned)
                observer.advance(shard.tokens, rows=shard.rows, tokens=shard.tokens)
        for first in range(0, self.count, IN_MEMORY):
            here = slice(first, first + IN_MEMORY)
            copies = np.maximum(self.copies[here], 1).astype(np.uint64)
            for out, low, high in ((self.digests, *sums[:2]), (self.labels, *sums[2:])):
                out[here] = _joined(low[here], high[here], copies)
            whole = copies.astype(np.int64)
            self.tokens[here] //= whole
            self.trained[here] //= whole

    def rows_of(self, places: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Read `id`, `source` and `file` of the documents at some positions, which must be ascending."""
        out: list[dict[str, Any]] = []
        first = 0
        with pq.ParquetFile(self._path()) as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                here = places[(places >= first) & (places < first + size)] - first
                if len(here):
                    table = file.read_row_group(group, columns=["id", "source", "file"])
                    out += table.take(pa.array(here.tolist(), pa.int64())).to_pylist()
                first += size
        return out

    def _path(self) -> Path:
        record = next((one for one in self.dataset.manifest.files if one.name == NAME), None)
        where = self.dataset.store.where(NAME)
        try:
            if record is None:
                raise FileNotFoundError(NAME)
            return self.dataset.store.local(NAME, bytes=record.bytes, hash=record.hash)
        except OSError:
            raise IntegrityError(f"{where} is missing or damaged; `packtrain verify --repair` rebuilds it") from None

    def _groups(self) -> Iterator[pq.RowGroupMetaData]:
        try:
            with pq.ParquetFile(self._path()) as file:
                yield from [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        except (pa.ArrowException, OSError) as error:
            where = self.dataset.store.where(NAME)
            raise IntegrityError(f"{where} is damaged ({error}); `packtrain verify --repair` rebuilds it") from None

    def _read_documents(self, names: Mapping[tuple[str, str], tuple[str, str]]) -> None:
        at = 0
        numbers = {name: number for number, name in enumerate(self.sources)}
        columns = ["doc_id", "id", "source", "tokens", *(["file"] if names else [])]
        try:
            with pq.ParquetFile(self._path()) as file:
                for batch in file.iter_batches(columns=columns):
                    here = slice(at, at := at + batch.num_rows)
                    self.doc_ids[here] = view(batch.column("doc_id"))
                    self.lengths[here] = view(batch.column("tokens"))
                    source = batch.column("source")
                    known = np.array([numbers[name] for name in source.dictionary.to_pylist()], np.int16)
                    self.source[here] = known[view(source.indices)]
                    ids = batch.column("id").to_pylist()
                    if names:
                        sources, files = (batch.column(name).to_pylist() for name in ("source", "file"))
                        ids = [_renamed(*each, names) for each in zip(ids, sources, files, strict=True)]
                    keys = map(xxhash.xxh3_64_intdigest, map(str.encode, ids))
                    self.keys[here] = np.fromiter(keys, np.uint64, len(ids))
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            where = self.dataset.store.where(NAME)
            raise IntegrityError(f"{where} is damaged ({error}); `packtrain verify --repair` rebuilds it") from None

    def _add(
        self, pieces: "_Pieces | _Pairs", split: int, sums: list[_Words], firsts: NDArray[np.int32], aligned: bool
    ) -> None:
        """Add pieces, each with at least one token."""
        if not len(pieces.owners):
            return
        places = np.searchsorted(self.doc_ids, pieces.owners)
        listed = self.count > 0 and np.array_equal(self.doc_ids[np.minimum(places, self.count - 1)], pieces.owners)
        if not listed:
            raise IntegrityError(
                f"{self.dataset.store.url} has documents in its rows that {NAME} does not list; run packtrain verify"
            )
        words = mix((pieces.tokens.astype(np.uint64) | (pieces.positions.astype(np.uint64) << np.uint64(32))) * GOLDEN)
        if pieces.salts is not None:
            words = mix(words + np.repeat(pieces.salts, pieces.sizes))
        begins = starts_of(pieces.sizes)
        sizes = pieces.sizes
        if aligned:  # positions after a piece's last token are padding, or after its document's if that is not known
            ends = self.lengths[places] if pieces.ends is None else pieces.ends
            real = pieces.positions < np.repeat(ends, pieces.sizes)
            sizes = np.add.reduceat(real, begins, dtype=np.int64)
            words[~real] = 0
        trained = np.where(pieces.trained, words, np.uint64(0))
        for total, each in zip(sums, (words & _LOW, words >> _HALF, trained & _LOW, trained >> _HALF), strict=True):
            np.add.at(total, places, np.add.reduceat(each, begins))
        np.add.at(self.tokens, places, sizes)
        np.add.at(self.trained, places, np.add.reduceat(pieces.trained, begins, dtype=np.int64))
        self.split[places] = split
        # The number of copies is the number of pieces that have the smallest start found.
        before = firsts[places]
        np.minimum.at(firsts, places, pieces.starts)
        now = firsts[places]
        self.copies[places[now < before]] = 0
        np.add.at(self.copies, places[pieces.starts == now], 1)


class _Pieces:
    """Return the pieces of some packed rows."""

    salts: _Words | None = None

    def __init__(self, batch: pa.RecordBatch) -> None:
        flat = {name: view(batch.column(name).flatten()) for name in batch.schema.names}
        there = flat["seq_lengths"] > 0
        self.sizes = flat["seq_lengths"][there].astype(np.int64)
        self.owners = flat["doc_ids"][there]
        self.starts = flat["doc_starts"][there]
        self.tokens = flat["input_ids"]
        self.trained = flat["labels"] != IGNORE_INDEX
        self.positions = flat["position_ids"].astype(np.int64) + np.repeat(self.starts, self.sizes)
        self.ends: NDArray[np.int64] | None = None
        """(P,) the position after each piece's last token, if the rows say how long pieces are without padding."""
        if UNPADDED in flat:
            self.ends = flat[UNPADDED][there].astype(np.int64) + self.starts


class _Pairs:
    """Return the prompt, chosen and rejected completion of some pairs, each as a piece."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        flat = [view(batch.column(name).flatten()) for name in _PARTS]
        sizes = [list_lengths(batch.column(name)) for name in _PARTS]
        owners = view(batch.column("doc_ids").flatten())
        kinds = np.concatenate([np.full(len(owners), kind) for kind in range(3)])
        lengths = np.concatenate(sizes)
        there = lengths > 0
        self.sizes = lengths[there]
        self.owners = np.concatenate([owners] * 3)[there]
        self.tokens = np.concatenate(flat)
        self.salts: _Words | None = kinds[there].astype(np.uint64)
        # The chosen completion is never empty, so it serves as the pair's start, by which copies are counted.
        self.starts = np.where(kinds[there] == 1, 0, 1).astype(np.int32)
        self.trained = np.repeat(kinds[there] > 0, self.sizes)
        self.positions = ranges(0, self.sizes)
        self.ends: NDArray[np.int64] | None = None


def _lots(batch: pa.RecordBatch, preference: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch, in chunks of about `TOKENS_AT_ONCE` tokens."""
    sizes = sum(list_lengths(batch.column(name)) for name in (_PARTS if preference else ("input_ids",)))
    if not batch.num_rows:
        return
    ends = np.cumsum(sizes)
    cuts = np.searchsorted(ends, np.arange(TOKENS_AT_ONCE, int(ends[-1]), TOKENS_AT_ONCE), side="right") + 1
    bounds = np.unique(np.concatenate([[0], np.minimum(cuts, batch.num_rows), [batch.num_rows]])).tolist()
    for first, last in pairwise(bounds):
        yield batch.slice(first, last - first)


def _joined(low: _Words, high: _Words, copies: _Words) -> _Words:
    """Make one digest from two sums over all copies. The remainder is 0 if all copies are cut alike."""
    rest = (low % copies) ^ ((high % copies) << np.uint64(32))
    return mix(low // copies ^ mix(high // copies + GOLDEN) ^ rest)


def _renamed(id: str, source: str, file: str, names: Mapping[tuple[str, str], tuple[str, str]]) -> str:
    was = names.get((source, file))
    return id if was is None else "/".join(was) + id[len(source) + len(file) + 1 :]


def _array(count: int, kind: Any) -> Any:
    """Return (count,) zeros; a mapped file if there are many."""
    if count <= IN_MEMORY:
        return np.zeros(count, kind)
    size = count * np.dtype(kind).itemsize
    return np.memmap(nameless(Path(tempfile.gettempdir()), size), dtype=kind, mode="r+", shape=(count,))
