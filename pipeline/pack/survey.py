"""The survey of a run: decides which documents to pack, and adds up the counts, in bounded memory.

Documents are read one chunk at a time, in order, keeping only a few numbers per block. Decisions that depend on other
documents are made in earlier passes: one for duplicates, one or two for weights. Later steps read a chunk again and get
the same decisions (`Surveyor.chunks`); the chunks of a small run are read once and kept.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.errors import IntegrityError
from ...schemas.ledger import Ledger
from ...schemas.ragged import offsets_of, ranges, sums_of
from ...stages.arrays import numbers
from ...stages.mask.policy import Mask
from ..encode.parts import PartPlace
from .accounts import account_documents
from .decide import Decisions, Repeats
from .document_index import Catalogue, Holdout, read_catalogue, whole_documents
from .select import Chosen, OverlongExamples, limits_of, select_alone, source_bounds
from .split import turns_cut
from .windows import CHUNK_DOCUMENTS, CHUNK_PARTS, KEPT_DOCUMENTS, DocumentChunk, Gathering, Window, groups, parts_in


@dataclass(slots=True)
class Survey:
    """Totals of what a run packs."""

    ledger: Ledger
    """The ledger before packing; it closes when the shards are added."""
    splits: tuple[str, ...]
    blocks: int
    """See `windows.block_sources`."""
    tokens: int = 0
    """Tokens of all rows, including alignment padding."""
    cuts: list[int] = field(default_factory=list)
    """For each source, the number of cuts through trained turns that truncation and splitting make."""
    heads: list[int] = field(default_factory=list)
    """For each source, the number of supervised tokens that are first in a piece; pieces cut by the strategy are not
    included.
    """
    totals: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """For each split, (blocks,) packed tokens of each block."""
    sections: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """For each split, (blocks,) planned sections of each block."""
    packed: list[pa.Array] = field(default_factory=list)
    """(documents,) whether each is packed, as bits, one array per chunk."""
    repeats: Repeats | None = None
    """Counts repeated documents, if duplicates are kept."""
    weighted: bool = False
    """Whether some packed document has a trained token with another weight than 1."""

    def add(self, chunk: DocumentChunk, names: Sequence[str], config: RunConfig, *, cuts: bool = True) -> None:
        """Add the decisions about a chunk.

        Args:
            names: names of the sources.
            cuts: whether to count cuts through turns.
        """
        chosen, catalogue = chunk.chosen, chunk.chosen.catalogue
        which = splits_of(config, catalogue)
        heads = account_documents(self.ledger, names, chosen, which)
        self.heads = [a + b for a, b in zip(self.heads or [0] * len(heads), heads, strict=True)]
        for split in self.splits:
            sections = chosen.sections(which[split])
            at = np.searchsorted(sections.documents, catalogue.file_starts)
            totals, counts = (
                one.setdefault(split, np.zeros(self.blocks, np.int64)) for one in (self.totals, self.sections)
            )
            totals[chunk.blocks], counts[chunk.blocks] = sums_of(sections.lengths, at), np.diff(at)
            align = config.pack.alignment.document
            self.tokens += int((-(-sections.lengths // align)).sum(dtype=np.int64)) * align
        if cuts:
            self.cuts = [a + b for a, b in zip(self.cuts, cuts_before_packing(chosen, config, len(names)), strict=True)]
        self.weighted |= bool((catalogue.weighted & chosen.packed).any())
        self.packed.append(numbers(chosen.packed))
        if self.repeats is not None and catalogue.digests is not None:
            self.repeats.add(catalogue.digests[chosen.packed])


class Surveyor:
    """Reads the documents of a run as often as needed; the documents of a small run only once.

    Args:
        places: places of all parts.
        sizes: (parts,) documents of each part.
        tokenizer_json: its vocabulary shows where long documents may be split.
        scratch: a folder for anonymous files.
        keeps: whether to keep the chunks of a small run; only for several passes over them.
    """

    def __init__(
        self,
        config: RunConfig,
        places: Sequence[PartPlace],
        sizes: Sequence[int],
        tokenizer_json: str,
        scratch: Path,
        *,
        keeps: bool = True,
    ) -> None:
        self.config = config
        self.places = places
        self._tokenizer_json = tokenizer_json
        self._scratch = scratch
        self._names = [source.name for source in config.sources]
        self._sizes = np.array(sizes, dtype=np.int64)
        self.starts = offsets_of(self._sizes)
        """(parts + 1,) first document of each part, then the number of documents."""
        self._blocks = offsets_of([len(place.lines.files) for place in places])
        """(parts + 1,) first block of each part, then the number of blocks."""
        bounds = source_bounds(self.starts, [place.source for place in places], len(self._names))
        self.decisions = Decisions(config.seed, bounds)
        self._few = keeps and int(self.starts[-1]) <= KEPT_DOCUMENTS and len(places) <= CHUNK_PARTS
        self._kept: list[DocumentChunk] | None = None

    def under(self, config: RunConfig, *, keeps: bool = True) -> "Surveyor":
        """A surveyor of the same documents under another configuration of the same sources, which reads them again."""
        sizes = self._sizes.tolist()
        return Surveyor(config, self.places, sizes, self._tokenizer_json, self._scratch, keeps=keeps)

    def of_whole_documents(self, config: RunConfig, *, keeps: bool) -> "Surveyor":
        """The same under a configuration that differs only in that `max_length` cuts no document before packing, and in
        its copies. What this surveyor keeps of a small run is not read again.

        Args:
            keeps: see `Surveyor`.
        """
        limits = limits_of(config)
        if self._kept is None or limits.max_prompt is not None or limits.max_completion is not None:
            return self.under(config, keeps=keeps)
        out = self.under(config)
        mask, tokenizer = Mask.of(config.mask), self._tokenizer_json
        catalogues = [whole_documents(chunk.chosen.catalogue) for chunk in self._kept]
        chosen = [select_alone(catalogue, config, mask, tokenizer) for catalogue in catalogues]
        out._kept = [replace(chunk, chosen=one) for chunk, one in zip(self._kept, chosen, strict=True)]
        return out

    def survey(self, ledger: Ledger, *, only: str | None = None) -> Survey:
        """Decide about every document, and add up the counts.

        Args:
            ledger: the counts of encoding.
            only: the only split to pack; then duplicates are not counted.

        Raises:
            InputError: `overlong: error`, and a document is too long.
            ConfigError: a weight asks for too many copies.
        """
        config = self.config
        splits = tuple(split_names(config)) if only is None else (only,)
        survey = Survey(ledger, splits, int(self._blocks[-1]), cuts=[0] * len(self._names))
        if config.duplicates == "keep" and only is None:
            survey.repeats = Repeats(int(self.starts[-1]))
        self.decide()
        self.decisions.only = only
        for chunk in self.chunks(digests=survey.repeats is not None):
            survey.add(chunk, self._names, config)
        return survey

    def decide(self) -> None:
        """Make the earlier passes, for decisions that depend on other documents.

        Raises:
            InputError, ConfigError: as `survey` does.
        """
        chunks = partial(self.chunks, digests=self.config.duplicates == "drop")
        self.decisions.find(chunks, self.config, int(self.starts[-1]), self._scratch)

    def window(self, blocks: NDArray[np.int64], split: str) -> Window:
        """Return the packed documents of a split in some blocks, ascending."""
        gathering = Gathering(self.config.loss.divides)
        parts = np.unique(np.searchsorted(self._blocks, blocks, side="right") - 1)
        for chunk in self.chunks(parts):
            among, which = parts_in(chunk, blocks)
            gathering.add(chunk, which & splits_of(self.config, chunk.chosen.catalogue)[split], among)
        return gathering.window()

    def chunks(self, parts: NDArray[np.int64] | None = None, *, digests: bool = False) -> Iterator[DocumentChunk]:
        """Yield chunks with all documents of some parts, ascending, and the decisions made about them so far.

        Args:
            parts: the parts to read; by default all.

        Raises:
            InputError: `overlong: error`, and a document is too long.
        """
        everything = np.arange(len(self.places))
        if self._few:
            if self._kept is None:
                self._kept = list(self._read(everything, digests=True))
            chunks: Iterable[DocumentChunk] = self._kept
        else:
            chunks = self._read(everything if parts is None else parts, digests=digests)
        for chunk in chunks:
            self.decisions.apply(chunk)
            yield chunk

    def _read(self, parts: NDArray[np.int64], *, digests: bool) -> Iterator[DocumentChunk]:
        """Read parts, ascending, and decide what does not depend on other documents."""
        config, mask, refused = self.config, Mask.of(self.config.mask), OverlongExamples()
        holdout = Holdout.of(config)
        for group in groups(parts, self._sizes, CHUNK_DOCUMENTS):
            places = [self.places[index] for index in group.tolist()]
            catalogue = read_catalogue(
                places,
                mask,
                limits_of(config),
                holdout,
                self._names,
                digests=digests,
                conversations=config.loss.normalize == "conversation",
            )
            sizes = np.diff(catalogue.part_starts)
            if not np.array_equal(sizes, self._sizes[group]):
                wrong = int(np.flatnonzero(sizes != self._sizes[group])[0])
                raise IntegrityError(
                    f"the encoded part {places[wrong].part.name} has {int(sizes[wrong]):,} examples, but its record "
                    f"says {int(self._sizes[group][wrong]):,}; delete both and run again to rebuild them"
                )
            shift = self.starts[group] - catalogue.part_starts[:-1]
            documents = np.arange(len(catalogue), dtype=np.int64) + np.repeat(shift, sizes)
            blocks = ranges(self._blocks[group], np.diff(self._blocks)[group])
            chosen = select_alone(catalogue, config, mask, self._tokenizer_json, refused)
            yield DocumentChunk(group, blocks, documents, chosen)
        refused.check(config)


def split_names(config: RunConfig) -> list[str]:
    """The splits that a run writes."""
    return ["train", "holdout"] if config.holdout.fraction > 0 else ["train"]


def splits_of(config: RunConfig, catalogue: Catalogue) -> Mapping[str, NDArray[np.bool_]]:
    """(N,) whether each document belongs to the split, for each split."""
    if config.holdout.fraction > 0:
        return {"train": ~catalogue.held_out, "holdout": catalogue.held_out}
    return {"train": np.ones(len(catalogue), dtype=np.bool_)}


def cuts_before_packing(chosen: Chosen, config: RunConfig, sources: int) -> list[int]:
    """Count, for each source, the cuts through trained turns that truncation (once for all copies) and splitting
    make.
    """
    catalogue, copies = chosen.catalogue, chosen.selection.copies
    begins = np.flatnonzero(chosen.packed & (catalogue.low > 0))
    ends = np.flatnonzero(chosen.packed & (catalogue.high < catalogue.lengths))
    documents = np.concatenate([begins, ends])
    places = np.concatenate([catalogue.low[begins], catalogue.high[ends]])
    order = np.argsort(documents, kind="stable")
    documents, places = documents[order], places[order]
    through = np.zeros(len(catalogue), dtype=np.int64)
    np.add.at(through, documents, turns_cut(catalogue, documents, places, Mask.of(config.mask)) * copies[documents])
    if chosen.split is not None:
        through[chosen.split.documents] += chosen.split.cuts * copies[chosen.split.documents]
    return by_source(catalogue, np.flatnonzero(through), through[through > 0], sources)


def cuts_by_packing(
    placed: "Catalogue | Window",
    documents: NDArray[np.int64],
    places: NDArray[np.integer[Any]],
    config: RunConfig,
    sources: int,
) -> list[int]:
    """Count, for each source, the strategy's cuts through trained turns, once for every copy.

    Args:
        documents, places: (cuts,) as `planning.inner_cuts` returns them.
    """
    order = np.argsort(documents, kind="stable")
    documents, places = documents[order], places[order]
    cut = turns_cut(placed, documents, places, Mask.of(config.mask))
    return by_source(placed, documents, cut.astype(np.int64), sources)


def by_source(
    placed: "Catalogue | Window", documents: NDArray[np.int64], values: NDArray[Any], sources: int
) -> list[int]:
    """Return the sum of (K,) values for each source; each value belongs to one of (K,) documents."""
    owners = np.array([part.source for part in placed.parts], dtype=np.int64)
    part = np.searchsorted(placed.part_starts, documents, side="right") - 1
    totals = np.zeros(sources, dtype=np.int64)
    np.add.at(totals, owners[part], values)
    out: list[int] = totals.tolist()
    return out
