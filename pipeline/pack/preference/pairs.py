"""Preference data: decides which encoded pairs to keep, what to cut of them and their order, and counts them. Pairs are
not packed together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ....schemas.config.config import RunConfig
from ....schemas.config.hints import setting
from ....schemas.errors import InputError
from ....schemas.ledger import Ledger
from ....schemas.rows import PREFERENCE
from ....schemas.units import plural
from ....stages.arrays import numbers, view
from ....stages.mask.policy import Mask
from ....stages.select.preference_limits import PairCut, PairLengths, PairLimits
from ....stages.select.selection import Selection
from ....stages.select.truncate import Keep, Limits, Overlong
from ...encode.parts import EncodedPart, PartPlace
from ...store.open import Store
from ..decide import Repeats, decide
from ..document_index import Catalogue, Holdout, read_catalogue
from ..planning import WindowPlan, cut_shards, pairs_layout, put_arrow
from ..row_sizes import RowWeights
from ..select import Chosen, leave_out_contaminated, leave_out_lengths, where_from
from ..survey import Survey, split_names, splits_of
from ..windows import DocumentChunk, mix64, window_seed
from .task import LAYOUT


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """N pairs, before and after cutting."""

    lengths: PairLengths
    cut: PairCut
    equal: NDArray[np.bool_]
    """(N,) whether both completions have the same tokens."""
    cut_equal: NDArray[np.bool_]
    """(N,) whether both completions have the same tokens after cutting."""


@dataclass(frozen=True, slots=True, eq=False)
class PairRowPlanner:
    """Plans preference pairs, one per row; all pairs of a split are ordered together."""

    schema: ClassVar[pa.Schema] = PREFERENCE
    token_bytes: ClassVar[int] = 4
    pairs: ClassVar[bool] = True
    noted: ClassVar[bool] = False

    config: RunConfig
    chosen: Chosen
    found: _Found

    def windows(self, split: str) -> list[NDArray[np.int64]]:
        """See `RowPlanner`. Returns a single window with all pairs."""
        return [np.arange(len(self.chosen.catalogue.file_starts) - 1)]

    def plan(
        self, out: Store, split: str, number: int, first_shard: int, blocks: NDArray[np.int64], weights: RowWeights
    ) -> WindowPlan:
        """See `RowPlanner`."""
        catalogue, config = self.chosen.catalogue, self.config
        copies = np.where(splits_of(config, catalogue)[split], self.chosen.selection.copies, 0)
        documents = np.repeat(np.arange(len(copies), dtype=np.int64), copies)
        if config.pack.shuffle:
            keys = mix64(np.arange(len(documents), dtype=np.uint64), window_seed(config.seed, number))
            documents = documents[np.argsort(keys, kind="stable")]
        lengths, begins, kept = self.found.lengths, self.found.cut.begins, self.found.cut.kept
        chosen_at, rejected_at = lengths.prompt, lengths.prompt + lengths.chosen
        columns: list[NDArray[Any]] = [
            documents,
            (np.searchsorted(catalogue.segment_starts, documents, side="right") - 1).astype(np.int32),
            catalogue.begins[documents],
            begins.prompt[documents],
            (chosen_at + begins.chosen)[documents],
            (rejected_at + begins.rejected)[documents],
            kept.prompt[documents],
            kept.chosen[documents],
            kept.rejected[documents],
        ]
        name = pairs_layout(split)
        batch = pa.RecordBatch.from_arrays([numbers(column) for column in columns], schema=LAYOUT)
        file = put_arrow(out, f"{name}-pairs.arrow", batch)
        ends = np.cumsum(kept.all[documents], dtype=np.int64)
        rows = np.arange(len(documents) + 1)
        shards = cut_shards(ends, rows, first_shard, self.token_bytes, config)
        return WindowPlan(name, None, shards, cuts=(0,) * len(config.sources), files=(file,))


def survey_pairs(
    config: RunConfig, places: Sequence[PartPlace], ledger: Ledger, scratch: Path
) -> tuple[Survey, PairRowPlanner]:
    """Decide which pairs to keep. All pairs are in memory, because they are ordered together.

    Args:
        ledger: the counts of encoding.
        scratch: a folder for anonymous files.

    Raises:
        InputError: `overlong: error`, and a pair is too long.
        ConfigError: a weight asks for too many copies.
    """
    catalogue, found = _read(config, places)
    chosen = _choose(config, catalogue, found, scratch)
    files = len(catalogue.file_starts) - 1
    survey = Survey(ledger, tuple(split_names(config)), files, cuts=[0] * len(config.sources))
    if config.duplicates == "keep":
        survey.repeats = Repeats(len(catalogue))
    everything = DocumentChunk.of_all(chosen)
    survey.add(everything, [source.name for source in config.sources], config, cuts=False)
    return survey, PairRowPlanner(config, chosen, found)


def _read(config: RunConfig, places: Sequence[PartPlace]) -> tuple[Catalogue, _Found]:
    """Lengths and positions of all pairs.

    A pair counts as a document with all its tokens: the prompt once, and both completions, which are supervised. `high`
    is the number of tokens kept, although these need not be contiguous.
    """
    how = config.truncate
    read = read_catalogue(
        places,
        Mask.of(config.mask),
        Limits(how.max_length, Overlong.WHOLE),
        Holdout.of(config),
        [source.name for source in config.sources],
        digests=True,
    )
    limits = PairLimits(
        how.max_length,
        Keep(how.keep),
        how.overlong == "truncate",
        how.max_prompt_length,
        how.max_completion_length,
    )
    lengths = _lengths(read)
    cut = limits.cut(lengths)
    kept = cut.kept
    catalogue = replace(
        read,
        high=kept.all,
        supervised=lengths.completions,
        supervised_kept=kept.completions,
        head=lengths.prompt == 0,
        head_kept=kept.prompt == 0,
        prompt_cut=cut.prompt_cut if how.max_prompt_length is not None else None,
        completion_cut=cut.completion_cut if how.max_completion_length is not None else None,
    )
    return catalogue, _Found(lengths, cut, *_equal(read, lengths, cut))


def _choose(config: RunConfig, catalogue: Catalogue, found: _Found, scratch: Path) -> Chosen:
    """Decide which pairs to keep. The first step that leaves a pair out gives the reason."""
    lengths, cut = found.lengths, found.cut
    selection = Selection.of(len(catalogue))
    selection.leave_out((lengths.chosen == 0) | (lengths.rejected == 0), "empty")
    selection.leave_out(found.equal, "equal")
    leave_out_contaminated(selection, catalogue, config)
    leave_out_lengths(selection, replace(catalogue, lengths=lengths.longest), config)
    if config.truncate.overlong == "drop":
        selection.leave_out(cut.overlong, "overlong")
    if config.truncate.overlong == "error":
        _refuse_overlong(config, catalogue, cut, cut.overlong & selection.stays)
    selection.leave_out((cut.kept.chosen == 0) | (cut.kept.rejected == 0), "cut_empty")
    selection.leave_out(found.cut_equal, "cut_equal")
    chosen = Chosen(catalogue, selection, None)
    decide(chosen, config, scratch)
    return chosen


def _refuse_overlong(config: RunConfig, catalogue: Catalogue, cut: PairCut, long: NDArray[np.bool_]) -> None:
    found = np.flatnonzero(long)
    if not len(found):
        return
    first, kept = int(found[0]), cut.kept
    source, file, line = where_from(catalogue, first)
    raise InputError(
        f"{plural(len(found), 'pair is', 'pairs are')} longer than truncate.max_length "
        f"({config.truncate.max_length:,}), prompt and longer "
        f"completion together; the first one has {int(kept.longest[first]):,} tokens and is in {file} "
        f"of source {config.sources[source].name!r}, line {line:,}. Cut them "
        f"({setting('truncate.overlong', 'truncate')}), leave them out (drop), or raise the length "
        f"({setting('truncate.max_length', config.pack.alignment.next_row(int(kept.longest.max())))})"
    )


def _lengths(catalogue: Catalogue) -> PairLengths:
    """Return the lengths of prompts and completions, from their runs."""
    ends = [
        view(batch.column("runs").values.field("end")).reshape(-1, 3)
        for place in catalogue.parts
        for batch in EncodedPart(place.path).batches
    ]
    whole = np.concatenate([np.zeros((0, 3), dtype=np.int32), *ends])
    return PairLengths(whole[:, 0].copy(), whole[:, 1] - whole[:, 0], whole[:, 2] - whole[:, 1])


def _equal(catalogue: Catalogue, lengths: PairLengths, cut: PairCut) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (N,) whether both completions have the same tokens, and (N,) whether they have the same tokens after
    cutting.
    """
    whole, left = np.zeros(len(catalogue), dtype=np.bool_), np.zeros(len(catalogue), dtype=np.bool_)
    kept = cut.kept
    # Tokens are compared only if the lengths agree.
    suspects = np.flatnonzero((lengths.chosen == lengths.rejected) | (kept.chosen == kept.rejected))
    if not len(suspects):
        return whole, left
    at = np.searchsorted(suspects, catalogue.segment_starts)
    segment = 0
    for place in catalogue.parts:
        for batch in EncodedPart(place.path).batches:
            here = suspects[at[segment] : at[segment + 1]]
            segment += 1
            tokens = view(batch.column("input_ids").values)
            for pair in here.tolist():
                begin = int(catalogue.begins[pair]) + int(lengths.prompt[pair])
                middle = begin + int(lengths.chosen[pair])
                end = middle + int(lengths.rejected[pair])
                whole[pair] = np.array_equal(tokens[begin:middle], tokens[middle:end])
                one, other = begin + int(cut.begins.chosen[pair]), middle + int(cut.begins.rejected[pair])
                left[pair] = np.array_equal(
                    tokens[one : one + int(kept.chosen[pair])], tokens[other : other + int(kept.rejected[pair])]
                )
    return whole, left
