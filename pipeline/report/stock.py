"""The stock of a run: how long its documents are, and what in them is trained, read from encoded parts.

It holds what the train split packs, after filters, limits of prompts and completions, duplicates and copies, and
before `max_length`, so that the sweep can say what any other length would give. Copies are those of the configured
length: a weight asks for shares of packed tokens, which another length would shift a little. And a copy of an example
that is too long is a copy here, while a run counts it by its length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...schemas.config import RunConfig
from ...schemas.errors import ConfigError, IntegrityError, StoreError
from ...schemas.jsontext import decode_note
from ...stages.stock import Parts, Stock
from ..catalogue import PartPlace
from ..deciding import Mixer
from ..parts import EncodedPart, PartList, Segment
from ..reader import Finished
from ..recall import recall, recall_cache, recall_spec
from ..sealed import unseal
from ..selecting import Refused, mask_of, splitter_of
from ..stores import ask_all, open_store, scratch_of
from ..survey import Surveyor, splits_of
from ..windows import Lot, mix64
from .choice import candidates
from .options import ReportOptions
from .pieces import PieceTable

_PARTS = "_run/parts.json"


@dataclass(frozen=True, slots=True)
class FoundStock:
    """What the cache still holds of a finished run."""

    config: RunConfig
    stock: Stock
    documents_in_all: int
    """Of the stock; more than it has where it is a sample."""


def read_stock(
    config: RunConfig,
    places: Sequence[PartPlace],
    sizes: Sequence[int],
    tokenizer_json: str,
    scratch: Path,
    options: ReportOptions,
) -> tuple[Stock, int]:
    """The stock, and how many documents it has in all: about that many, where only `options.documents` are read.

    A sample is of whole parts, which the seed chooses, and duplicates are looked for in it alone.

    Args:
        places, sizes, tokenizer_json, scratch: as `Surveyor` takes them.

    Raises:
        ConfigError: a weight asks for too many copies.
        IntegrityError: a part cannot be read, or is not what its record says.
    """
    parts = _some(np.array(sizes, dtype=np.int64), options.documents, config.seed)
    some = [places[index] for index in parts.tolist()], [sizes[index] for index in parts.tolist()]
    whole = _Whole(_unlimited(config), *some, tokenizer_json, scratch)
    table = None
    if config.truncate.overlong == "split":
        table = PieceTable(splitter_of(config, mask_of(config), tokenizer_json), candidates(config, options.lengths))
    stock = whole.stock(config, tokenizer_json, scratch, table)
    read, every = sum(some[1]), sum(sizes)
    return stock, len(stock.lengths) if read == every else round(len(stock.lengths) * every / max(read, 1))


def stock_of(dataset: Finished, options: ReportOptions) -> FoundStock | str:
    """The stock of a finished run, from the cache; or why it cannot be had."""
    if "pairs" in dataset.manifest.plan["encode"]:
        return "preference pairs are not packed: each is a row of its own"
    asked = recall(dataset.store)
    data = dataset.store.read(_PARTS)
    if asked is None or data is None:
        return f"{dataset.store.where('_run')} does not say any more what this was packed from"
    try:
        listed = decode_note(data, PartList)
        place = recall_cache(dataset.store, listed.cache)
        if place is None:
            return f"the cache is gone: {listed.cache} is not a cache of packtrain's"
        cache = open_store(place)
        records = ask_all(cache, lambda part: unseal(cache.read(f"{part.name.rpartition('-')[0]}.json")), listed.parts)
        sizes = [decode_note(record, _Size) for record in records]
        for part, size in zip(listed.parts, sizes, strict=True):
            if cache.size(part.name) != size.bytes:
                return f"the cache is gone: {cache.where(part.name)} is missing or damaged"
        places = [
            PartPlace(cache, part, source, "", 0) for part, source in zip(listed.parts, listed.sources, strict=True)
        ]
        examples = [size.examples for size in sizes]
        spec = recall_spec(cache, dataset.manifest.plan)
        if spec is None:
            return f"the cache is gone: {cache.where('specs')} does not hold how its parts were encoded"
        found = read_stock(asked.config, places, examples, spec.tokenizer_json, scratch_of(cache).root, options)
    except (StoreError, IntegrityError, ConfigError, OSError) as error:
        return f"the encoded parts cannot be read any more: {error}"
    except (msgspec.MsgspecError, ValueError):
        return "the cache is gone: the records of its parts are missing, or another version wrote them"
    return FoundStock(asked.config, *found)


class _Size(msgspec.Struct):
    """Of a part's record, what is needed here."""

    bytes: int
    examples: int


def _some(sizes: NDArray[np.int64], most: int | None, seed: int) -> NDArray[np.int64]:
    """Which parts are read, rising: all, or as many as have about `most` documents."""
    if most is None or int(sizes.sum()) <= most:
        return np.arange(len(sizes))
    order = np.argsort(mix64(np.arange(len(sizes), dtype=np.uint64), seed), kind="stable")
    count = max(1, int(np.searchsorted(np.cumsum(sizes[order]), most, side="right")))
    return np.sort(order[:count])


def _unlimited(config: RunConfig) -> RunConfig:
    """The same without `max_length`, and with every document once."""
    return config.model_copy(
        update={
            "truncate": config.truncate.model_copy(update={"overlong": "truncate"}),
            "pack": config.pack.model_copy(update={"strategy": "bfd_split"}),  # which goes on with whole documents
            "sources": tuple(one.model_copy(update={"weight": None, "repeat": None}) for one in config.sources),
        }
    )


