"""What is packed: one decision after another about every document, from the catalogue on. Nothing is tokenized."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..schemas.config import FilterConfig, RunConfig
from ..schemas.errors import ConfigError, InputError
from ..stages.arrays import view
from ..stages.duplicates import later_ones, suspects
from ..stages.mask import Mask, Policy
from ..stages.sampling import copies_of, passes_of
from ..stages.sections import Sections, lay_open
from ..stages.selection import Selection
from ..stages.truncate import Keep, Limits, Overlong
from .catalogue import Catalogue, PartPlace, digest_halves
from .parts import UNPROVED, EncodedPart
from .splitting import SplitDocuments, Splitter, split_documents

MAX_PASSES = 10_000
"""Copies of an example beyond which a mix is a mistake."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Which documents are packed, how often, and which stretches of them."""

    catalogue: Catalogue
    selection: Selection
    split: SplitDocuments | None
    """Those that are cut into pieces before packing, some of which may be left out for another reason."""

    @property
    def packed(self) -> NDArray[np.bool_]:
        """(N,) which documents are packed."""
        return self.selection.copies > 0

    def sections(self, which: NDArray[np.bool_], *, copies: bool = True) -> Sections:
        """The stretches to plan of those of `which`, (N,), that are packed; once each without `copies`."""
        often = self.selection.copies if copies else np.minimum(self.selection.copies, 1)
        split = self.split.sections if self.split is not None else None
        return lay_open(which, self.catalogue.low, self.catalogue.high, split, often)

    def packed_tokens(self) -> NDArray[np.int64]:
        """(N,) tokens that one copy of each document brings into the rows; 0 for one that is left out."""
        out = np.where(self.packed, self.catalogue.high - self.catalogue.low, 0).astype(np.int64)
        if self.split is not None:
            sections, documents = self.split.sections, self.split.documents
            sums = np.zeros(len(sections) + 1, dtype=np.int64)
            np.cumsum(sections.lengths, out=sums[1:])
            begins = np.searchsorted(sections.documents, documents, side="left")
            ends = np.searchsorted(sections.documents, documents, side="right")
            out[documents] = np.where(self.packed[documents], sums[ends] - sums[begins], 0)
        return out


def mask_of(config: RunConfig) -> Mask:
    """What the configuration says of the mask."""
    return Mask(Policy(config.mask.policy), config.mask.train_end)


def limits_of(config: RunConfig) -> Limits:
    """What the configuration says of lengths."""
    cuts = config.pack.strategy in ("bfd_split", "wrapped")
    return Limits(
        config.truncate.max_length,
        Overlong.WHOLE if cuts else Overlong(config.truncate.overlong),
        Keep(config.truncate.keep),
        config.truncate.max_prompt_length,
        config.truncate.max_completion_length,
    )


def select(catalogue: Catalogue, config: RunConfig, mask: Mask, tokenizer_json: str) -> Chosen:
    """Decide about every document. The order of the steps gives the reason where there are several.

    Duplicates are looked for among what would be packed: a copy of something that is left out for another reason, by
    its source's filter say, is the first of its kind.

    Raises:
        InputError: `overlong: error`, and a document is too long.
    """
    limits = limits_of(config)
    selection = Selection.of(len(catalogue))
    selection.leave_out(catalogue.lengths == 0, "empty")
    if mask.needs_turns:
        selection.leave_out(catalogue.unproved, UNPROVED)
    leave_out_lengths(selection, catalogue, config)
    if not config.keep_untrained:
        # The first token never counts, because the label of a piece's first token does not.
        selection.leave_out(catalogue.asked - catalogue.head <= 0, "untrained")
    long = catalogue.high - catalogue.low > limits.max_length
    if limits.overlong is Overlong.DROP:
        selection.leave_out(long, "overlong")
    if limits.overlong is Overlong.ERROR:
        _refuse_overlong(catalogue, long & selection.stays, config)
    split = None
    labels = catalogue.asked_kept - catalogue.head_kept
    if limits.overlong is Overlong.SPLIT:
        split = _split(catalogue, np.flatnonzero(long & selection.stays), config, mask, tokenizer_json)
        labels[split.documents] = split.labels
    if not config.keep_untrained:
        selection.leave_out(labels <= 0, "cut_untrained")
    chosen = Chosen(catalogue, selection, split)
    if config.duplicates == "drop":
        selection.leave_out(repeated_documents(catalogue, selection.stays), "duplicate")
    # weights and repeats
    set_copies(chosen, config)
    return chosen


