"""Reads a run's documents from encoded parts: their lengths, what is trained of them, and tokens by kind.

They are the documents of the train split after filters, prompt and completion limits, duplicates and copies, but before
`max_length`, so that other lengths can be compared. The number of copies is that of the configured length: source
weights are shares of packed tokens, which another length would shift slightly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig, SourceConfig
from ...schemas.errors import ConfigError, IntegrityError, StoreError
from ...schemas.ragged import begins_of, offsets_of, ranges
from ...schemas.report import KindCount
from ...schemas.rows import (
    ASSISTANT_KINDS,
    CALL_KINDS,
    COMPLETION_KINDS,
    END_KINDS,
    NEXT_STOP_KINDS,
    THOUGHT_KINDS,
    RunKind,
)
from ...stages.forecast.length_stats import LengthStats
from ...stages.mask.policy import Mask
from ..dataset.documents import Address
from ..dataset.open_dataset import Finished
from ..dataset.run_notes import RUN, recall, recall_parts, recall_spec
from ..encode.parts import EncodedPart, PartPlace, Runs
from ..pack.copies import mixes, set_copies
from ..pack.outcomes import REASONS, limits_of, select, splitter_of
from ..pack.table import HELD_OUT, Table, place_of, read_table
from ..pack.window_plan import mix64
from ..store.open_store import scratch_of
from .lengths import candidates
from .pieces import PieceTable
from .report_options import ReportOptions

NAMED = 3
"""How many of the longest documents are named."""
GROUPS: dict[str, frozenset[RunKind]] = {
    "thoughts": frozenset(THOUGHT_KINDS),
    "tool calls": frozenset(CALL_KINDS),
    "ends of turns": frozenset((*END_KINDS, *NEXT_STOP_KINDS)),
    "answers": frozenset(ASSISTANT_KINDS).difference(THOUGHT_KINDS, CALL_KINDS, END_KINDS),
    "other parts of completions": frozenset(COMPLETION_KINDS).difference(ASSISTANT_KINDS),
    "texts": frozenset({RunKind.TEXT}),
}
"""Kinds of tokens as the report names them; all others are `prompts`."""
_GROUP_OF = {kind: next((name for name, kinds in GROUPS.items() if kind in kinds), "prompts") for kind in RunKind}


@dataclass(frozen=True, slots=True)
class ReadDocuments:
    """The documents of a run."""

    config: RunConfig
    stats: LengthStats
    in_all: int
    """Number of all documents, which is larger than the stats's if that is a sample."""
    kinds: dict[str, list[KindCount]]
    """Tokens by kind, of each source."""


def read_documents(
    config: RunConfig,
    places: Sequence[PartPlace],
    sizes: Sequence[int],
    tokenizer_json: str,
    scratch: Path,
    options: ReportOptions,
) -> ReadDocuments:
    """The documents; their number in all is estimated if only `options.documents` are read.

    A sample consists of whole parts, chosen by the seed. Duplicates are found only within it.

    Args:
        places, sizes: the encoded parts, and the number of documents in each.
        tokenizer_json: its vocabulary shows where long documents may be split.
        scratch: a folder for anonymous files.

    Raises:
        ConfigError: a source weight needs too many copies.
        IntegrityError: a part cannot be read, or differs from its record.
    """
    parts = _some(np.array(sizes, dtype=np.int64), options.documents, config.seed)
    some = [places[index] for index in parts.tolist()], [sizes[index] for index in parts.tolist()]
    table = None
    if config.truncate.overlong == "split":
        splitter = splitter_of(config, tokenizer_json)
        table = PieceTable(splitter, candidates(config, options))
    stats, kinds = _gathered(config, *some, tokenizer_json, scratch, table)
    read, every, found = sum(some[1]), sum(sizes), len(stats.lengths)
    return ReadDocuments(config, stats, found if read == every else round(found * every / max(read, 1)), kinds)


