"""Lengths and trained spans of a run's documents, read from encoded parts.

They are the documents of the train split after filters, prompt and completion limits, duplicates and copies, but before
`max_length`, so that the sweep can compare other lengths. The number of copies is that of the configured length: source
weights are shares of packed tokens, which another length would shift slightly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .....schemas.config.config import RunConfig
from .....schemas.errors import ConfigError, IntegrityError, StoreError
from .....schemas.ragged import offsets_of, ranges, sums_of
from .....stages.forecast.length_stats import LengthStats, Parts
from .....stages.mask.policy import Mask
from ....dataset.ids import Address
from ....dataset.open import Finished
from ....dataset.run_notes import CONFIG, recall, recall_parts, recall_spec
from ....encode.parts import EncodedPart, PartPlace, Segment
from ....pack.decide import MixtureSampler
from ....pack.select import splitter_of
from ....pack.survey import Surveyor, splits_of
from ....pack.windows import DocumentChunk, mix64
from ....store.open import scratch_of
from ...options import ReportOptions
from .choice import candidates
from .far_documents import NAMED
from .pieces import PieceTable


@dataclass(frozen=True, slots=True)
class FoundStats:
    """The lengths of a finished run, as the cache still has them."""

    config: RunConfig
    stats: LengthStats
    documents_in_all: int
    """Number of all documents, which is larger than the stats's if that is a sample."""


def read_stats(
    config: RunConfig,
    places: Sequence[PartPlace],
    sizes: Sequence[int],
    tokenizer_json: str,
    scratch: Path,
    options: ReportOptions,
    surveyor: Surveyor | None = None,
) -> tuple[LengthStats, int]:
    """The lengths, and the number of all documents, which is estimated if only `options.documents` are read.

    A sample consists of whole parts, chosen by the seed. Duplicates are found only within it.

    Args:
        places, sizes, tokenizer_json, scratch: as for `Surveyor`.
        surveyor: the run's, if it has read the parts.

    Raises:
        ConfigError: a source weight needs too many copies.
        IntegrityError: a part cannot be read, or differs from its record.
    """
    parts = _some(np.array(sizes, dtype=np.int64), options.documents, config.seed)
    some = [places[index] for index in parts.tolist()], [sizes[index] for index in parts.tolist()]
    table = None
    if config.truncate.overlong == "split":
        splitter = splitter_of(config, Mask.of(config.mask), tokenizer_json)
        table = PieceTable(splitter, candidates(config, options.lengths, options.shape.limit))
    if surveyor is None or len(parts) < len(places):
        surveyor = Surveyor(config, *some, tokenizer_json, scratch)
    stats = _gathered(config, *some, surveyor, table)
    read, every = sum(some[1]), sum(sizes)
    return stats, len(stats.lengths) if read == every else round(len(stats.lengths) * every / max(read, 1))


def stats_of(dataset: Finished, options: ReportOptions) -> FoundStats | str:
    """The lengths of a finished run, from the cache; or why they are not available."""
    if "pairs" in dataset.manifest.plan["encode"]:
        return "preference pairs are not packed: each is a row of its own"
    origin, noted = recall(dataset.store), recall_parts(dataset.store, dataset.manifest.plan)
    if origin is None:
        return f"{dataset.store.where(CONFIG)} no longer says what this was packed from"
    if isinstance(noted, str):
        return noted
    cache, parts = noted
    spec = recall_spec(cache, dataset.manifest.plan)
    if spec is None:
        return f"the cache is gone: {cache.where('specs')} no longer says how its parts were encoded"
    places, examples = [part.place for part in parts], [part.documents for part in parts]
    try:
        found = read_stats(origin.config, places, examples, spec.tokenizer_json, scratch_of(cache).root, options)
    except (StoreError, IntegrityError, ConfigError, OSError) as error:
        return f"the encoded parts can no longer be read: {error}"
    except ValueError:
        return "the cache is gone: another version wrote its parts"
    return FoundStats(origin.config, *found)