class _Whole(Surveyor):
    """Decides about documents as a run does, but for `max_length`."""

    def stock(self, config: RunConfig, tokenizer_json: str, scratch: Path, table: PieceTable | None) -> Stock:
        """What is packed in the train split.

        Args:
            config: with its `max_length`, which copies depend on.
            table: cuts what is too long, where that is split before packing.
        """
        self._decide(Refused())
        if Mixer.needed(config):
            mixed = _Whole(
                config.model_copy(update={"duplicates": "keep"}),
                self._places,
                self._sizes.tolist(),
                tokenizer_json,
                scratch,
            )
            mixed._decisions.twins = self._decisions.twins
            mixed._decide(Refused())
            self._decisions.quotas = mixed._decisions.quotas
        gathered = _Gathering(table)
        for lot in self._lots(np.arange(len(self._places))):
            gathered.add(lot, self._config)
        return gathered.stock([place.source for place in self._places])


class _Gathering:
    """Puts the stock together, lot by lot."""

    def __init__(self, table: PieceTable | None) -> None:
        self._table = table
        self._lengths: list[NDArray[np.int32]] = []
        self._copies: list[NDArray[np.int32]] = []
        self._runs: list[tuple[NDArray[np.int32], ...]] = []
        self._sizes: list[NDArray[np.int64]] = []
        """Documents of each part, every copy counted."""
        self._count = 0
        self._held_out = 0

    def add(self, lot: Lot, config: RunConfig) -> None:
        """Add the documents of a lot that are packed."""
        chosen, catalogue = lot.chosen, lot.chosen.catalogue
        taken = chosen.packed & splits_of(config, catalogue)["train"]
        numbers = np.cumsum(taken, dtype=np.int32) - 1 + np.int32(self._count)
        first = 0
        for segment in self._segments(lot, config):
            last = first + len(segment.offsets) - 1
            here = slice(first, last)
            runs = _asked(segment, taken[here], catalogue.low[here], catalogue.high[here])
            self._runs.append((numbers[here][runs[0]], *runs[1:]))
            first = last
        if self._table is not None:
            self._table.add(catalogue, taken, numbers)
        self._lengths.append((catalogue.high - catalogue.low)[taken])
        self._copies.append(chosen.selection.copies[taken])
        often = np.zeros(len(taken) + 1, dtype=np.int64)
        np.cumsum(np.where(taken, chosen.selection.copies, 0), out=often[1:])
        self._sizes.append(np.diff(often[catalogue.part_starts]))
        self._count += int(taken.sum())
        self._held_out += int(np.count_nonzero(chosen.packed)) - int(taken.sum())

    def stock(self, sources: Sequence[int]) -> Stock:
        """All of it; this object is empty afterwards.

        Args:
            sources: of each part.
        """
        lengths, copies = _joined(self._lengths), _joined(self._copies)
        owners, begins, ends = (
            (_joined(list(column)) for column in zip(*self._runs, strict=True)) if self._runs else [_joined([])] * 3
        )
        starts = np.zeros(len(sources) + 1, dtype=np.int64)
        np.cumsum(np.concatenate([np.zeros(0, np.int64), *self._sizes]), out=starts[1:])
        parts = Parts(starts, np.array(sources, dtype=np.int32))
        pieces = self._table.pieces() if self._table is not None else {}
        self._lengths, self._copies, self._runs, self._table = [], [], [], None
        if len(copies) and copies.max() > 1:
            documents = np.repeat(np.arange(len(lengths)), copies)
            lengths = lengths[documents]
            pieces = {length: one.take(*_copied(one.owners, documents)) for length, one in pieces.items()}
            take, owners = _copied(owners, documents)
            begins, ends = begins[take], ends[take]
        return Stock(lengths, owners, begins, ends, parts, pieces, self._held_out)

    def _segments(self, lot: Lot, config: RunConfig) -> Iterator[Segment]:
        mask = mask_of(config)
        for place in lot.chosen.catalogue.parts:
            yield from EncodedPart(place.path).segments(mask)


def _asked(
    segment: Segment, taken: NDArray[np.bool_], low: NDArray[np.int32], high: NDArray[np.int32]
) -> tuple[NDArray[np.int32], ...]:
    """(owners, begins, ends) of the runs that are asked for, neighbours joined, of the documents that are taken.

    Args:
        taken, low, high: (N,) of the segment's documents; what stays of each, from which begins and ends are counted.
    """
    owners = np.repeat(np.arange(len(taken), dtype=np.int32), np.diff(segment.run_offsets))
    asked = segment.runs >= 0
    every = np.where(asked, segment.runs, ~segment.runs)
    begins = np.empty_like(every)
    begins[1:] = every[:-1]
    begins[segment.run_offsets[:-1]] = 0  # a document has at least one run
    mine = asked & taken[owners]
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
    """Things of documents, rising, where these are listed several times: which of the things, and whose each is then.

    Args:
        documents: (N,) which document each is a copy of, never falling.
    """
    starts = np.searchsorted(owners, documents, side="left")
    counts = np.searchsorted(owners, documents, side="right") - starts
    firsts = np.cumsum(counts) - counts
    take = np.arange(int(counts.sum())) + np.repeat(starts - firsts, counts)
    return take, np.repeat(np.arange(len(documents), dtype=np.int32), counts)


def _joined(columns: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int32)
