"""Reads a run's documents from encoded parts: their lengths, and what is trained of them.

They are the documents of the train split after filters, prompt and completion limits, duplicates and copies, but before
`max_length`, so that other lengths can be compared. The number of copies is that of the configured length: source
weights are shares of packed tokens, which another length would shift slightly.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.ragged import begins_of, ranges
from ...stages.forecast import LengthStats
from ...stages.mask.policy import Mask
from ..encode.driver import Encoded
from ..encode.parts import EncodedPart, PartPlace, Runs
from ..pack.outcomes import REASONS, decide, limits_of, mixes, set_copies
from ..pack.table import HELD_OUT, Table, read_table

MOST = 1_000_000
"""About the most documents that are read. It takes about 50 MB and two seconds."""
NAMED = 3
"""How many of the longest documents are named."""


def read_documents(config: RunConfig, encoded: Encoded, scratch: Path) -> LengthStats:
    """The documents of a run. If there are more than `MOST`, they are those of every second, third, … part; duplicates
    are found only among these, and the number in all is an estimate.

    Args:
        scratch: a folder for anonymous files.

    Raises:
        ConfigError: a source weight needs too many copies.
        IntegrityError: a part cannot be read, or differs from its record.
    """
    sizes = [record.counts.examples for record in encoded.records]
    step = max(1, -(-sum(sizes) // MOST))
    whole = _selected(config, encoded.places[::step], sizes[::step], encoded.spec.tokenizer.json, scratch)
    stats = _lengths_of(whole, Mask.of_sources(config), [source.name for source in config.sources])
    return replace(stats, in_all=round(len(stats.lengths) * sum(sizes) / max(sum(sizes[::step]), 1)))


def _selected(
    config: RunConfig, places: Sequence[PartPlace], sizes: Sequence[int], tokenizer_json: str, scratch: Path
) -> Table:
    """The documents of the train split, selected as a run does, but before `max_length`; with the number of copies that
    they have at the configured length.
    """

    def selected(**changes: object) -> Table:
        sources = tuple(one.model_copy(update={"weight": None, "repeat": None}) for one in config.sources)
        mine = config.model_copy(update={"sources": sources, **changes})
        table = read_table(places, sizes, mine, limits_of(mine), scratch)
        decide(table, mine, tokenizer_json, scratch)
        return table

    whole = selected(
        truncate=config.truncate.model_copy(update={"overlong": "truncate"}),
        pack=config.pack.model_copy(update={"strategy": "bfd_split"}),  # selects whole documents
    )
    if mixes(config):
        cut = selected(duplicates="keep")
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
    documents, runs = [np.zeros((3, 0), np.int32)], [np.zeros((3, 0), np.int32)]
    for number, place in enumerate(whole.places):
        begin, end = int(starts[number]), int(starts[number + 1])
        some = whole.documents.at(slice(begin, end))
        taken = (some.copies > 0) & ~some.has(HELD_OUT)
        numbers = np.cumsum(taken, dtype=np.int32) - 1 + np.int32(count)
        at = 0
        for batch in EncodedPart(place.path).batches:
            here = slice(at, at + batch.num_rows)
            at = here.stop
            owners, *ends = _runs_of(Runs.of(batch, masks[place.source]), taken[here], some.low[here], some.high[here])
            runs.append(np.stack([numbers[here][owners], *ends]))
        those = np.flatnonzero(taken)
        count += len(those)
        columns = ((some.high - some.low)[taken], some.copies[taken], those + begin)
        documents.append(np.stack([column.astype(np.int32) for column in columns]))
    lengths, copies, rows = np.concatenate(documents, axis=1)
    owners, begins, ends = np.concatenate(runs, axis=1)
    longest = np.argsort(-lengths, kind="stable")[:NAMED].tolist()
    named = [(_id_of(whole, int(rows[one]), names), int(lengths[one])) for one in longest]
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
) -> list[NDArray[np.int32]]:
    """(owners, starts, ends) of the trained runs of the taken documents.

    Args:
        taken, low, high: (N,) of the segment's documents: whether it is taken, and the range of tokens that is kept.
            Starts and ends count from `low`.
    """
    owners = np.repeat(np.arange(len(taken), dtype=np.int32), np.diff(runs.offsets))
    mine = taken[owners] & runs.supervised
    begins, owners = begins_of(runs.ends, runs.offsets)[mine], owners[mine]
    begins = np.maximum(begins, low[owners]) - low[owners]
    ends = np.minimum(runs.ends[mine], high[owners]) - low[owners]
    there = begins < ends
    return [owners[there], begins[there], ends[there]]