def _some(sizes: NDArray[np.int64], most: int | None, seed: int) -> NDArray[np.int64]:
    """Indices of the parts to read, ascending: all, or enough for about `most` documents."""
    if most is None or int(sizes.sum()) <= most:
        return np.arange(len(sizes))
    order = np.argsort(mix64(np.arange(len(sizes), dtype=np.uint64), seed), kind="stable")
    count = max(1, int(np.searchsorted(np.cumsum(sizes[order]), most, side="right")))
    return np.sort(order[:count])


def _unlimited(config: RunConfig) -> RunConfig:
    """The configuration without `max_length`, and with every document once."""
    return config.model_copy(
        update={
            "truncate": config.truncate.model_copy(update={"overlong": "truncate"}),
            "pack": config.pack.model_copy(update={"strategy": "bfd_split"}),  # selects whole documents
            "sources": tuple(one.model_copy(update={"weight": None, "repeat": None}) for one in config.sources),
        }
    )


def _gathered(
    config: RunConfig,
    places: Sequence[PartPlace],
    sizes: Sequence[int],
    surveyor: Surveyor,
    table: PieceTable | None,
) -> LengthStats:
    """The documents of the train split, selected as a run does, but before `max_length`.

    Args:
        config: with its `max_length`, because the number of copies depends on it.
        surveyor: of these parts; what it has read is not read again.
        table: cuts long documents if they are split before packing; else None.
    """
    mixes = MixtureSampler.needed(config)
    whole = surveyor.of_whole_documents(_unlimited(config), keeps=mixes or config.duplicates == "drop")
    whole.decide()
    if mixes:
        mixed = surveyor.under(config.model_copy(update={"duplicates": "keep"}))
        mixed.decisions.duplicates = whole.decisions.duplicates
        mixed.decide()
        whole.decisions.quotas = mixed.decisions.quotas
    gathered = _LengthsOfChunks(table)
    for chunk in whole.chunks():
        gathered.add(chunk, whole.config)
    return gathered.stats(places, sizes, [source.name for source in config.sources])


class _LengthsOfChunks:
    """Collects the lengths chunk by chunk."""

    def __init__(self, table: PieceTable | None) -> None:
        self._table = table
        self._lengths: list[NDArray[np.int32]] = []
        self._copies: list[NDArray[np.int32]] = []
        self._runs: list[tuple[NDArray[np.int32], ...]] = []
        self._sizes: list[NDArray[np.int64]] = []
        """(parts,) per chunk: documents of each part, with copies."""
        self._longest: list[tuple[int, int]] = []
        """(tokens, doc id) of the longest documents, the longest first."""
        self._count = 0
        self._held_out = 0

    def add(self, chunk: DocumentChunk, config: RunConfig) -> None:
        """Add the packed documents of a chunk."""
        chosen, catalogue = chunk.chosen, chunk.chosen.catalogue
        taken = chosen.packed & splits_of(config, catalogue)["train"]
        numbers = np.cumsum(taken, dtype=np.int32) - 1 + np.int32(self._count)
        first = 0
        for segment in self._segments(chunk, config):
            last = first + len(segment.offsets) - 1
            here = slice(first, last)
            runs = _supervised_runs(segment, taken[here], catalogue.low[here], catalogue.high[here])
            self._runs.append((numbers[here][runs[0]], *runs[1:]))
            first = last
        if self._table is not None:
            self._table.add(catalogue, taken, numbers)
        self._lengths.append((catalogue.high - catalogue.low)[taken])
        self._copies.append(chosen.selection.copies[taken])
        longest = np.argsort(-self._lengths[-1], kind="stable")[:NAMED]
        found = zip(self._lengths[-1][longest].tolist(), chunk.documents[taken][longest].tolist(), strict=True)
        self._longest = sorted([*self._longest, *found], key=lambda one: -one[0])[:NAMED]
        self._sizes.append(sums_of(np.where(taken, chosen.selection.copies, 0), catalogue.part_starts))
        self._count += int(taken.sum())
        self._held_out += int(np.count_nonzero(chosen.packed)) - int(taken.sum())

    def stats(self, places: Sequence[PartPlace], sizes: Sequence[int], names: Sequence[str]) -> LengthStats:
        """Everything collected; this object is empty afterwards.

        Args:
            places, sizes: the parts, and the number of documents in each.
            names: names of the sources.
        """
        lengths, copies = _joined(self._lengths), _joined(self._copies)
        owners, begins, ends = (
            (_joined(list(column)) for column in zip(*self._runs, strict=True)) if self._runs else [_joined([])] * 3
        )
        starts = offsets_of(np.concatenate([np.zeros(0, np.int64), *self._sizes]))
        parts = Parts(starts, np.array([place.source for place in places], dtype=np.int32))
        first = offsets_of(np.array(sizes, dtype=np.int64))
        longest = [(_id_of(document, places, first, names), tokens) for tokens, document in self._longest]
        pieces = self._table.pieces() if self._table is not None else {}
        self._lengths, self._copies, self._runs, self._table = [], [], [], None
        if len(copies) and copies.max() > 1:
            documents = np.repeat(np.arange(len(lengths)), copies)
            lengths = lengths[documents]
            pieces = {length: one.take(*_copied(one.owners, documents)) for length, one in pieces.items()}
            take, owners = _copied(owners, documents)
            begins, ends = begins[take], ends[take]
        return LengthStats(lengths, owners, begins, ends, parts, pieces, self._held_out, longest)

    def _segments(self, chunk: DocumentChunk, config: RunConfig) -> Iterator[Segment]:
        mask = Mask.of(config.mask)
        for place in chunk.chosen.catalogue.parts:
            yield from EncodedPart(place.path).segments(mask)