def set_copies(chosen: Chosen, config: RunConfig) -> None:
    """How often each document of the training split is packed; what is held out is there once, and not mixed."""
    if all(source.weight is None and source.repeat is None for source in config.sources):
        return
    catalogue, selection = chosen.catalogue, chosen.selection
    tokens = chosen.packed_tokens()
    mixed = selection.stays & ~catalogue.held_out & (tokens > 0)
    bounds = source_bounds(catalogue, len(config.sources))
    stocks = [int(tokens[low:high][mixed[low:high]].sum()) for low, high in bounds]
    passes = passes_of(stocks, [s.weight for s in config.sources], [s.repeat for s in config.sources])
    for source, often in zip(config.sources, passes, strict=True):
        if often > MAX_PASSES:
            raise ConfigError(
                f"sources.{source.name}.weight asks for every example {float(often):,.0f} times; lower it, or limit it "
                f"by `repeat` (at most {MAX_PASSES:,})"
            )
    for number, (low, high) in enumerate(bounds):
        wanted = copies_of(np.where(mixed[low:high], tokens[low:high], 0), passes[number], config.seed, number)
        selection.copies[low:high] = np.where(mixed[low:high], wanted, selection.copies[low:high])
        out = np.zeros(len(catalogue), dtype=np.bool_)
        out[low:high] = mixed[low:high] & (wanted == 0)
        selection.leave_out(out, "not_sampled")


def source_bounds(catalogue: Catalogue, sources: int) -> list[tuple[int, int]]:
    """(first document, one past the last) of each source: parts stand in the order of the sources."""
    owners = np.array([part.source for part in catalogue.parts])
    first = catalogue.part_starts[np.searchsorted(owners, np.arange(sources), side="left")]
    last = catalogue.part_starts[np.searchsorted(owners, np.arange(sources), side="right")]
    return list(zip(first.tolist(), last.tolist(), strict=True))


def leave_out_lengths(selection: Selection, catalogue: Catalogue, config: RunConfig) -> None:
    """Leave out what is shorter or longer than its source's filter allows."""
    filters = [_effective(source.filter, config.filter) for source in config.sources]
    if all(least is None and most is None for least, most in filters):
        return
    sizes = np.diff(catalogue.part_starts)
    sources = [part.source for part in catalogue.parts]

    def spread(values: Sequence[int]) -> NDArray[np.int64]:
        return np.repeat(np.array([values[source] for source in sources], dtype=np.int64), sizes)

    selection.leave_out(catalogue.lengths < spread([least or 0 for least, _ in filters]), "min_tokens")
    endless = np.iinfo(np.int64).max
    selection.leave_out(catalogue.lengths > spread([endless if m is None else m for _, m in filters]), "max_tokens")


def _effective(own: FilterConfig, general: FilterConfig) -> tuple[int | None, int | None]:
    return (
        own.min_tokens if own.min_tokens is not None else general.min_tokens,
        own.max_tokens if own.max_tokens is not None else general.max_tokens,
    )


def _split(
    catalogue: Catalogue, documents: NDArray[np.int64], config: RunConfig, mask: Mask, tokenizer_json: str
) -> SplitDocuments:
    how = config.truncate
    splitter = Splitter(how.max_length, how.split.at, how.split.overlap, mask, config.keep_untrained, tokenizer_json)
    return split_documents(catalogue, documents, splitter)


def repeated_documents(catalogue: Catalogue, eligible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(N,) which eligible documents have the digest of an earlier eligible one."""
    assert catalogue.digests is not None
    found = suspects(catalogue.digests, eligible)
    second = np.zeros(len(found), dtype=np.uint64)
    at = np.searchsorted(found, catalogue.part_starts)
    for part, place in enumerate(catalogue.parts):
        if at[part] == at[part + 1]:
            continue
        halves = np.concatenate([digest_halves(batch) for batch in EncodedPart(place.path).batches])
        second[at[part] : at[part + 1]] = halves[found[at[part] : at[part + 1]] - catalogue.part_starts[part], 1]
    out = np.zeros(len(catalogue), dtype=np.bool_)
    out[found[later_ones(catalogue.digests[found], second)]] = True
    return out


def _refuse_overlong(catalogue: Catalogue, long: NDArray[np.bool_], config: RunConfig) -> None:
    found = np.flatnonzero(long)
    if not len(found):
        return
    first = int(found[0])
    place, line = where_from(catalogue, first)
    raise InputError(
        f"{len(found):,} examples are longer than truncate.max_length ({config.truncate.max_length:,}); the first one "
        f"has {int(catalogue.high[first] - catalogue.low[first]):,} tokens and stands in {place.file} of source "
        f"{config.sources[place.source].name!r}, line {line:,}. Set truncate.overlong to truncate, drop or split, "
        "raise truncate.max_length, or pack with bfd_split"
    )


def where_from(catalogue: Catalogue, document: int) -> tuple[PartPlace, int]:
    """Which part a document stands in, and on which line of its file, from 1."""
    part = int(np.searchsorted(catalogue.part_starts, document, side="right")) - 1
    place = catalogue.parts[part]
    lines = np.concatenate([view(batch.column("line")) for batch in EncodedPart(place.path).batches])
    return place, place.first_line + int(lines[document - int(catalogue.part_starts[part])]) + 1
