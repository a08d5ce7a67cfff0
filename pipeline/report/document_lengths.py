"""Reads a run's documents from encoded parts: their lengths, and what is trained of them.

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
from ...schemas.fingerprint import mix64
from ...schemas.ragged import begins_of, ranges
from ...stages.forecast.length_stats import LengthStats
from ...stages.mask.policy import Mask
from ..encode.driver import Encoded
from ..encode.parts import EncodedPart, PartPlace, Runs
from ..pack.outcomes import REASONS, decide, limits_of, mixes, set_copies
from ..pack.table import HELD_OUT, Table, read_table

MOST = 1_000_000
"""About the most documents that are read, evenly chosen. It takes about 50 MB and two seconds."""
NAMED = 3
"""How many of the longest documents are named."""


@dataclass(frozen=True, slots=True)
class ReadDocuments:
    """The documents of a run."""

    config: RunConfig
    base: Path
    """Where its relative paths start."""
    stats: LengthStats
    in_all: int
    """Number of all documents, which is larger than the stats's if that is a sample."""


def read_documents(config: RunConfig, base: Path, encoded: Encoded, scratch: Path) -> ReadDocuments:
    """The documents; their number in all is estimated if only about `MOST` are read.

    A sample consists of whole parts, chosen by the seed. Duplicates are found only within it.

    Args:
        scratch: a folder for anonymous files.

    Raises:
        ConfigError: a source weight needs too many copies.
        IntegrityError: a part cannot be read, or differs from its record.
    """
    sizes = [record.counts.examples for record in encoded.records]
    parts = _some(np.array(sizes, dtype=np.int64), MOST, config.seed).tolist()
    those, places = [sizes[index] for index in parts], [encoded.places[index] for index in parts]
    whole = _selected(config, places, those, encoded.spec.tokenizer.json, scratch)
    stats = _lengths_of(whole, Mask.of_sources(config), [source.name for source in config.sources])
    read, every, found = sum(those), sum(sizes), len(stats.lengths)
    in_all = found if read == every else round(found * every / max(read, 1))
    return ReadDocuments(config, base, stats, in_all)


def _some(sizes: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """Indices of the parts to read, ascending: all, or enough for about `most` documents."""
    if int(sizes.sum()) <= most:
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


def _selected(
    config: RunConfig, places: Sequence[PartPlace], sizes: Sequence[int], tokenizer_json: str, scratch: Path
) -> Table:
    """The documents of the train split, selected as a run does, but before `max_length`; with the number of copies that
    they have at the configured length.
    """
    without = _unlimited(config)
    whole = read_table(places, sizes, without, limits_of(without), scratch)
    decide(whole, without, tokenizer_json, scratch)
    if mixes(config):
        once = config.model_copy(update={"duplicates": "keep", "sources": _once(config)})
        cut = read_table(places, sizes, once, limits_of(once), scratch)
        decide(cut, once, tokenizer_json, scratch)
        same = REASONS.index("duplicate")
        cut.documents.outcome[(whole.documents.outcome == same) & (cut.documents.outcome == 0)] = same
        set_copies(cut, config, whole)
    return whole


def _lengths_of(whole: Table, masks: Sequence[Mask], names: Sequence[str]) -> LengthStats:
    """The packed documents of a table that are not held out, part by part.

    Args:
        masks, names: of the sources.
    """
    starts, count = whole.origins.starts, 0
    columns = list[tuple[NDArray[np.int32], ...]]()  # of each part: lengths, copies and numbers of documents
    runs = list[tuple[NDArray[np.int32], ...]]()
    for number, place in enumerate(whole.places):
        begin, end = int(starts[number]), int(starts[number + 1])
        some = whole.documents.at(slice(begin, end))
        taken = (some.copies > 0) & ~some.has(HELD_OUT)
        numbers = np.cumsum(taken, dtype=np.int32) - 1 + np.int32(count)
        at = 0
        for batch in EncodedPart(place.path).batches:
            here = slice(at, at + batch.num_rows)
            at = here.stop
            found = _runs_of(Runs.of(batch, masks[place.source]), taken[here], some.low[here], some.high[here])
            runs.append((numbers[here][found[0]], *found[1:]))
        those = np.flatnonzero(taken)
        count += len(those)
        copies = some.copies[taken].astype(np.int32)
        columns.append(((some.high - some.low)[taken], copies, (those + begin).astype(np.int32)))
    lengths, copies, documents = _joined(columns, 3)
    owners, begins, ends = _joined(runs, 3)
    longest = np.argsort(-lengths, kind="stable")[:NAMED].tolist()
    named = [(_id_of(whole, int(documents[one]), names), int(lengths[one])) for one in longest]
    if len(copies) and copies.max() > 1:
        each = np.repeat(np.arange(len(lengths)), copies)
        low, high = (np.searchsorted(owners, each, side=side) for side in ("left", "right"))
        take = ranges(low, high - low)
        owners, begins, ends = np.repeat(np.arange(len(each), dtype=np.int32), high - low), begins[take], ends[take]
        lengths = lengths[each]
    return LengthStats(lengths, owners, begins, ends, named)


def _id_of(whole: Table, document: int, names: Sequence[str]) -> str:
    """The example id of a document of the table."""
    source, file, line, sub = whole.origins.place(whole.documents, document)
    return f"{names[source]}/{file}:{line}" + (f"/{sub}" if sub >= 0 else "")


def _runs_of(
    runs: Runs, taken: NDArray[np.bool_], low: NDArray[np.int32], high: NDArray[np.int32]
) -> tuple[NDArray[np.int32], ...]:
    """(owners, starts, ends) of the trained runs of the taken documents, with adjacent runs joined.

    Args:
        taken, low, high: (N,) of the segment's documents: whether it is taken, and the range of tokens that is kept.
            Starts and ends count from `low`.
    """
    owners, begins = (
        np.repeat(np.arange(len(taken), dtype=np.int32), np.diff(runs.offsets)),
        begins_of(runs.ends, runs.offsets),
    )
    mine = taken[owners] & runs.supervised
    owners = owners[mine]
    begins = np.maximum(begins[mine], low[owners]) - low[owners]
    ends = np.minimum(runs.ends[mine], high[owners]) - low[owners]
    there = begins < ends
    owners, begins, ends = owners[there], begins[there], ends[there]
    new = np.ones(len(owners) + 1, dtype=np.bool_)
    new[1:-1] = (owners[1:] != owners[:-1]) | (begins[1:] != ends[:-1])
    return owners[new[:-1]], begins[new[:-1]], ends[new[1:]]


def _joined(columns: list[tuple[NDArray[np.int32], ...]], width: int) -> list[NDArray[np.int32]]:
    none = np.zeros(0, dtype=np.int32)
    return [np.concatenate([none, *(one[at] for one in columns)]) for at in range(width)]
