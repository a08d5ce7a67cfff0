"""Length statistics of packed examples: lengths from documents.parquet, trained parts from the encoded parts."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .....schemas.errors import PacktrainError
from .....schemas.ragged import begins_of
from .....schemas.rows import (
    ASSISTANT_KINDS,
    CALL_KINDS,
    COMPLETION_KINDS,
    END_KINDS,
    NEXT_STOP_KINDS,
    THOUGHT_KINDS,
    RunKind,
)
from .....stages.arrays import view
from .....stages.mask.policy import Mask, supervised_tokens, supervised_turns
from ....dataset.cached_parts import CachedParts, open_parts
from ....dataset.open import Finished
from ....dataset.packed_documents import PackedDocuments
from ....encode.parts import EncodedPart
from .histograms import Tally

MOST = 20_000_000
"""Maximum number of documents whose lengths are read, in about ten seconds; beyond it, evenly chosen row groups."""
LOOKED_INTO = 500_000
"""Maximum number of documents whose runs are read, in a few seconds; beyond it, evenly chosen parts."""


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


@dataclass(slots=True)
class Spread:
    """Length statistics of one source's packed examples."""

    lengths: Tally = field(default_factory=Tally)
    prompts: Tally = field(default_factory=Tally)
    completions: Tally = field(default_factory=Tally)
    turns: Tally = field(default_factory=Tally)
    kinds: dict[str, list[int]] = field(default_factory=dict)
    """(tokens, selected by the mask) of each group of `GROUPS`."""


@dataclass(slots=True)
class Spreads:
    """Length statistics of all sources."""

    sources: dict[str, Spread]
    exact: bool = True
    """Whether all lengths were read, not a sample."""
    exact_runs: bool = True
    """Whether all runs were read, not a sample."""
    missing_runs: str | None = None
    """Why prompts, completions and turns are unknown, if they are."""


def spreads_of(dataset: Finished, mask: Mask, most: int = MOST, looked_into: int = LOOKED_INTO) -> Spreads:
    """Read the length statistics.

    Args:
        most: about how many documents' lengths to read.
        looked_into: about how many documents' runs to read.
    """
    names = [source["name"] for source in dataset.manifest.plan["config"]["sources"]]
    out = Spreads({name: Spread() for name in names})
    try:
        documents = PackedDocuments(dataset)
        for source, lengths in _lengths(documents, out, most):
            out.sources[source].lengths.add(lengths)
    except (PacktrainError, OSError, KeyError) as error:
        out.sources = {name: Spread() for name in names}
        out.missing_runs = str(error)
        return out
    try:
        cached = open_parts(dataset)
        if isinstance(cached, CachedParts):
            if dataset.manifest.preference:
                _pairs(documents, cached, out, looked_into)
            else:
                _runs(documents, cached, mask, out, looked_into)
        else:
            out.missing_runs = cached
    except (PacktrainError, OSError, pa.ArrowException, ValueError) as error:
        out.missing_runs = str(error)
    return out


