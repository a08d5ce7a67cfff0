"""Preference data: encoded pairs → what stays of them, in which order, and the account of it. Nothing is packed."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.config import RunConfig
from ..schemas.errors import InputError
from ..schemas.hints import setting
from ..schemas.manifest import FileRecord
from ..schemas.rows import PREFERENCE
from ..stages.arrays import numbers, view
from ..stages.pairs import PairCut, PairLengths, PairLimits
from ..stages.selection import Selection
from ..stages.truncate import Keep, Limits, Overlong
from .catalogue import Catalogue, Holdout, read_catalogue
from .deciding import Repeats, decide
from .encoding import EncodedInputs
from .observer import Observer
from .packing import PARTS, Packing
from .pairs_task import LAYOUT, PairTask
from .parts import EncodedPart
from .planning import ShardPlan, WindowPlan, cut_rows, put_arrow
from .rowsizes import RowWeights
from .selecting import Chosen, leave_out_lengths, where_from
from .stores import Store
from .survey import Survey, split_names, splits_of
from .windows import Lot, mix64, window_seed

TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """N pairs, as they are encoded and as they are cut."""

    lengths: PairLengths
    cut: PairCut
    equal: NDArray[np.bool_]
    """(N,) whether the completions are the same tokens."""
    cut_equal: NDArray[np.bool_]
    """(N,) whether what stays of them is."""


class PairPacking(Packing):
    """The same steps as of a packed run; each row of the output is one pair."""

    schema = PREFERENCE
    token_bytes = TOKEN_BYTES

    def __init__(
        self,
        config: RunConfig,
        out: Store,
        encoded: EncodedInputs,
        pad_id: int,
        observer: Observer,
        scratch: Path | None = None,
    ) -> None:
        super().__init__(config, out, encoded, pad_id, observer, scratch)
        how = config.truncate
        self.limits = PairLimits(
            how.max_length,
            Keep(how.keep),
            how.overlong == "truncate",
            how.max_prompt_length,
            how.max_completion_length,
        )
        self._found: _Found | None = None
        self._chosen: Chosen | None = None

    @property
    def found(self) -> _Found:
        """What `catalogue` has read."""
        assert self._found is not None
        return self._found

    def catalogue(self) -> Catalogue:
        """Lengths and places of all pairs.

        A pair counts as a document of all its tokens, the prompt's once, of which the mask asks for the completions;
        `high` says how many are left of it, though they are not a stretch.
        """
        config = self.config
        read = read_catalogue(
            self.encoded.places,
            self.mask,
            Limits(config.truncate.max_length, Overlong.WHOLE),
            Holdout(config.holdout.fraction, config.holdout.by == "group", config.seed),
            self.names,
            digests=True,
        )
        lengths = _lengths(read)
        cut = self.limits.cut(lengths)
        self._found = found = _Found(lengths, cut, *_equal(read, lengths, cut))
        kept = found.cut.kept
        return replace(
            read,
            high=kept.all,
            asked=lengths.completions,
            asked_kept=kept.completions,
            head=lengths.prompt == 0,
            head_kept=kept.prompt == 0,
            prompt_cut=cut.prompt_cut if config.truncate.max_prompt_length is not None else None,
            completion_cut=cut.completion_cut if config.truncate.max_completion_length is not None else None,
        )

    def choose(self, catalogue: Catalogue) -> Chosen:
        """Decide about every pair. The order of the steps gives the reason where there are several.

        Raises:
            InputError: `overlong: error` and there is one.
        """
        config, lengths, cut = self.config, self.found.lengths, self.found.cut
        selection = Selection.of(len(catalogue))
        selection.leave_out((lengths.chosen == 0) | (lengths.rejected == 0), "empty")
        selection.leave_out(self.found.equal, "equal")
        leave_out_lengths(selection, replace(catalogue, lengths=lengths.longest), config)
        if config.truncate.overlong == "drop":
            selection.leave_out(cut.overlong, "overlong")
        if config.truncate.overlong == "error":
            self._refuse_overlong(catalogue, cut.overlong & selection.stays)
        selection.leave_out((cut.kept.chosen == 0) | (cut.kept.rejected == 0), "cut_empty")
        selection.leave_out(self.found.cut_equal, "cut_equal")
        chosen = Chosen(catalogue, selection, None)
        decide(chosen, config)
        return chosen

    def survey(self) -> Survey:
        """Decide about every pair; all of them are in memory, for they are put into one order."""
        catalogue = self.catalogue()
        self._chosen = chosen = self.choose(catalogue)
        survey = Survey(
            self._opened(), tuple(split_names(self.config)), len(catalogue.parts), cuts=[0] * len(self.names)
        )
        if self.config.duplicates == "keep":
            survey.repeats = Repeats(len(catalogue))
        everything = Lot(np.arange(len(catalogue.parts)), np.arange(len(catalogue)), chosen)
        survey.add(everything, self.names, self.config, cuts=False)
        return survey

    def _windows(self, survey: Survey, weights: dict[str, RowWeights]) -> Iterator[tuple[str, WindowPlan]]:
        chosen = self._chosen
        assert chosen is not None
        for split, which in splits_of(self.config, chosen.catalogue).items():
            began = time.perf_counter()
            planned = self._plan(split, chosen, which)
            self._planning += time.perf_counter() - began
            yield split, planned

    def _plan(self, split: str, chosen: Chosen, which: NDArray[np.bool_]) -> WindowPlan:
        catalogue, config = chosen.catalogue, self.config
        copies = np.where(which, chosen.selection.copies, 0)
        documents = np.repeat(np.arange(len(copies), dtype=np.int64), copies)
        if config.pack.shuffle:
            keys = mix64(np.arange(len(documents), dtype=np.uint64), window_seed(config.seed, 0))
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
        name = f"_run/layout/{split}"
        batch = pa.RecordBatch.from_arrays([numbers(column) for column in columns], schema=LAYOUT)
        put_arrow(self.out, f"{name}-pairs.arrow", batch)
        ends = np.cumsum(kept.all[documents], dtype=np.int64)
        if not len(ends):
            return WindowPlan(name, None, (ShardPlan(0, 0, 0, 0, 0, 0, 0),))
        cuts = cut_rows(ends, TOKEN_BYTES, config.output.shard_bytes).tolist()
        sizes = np.diff(ends[np.array(cuts[1:]) - 1], prepend=0).tolist()
        shards = (
            ShardPlan(0, index, first, last, first, last, tokens)
            for index, (first, last, tokens) in enumerate(zip(cuts[:-1], cuts[1:], sizes, strict=True))
        )
        return WindowPlan(name, None, tuple(shards))

    def _shard_tasks(self, split: str, window: WindowPlan) -> Iterator[PairTask]:
        prefix, form = self._prefix(split), self.config.output.format
        for shard in window.shards:
            yield PairTask(self.out, self.encoded.cache, PARTS, window.name, prefix, shard, form)

    def _row_sizes(self, weights: dict[str, RowWeights]) -> tuple[FileRecord, ...]:
        return ()  # for packtrain's own loader, which takes packed rows

    def _refuse_overlong(self, catalogue: Catalogue, long: NDArray[np.bool_]) -> None:
        found = np.flatnonzero(long)
        if not len(found):
            return
        how = self.config.truncate
        first = int(found[0])
        place, line = where_from(catalogue, first)
        kept = self.found.cut.kept
        raise InputError(
            f"{len(found):,} pairs are longer than truncate.max_length ({how.max_length:,}), prompt and longer "
            f"completion together; the first one has {int(kept.longest[first]):,} tokens and stands in {place.file} "
            f"of source {self.config.sources[place.source].name!r}, line {line:,}. Cut them "
            f"({setting('truncate.overlong', 'truncate')}), leave them out (drop), or raise the length "
            f"({setting('truncate.max_length', int(kept.longest.max()))})"
        )


def _lengths(catalogue: Catalogue) -> PairLengths:
    """The lengths of all pairs' parts, from their runs."""
    ends = [
        view(batch.column("runs").values.field("end")).reshape(-1, 3)
        for place in catalogue.parts
        for batch in EncodedPart(place.path).batches
    ]
    whole = np.concatenate([np.zeros((0, 3), dtype=np.int32), *ends])
    return PairLengths(whole[:, 0].copy(), whole[:, 1] - whole[:, 0], whole[:, 2] - whole[:, 1])


def _equal(catalogue: Catalogue, lengths: PairLengths, cut: PairCut) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(N,) whether the completions are the same tokens, and (N,) whether what stays of them is."""
    whole, left = np.zeros(len(catalogue), dtype=np.bool_), np.zeros(len(catalogue), dtype=np.bool_)
    kept = cut.kept
    # Tokens are looked at only where lengths agree.
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