def documents_of(dataset: Finished, options: ReportOptions) -> ReadDocuments | str:
    """The documents of a finished run, from the cache; or why they are not available."""
    origin, noted = recall(dataset.store), recall_parts(dataset.store, dataset.manifest.plan)
    if origin is None:
        return f"{dataset.store.where(RUN)} no longer says what this was packed from"
    if isinstance(noted, str):
        return noted
    cache, parts = noted
    spec = recall_spec(cache, dataset.manifest.plan)
    if spec is None:
        return f"the cache is gone: {cache.where('specs')} no longer says how its parts were encoded"
    places, examples = [part.place for part in parts], [part.documents for part in parts]
    try:
        return read_documents(origin.config, places, examples, spec.tokenizer_json, scratch_of(cache).root, options)
    except (StoreError, IntegrityError, ConfigError, OSError) as error:
        return f"the encoded parts can no longer be read: {error}"
    except ValueError:
        return "the cache is gone: another version wrote its parts"


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
            "sources": _once(config),
        }
    )


def _once(config: RunConfig) -> tuple[SourceConfig, ...]:
    return tuple(one.model_copy(update={"weight": None, "repeat": None}) for one in config.sources)


def _gathered(
    config: RunConfig,
    places: Sequence[PartPlace],
    sizes: Sequence[int],
    tokenizer_json: str,
    scratch: Path,
    pieces: PieceTable | None,
) -> tuple[LengthStats, dict[str, list[KindCount]]]:
    """The documents of the train split, and their tokens by kind, selected as a run does, but before `max_length`.

    Args:
        config: with its `max_length`, because the number of copies depends on it.
        pieces: cuts long documents if they are split before packing; else None.
    """
    without = _unlimited(config)
    whole = read_table(places, sizes, without, limits_of(without), scratch)
    select(whole, without, tokenizer_json, scratch)
    if mixes(config):
        how = {"overlong": "truncate"} if config.truncate.overlong == "error" else {}
        limited = {"truncate": config.truncate.model_copy(update=how), "duplicates": "keep", "sources": _once(config)}
        once = config.model_copy(update=limited)
        cut = read_table(places, sizes, once, limits_of(once), scratch)
        select(cut, once, tokenizer_json, scratch)
        same = REASONS.index("duplicate")
        cut.documents.outcome[(whole.documents.outcome == same) & (cut.documents.outcome == 0)] = same
        set_copies(cut, config, whole)
    gathered = _LengthsOfParts(whole, Mask.of_sources(config), pieces)
    for number in range(len(places)):
        gathered.add(number)
    names = [source.name for source in config.sources]
    return gathered.stats(places, sizes, names), gathered.kinds(names)