def _lengths(documents: PackedDocuments, out: Spreads, most: int) -> Iterator[tuple[str, NDArray[np.int32]]]:
    """(source, tokens of some of its packed documents), by row group."""
    count = documents.groups
    taken = evenly(count, count if documents.count <= most else count * most // documents.count)
    out.exact = len(taken) == count
    for group in taken.tolist():
        for batch in documents.group(group, ["source", "tokens"]):
            tokens, source = view(batch.column("tokens")), batch.column("source")
            indices = view(source.indices)
            for index, name in enumerate(source.dictionary.to_pylist()):
                mine = tokens[indices == index]
                if len(mine):
                    yield name, mine


def _runs(documents: PackedDocuments, cached: CachedParts, mask: Mask, out: Spreads, looked_into: int) -> None:
    for part in _some_parts(cached, out, looked_into):
        mine = cached.parts[part]
        packed = documents.between(mine.first, mine.documents)
        part_spread(mine.place.path, packed, out.sources[mine.file.source], mask)


def part_spread(path: Path, packed: NDArray[np.bool_], spread: Spread, mask: Mask) -> None:
    """Add prompts, completions and turns of an encoded part's documents.

    Args:
        packed: (N,) which of the documents are packed.
    """
    at = 0
    encoded = EncodedPart(path)
    for batch, segment in zip(encoded.batches, encoded.segments(mask), strict=True):
        here = packed[at : at + batch.num_rows]
        at += batch.num_rows
        supervised_flag = segment.runs >= 0
        ends = np.where(supervised_flag, segment.runs, ~segment.runs)
        offsets = segment.run_offsets.astype(np.int64)
        supervised, _ = supervised_tokens(supervised_flag, ends, offsets)
        structs = batch.column("runs").values
        turns, _ = supervised_turns(view(structs.field("kind")), view(structs.field("turn")), supervised_flag, offsets)
        lengths = np.diff(segment.offsets)
        spread.prompts.add((lengths - supervised)[here])
        spread.completions.add(supervised[here])
        spread.turns.add(turns[here])
        _add_kinds(spread, structs, ends, offsets, supervised_flag, here)


def _add_kinds(
    spread: Spread,
    structs: pa.StructArray,
    ends: NDArray[np.int32],
    offsets: NDArray[np.int64],
    selected: NDArray[np.bool_],
    here: NDArray[np.bool_],
) -> None:
    """Count the tokens of some documents' runs by kind.

    Args:
        ends, selected: (runs,) where each run ends in its document, and whether the mask trains it.
        offsets: (N + 1,) where each document's runs begin.
        here: (N,) which documents to count.
    """
    sizes = np.where(np.repeat(here, np.diff(offsets)), ends - begins_of(ends, offsets), 0)
    kind = view(structs.field("kind"))
    counts = [np.bincount(kind, weights, max(_GROUP_OF) + 1).tolist() for weights in (sizes, sizes * selected)]
    for one, name in _GROUP_OF.items():
        both = spread.kinds.setdefault(name, [0, 0])
        for place, count in enumerate(counts):
            both[place] += int(count[one])


def _pairs(documents: PackedDocuments, cached: CachedParts, out: Spreads, looked_into: int) -> None:
    for part in _some_parts(cached, out, looked_into):
        mine = cached.parts[part]
        packed = documents.between(mine.first, mine.documents)
        pair_spread(mine.place.path, packed, out.sources[mine.file.source])


def pair_spread(path: Path, packed: NDArray[np.bool_], spread: Spread) -> None:
    """Add prompts and completions of preference pairs; chosen and rejected count separately."""
    at = 0
    for batch in EncodedPart(path).batches:
        here = packed[at : at + batch.num_rows]
        at += batch.num_rows
        structs = batch.column("runs").values
        assert set(np.unique(view(structs.field("kind"))).tolist()) <= {*_PAIR}, "a pair has three runs"
        ends = view(structs.field("end")).reshape(-1, 3)[here]
        spread.prompts.add(ends[:, 0])
        spread.completions.add(np.diff(ends, axis=1).ravel())


_PAIR = (int(RunKind.PROMPT), int(RunKind.COMPLETION), int(RunKind.REJECTED))


def _some_parts(cached: CachedParts, out: Spreads, looked_into: int) -> list[int]:
    count = len(cached.parts)
    taken = evenly(count, count if cached.count <= looked_into else max(1, count * looked_into // cached.count))
    out.exact_runs = len(taken) == count
    return [int(part) for part in taken.tolist()]


def evenly(count: int, wanted: int) -> NDArray[np.int64]:
    """Indices of `wanted` of `count` items, evenly spaced; at least one if there is any item."""
    wanted = max(wanted, 1)
    if wanted >= count:
        return np.arange(count, dtype=np.int64)
    return (np.arange(wanted, dtype=np.int64) * count + count // 2) // wanted