def _id_of(document: int, places: Sequence[PartPlace], starts: NDArray[np.int64], names: Sequence[str]) -> str:
    """The example id of a document.

    Args:
        document: its number over all parts.
        starts: (parts + 1,) over documents.
    """
    part = int(np.searchsorted(starts, document, side="right")) - 1
    place, row = places[part], document - int(starts[part])
    columns = pa.Table.from_batches(EncodedPart(place.path).batches).select(["line", "sub"]).slice(row, 1).to_pydict()
    (line,), (sub,) = columns["line"], columns["sub"]
    index, number = place.lines.find(line)
    return Address(names[place.source], place.lines.files[index], number, sub).id


def _supervised_runs(
    segment: Segment, taken: NDArray[np.bool_], low: NDArray[np.int32], high: NDArray[np.int32]
) -> tuple[NDArray[np.int32], ...]:
    """(owners, starts, ends) of the trained runs of the taken documents, with adjacent runs joined.

    Args:
        taken, low, high: (N,) of the segment's documents: whether it is taken, and the range of tokens that is kept.
            Starts and ends count from `low`.
    """
    owners = np.repeat(np.arange(len(taken), dtype=np.int32), np.diff(segment.run_offsets))
    supervised = segment.runs >= 0
    every = np.where(supervised, segment.runs, ~segment.runs)
    begins = np.empty_like(every)
    begins[1:] = every[:-1]
    begins[segment.run_offsets[:-1]] = 0  # a document has at least one run
    mine = supervised & taken[owners]
    owners = owners[mine]
    begins = np.maximum(begins[mine], low[owners]) - low[owners]
    ends = np.minimum(every[mine], high[owners]) - low[owners]
    there = begins < ends
    owners, begins, ends = owners[there], begins[there], ends[there]
    new = np.ones(len(owners), dtype=np.bool_)
    new[1:] = (owners[1:] != owners[:-1]) | (begins[1:] != ends[:-1])
    last = np.ones(len(owners), dtype=np.bool_)
    last[:-1] = new[1:]
    return owners[new], begins[new], ends[last]


def _copied(owners: NDArray[np.int32], documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Repeat items that belong to documents for every copy of their document: (item indices, their new owners).

    Args:
        owners: the document of each item, ascending.
        documents: (N,) the document that each copy is of, ascending.
    """
    starts = np.searchsorted(owners, documents, side="left")
    counts = np.searchsorted(owners, documents, side="right") - starts
    return ranges(starts, counts), np.repeat(np.arange(len(documents), dtype=np.int32), counts)


def _joined(columns: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int32)