class _LengthsOfParts:
    """Collects the lengths part by part."""

    def __init__(self, whole: Table, masks: Sequence[Mask], pieces: PieceTable | None) -> None:
        self._whole, self._masks, self._table = whole, masks, pieces
        self._lengths: list[NDArray[np.int32]] = []
        self._copies: list[NDArray[np.int32]] = []
        self._runs: list[tuple[NDArray[np.int32], ...]] = []
        self._kinds: dict[int, NDArray[np.int64]] = {}
        """Of each source: (2, kinds) tokens, and those that the mask selects."""
        self._sizes: list[int] = []
        """(parts,) documents of each part, with copies."""
        self._longest: list[tuple[int, int]] = []
        """(tokens, doc id) of the longest documents, the longest first."""
        self._count = 0
        self._held_out = 0

    def add(self, number: int) -> None:
        """Add the packed documents of a part."""
        place, starts = self._whole.places[number], self._whole.origins.starts
        begin, end = int(starts[number]), int(starts[number + 1])
        some = self._whole.documents.at(slice(begin, end))
        packed = some.copies > 0
        taken = packed & ~some.has(HELD_OUT)
        numbers = np.cumsum(taken, dtype=np.int32) - 1 + np.int32(self._count)
        first, encoded, mask = 0, EncodedPart(place.path), self._masks[place.source]
        kinds = self._kinds.setdefault(place.source, np.zeros((2, max(RunKind) + 1), dtype=np.int64))
        for batch in encoded.batches:
            here, segment = slice(first, first + batch.num_rows), Runs.of(batch, mask)
            first = here.stop
            counts, runs = _runs_of(segment, taken[here], some.low[here], some.high[here])
            kinds += counts
            self._runs.append((numbers[here][runs[0]], *runs[1:]))
        if self._table is not None:
            self._table.add(place.path, mask, some, taken, numbers)
        lengths = (some.high - some.low)[taken]
        self._lengths.append(lengths)
        self._copies.append(some.copies[taken].astype(np.int32))
        longest = np.argsort(-lengths, kind="stable")[:NAMED]
        found = zip(lengths[longest].tolist(), (np.flatnonzero(taken) + begin)[longest].tolist(), strict=True)
        self._longest = sorted([*self._longest, *found], key=lambda one: -one[0])[:NAMED]
        self._sizes.append(int(some.copies[taken].sum(dtype=np.int64)))
        self._count += int(taken.sum())
        self._held_out += int(np.count_nonzero(packed)) - int(taken.sum())

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
        sources = np.repeat(np.array([place.source for place in places], dtype=np.int32), self._sizes)
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
        return LengthStats(lengths, owners, begins, ends, sources, pieces, self._held_out, longest)

    def kinds(self, names: Sequence[str]) -> dict[str, list[KindCount]]:
        """Tokens by kind, of each source."""
        out = {}
        for source, counts in sorted(self._kinds.items()):
            groups: dict[str, list[int]] = {}
            for kind, name in _GROUP_OF.items():
                both = groups.setdefault(name, [0, 0])
                both[0] += int(counts[0, kind])
                both[1] += int(counts[1, kind])
            out[names[source]] = [KindCount(name, *both) for name, both in groups.items() if both[0]]
        return out


def _id_of(document: int, places: Sequence[PartPlace], starts: NDArray[np.int64], names: Sequence[str]) -> str:
    """The example id of a document.

    Args:
        document: its number over all parts.
        starts: (parts + 1,) over documents.
    """
    part = int(np.searchsorted(starts, document, side="right")) - 1
    return Address(names[places[part].source], *place_of(places[part], document - int(starts[part]))).id


def _runs_of(
    runs: Runs, taken: NDArray[np.bool_], low: NDArray[np.int32], high: NDArray[np.int32]
) -> tuple[NDArray[np.int64], tuple[NDArray[np.int32], ...]]:
    """(2, kinds) tokens of the taken documents and those that the mask selects; and (owners, starts, ends) of their
    trained runs, with adjacent runs joined.

    Args:
        taken, low, high: (N,) of the segment's documents: whether it is taken, and the range of tokens that is kept.
            Starts and ends count from `low`.
    """
    owners = np.repeat(np.arange(len(taken), dtype=np.int32), np.diff(runs.offsets))
    mine, begins = taken[owners], begins_of(runs.ends, runs.offsets)
    sizes = np.where(mine, runs.ends - begins, 0)
    each = [np.bincount(runs.kind, one, max(RunKind) + 1) for one in (sizes, sizes * runs.supervised)]
    mine &= runs.supervised
    owners = owners[mine]
    begins = np.maximum(begins[mine], low[owners]) - low[owners]
    ends = np.minimum(runs.ends[mine], high[owners]) - low[owners]
    there = begins < ends
    owners, begins, ends = owners[there], begins[there], ends[there]
    new = np.ones(len(owners) + 1, dtype=np.bool_)
    new[1:-1] = (owners[1:] != owners[:-1]) | (begins[1:] != ends[:-1])
    return np.array(each, np.int64), (owners[new[:-1]], begins[new[:-1]], ends[new[1:]])


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
