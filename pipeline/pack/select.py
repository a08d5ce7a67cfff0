"""Decides, for each document on its own, what to pack of it. Uses the catalogue and tokenizes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import FilterConfig, RunConfig
from ...schemas.config.hints import setting
from ...schemas.errors import InputError
from ...schemas.ragged import offsets_of
from ...schemas.units import plural
from ...stages.arrays import view
from ...stages.mask.policy import Mask
from ...stages.select.sections import Sections, lay_open
from ...stages.select.selection import Selection
from ...stages.select.truncate import Keep, Limits, Overlong
from ..encode.parts import MIXED, REWRITTEN, UNPROVED, EncodedPart
from .document_index import Catalogue, contaminated
from .split import SplitDocuments, Splitter, split_documents

CUT_UNTRAINED = "cut_untrained"
"""The ledger's reason for documents that a limit left without a trained token."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The documents to pack, how often, and which parts of them."""

    catalogue: Catalogue
    selection: Selection
    split: SplitDocuments | None
    """Documents split before packing. Some of them may be left out for another reason."""

    @property
    def packed(self) -> NDArray[np.bool_]:
        """(N,) which documents are packed."""
        return self.selection.copies > 0

    def sections(self, which: NDArray[np.bool_], *, copies: bool = True) -> Sections:
        """Return the sections to plan of those packed documents that are in `which`, (N,); without `copies`, once
        each.
        """
        often = self.selection.copies if copies else np.minimum(self.selection.copies, 1)
        split = self.split.sections if self.split is not None else None
        return lay_open(which, self.catalogue.low, self.catalogue.high, split, often)

    def labels(self) -> NDArray[np.int64]:
        """(N,) trained labels of one copy of each document, before a packing strategy cuts it."""
        out = (self.catalogue.supervised_kept - self.catalogue.head_kept).astype(np.int64)
        if self.split is not None:
            out[self.split.documents] = self.split.labels
        return out

    def packed_tokens(self) -> NDArray[np.int64]:
        """(N,) packed tokens of one copy of each document; 0 for documents left out."""
        out = np.where(self.packed, self.catalogue.high - self.catalogue.low, 0).astype(np.int64)
        if self.split is not None:
            sections, documents = self.split.sections, self.split.documents
            sums = offsets_of(sections.lengths)
            begins = np.searchsorted(sections.documents, documents, side="left")
            ends = np.searchsorted(sections.documents, documents, side="right")
            out[documents] = np.where(self.packed[documents], sums[ends] - sums[begins], 0)
        return out


def mask_rejects(config: RunConfig) -> frozenset[str]:
    """Return the reasons for which the mask rejects conversations."""
    return frozenset(
        reason
        for reason, applies in (
            (UNPROVED, Mask.of(config.mask).needs_turns),
            (MIXED, Mask.of(config.mask).needs_parts),
            (REWRITTEN, config.mask.on_rewritten == "reject"),
        )
        if applies
    )


def limits_of(config: RunConfig) -> Limits:
    """The configured length limits."""
    cuts = config.pack.strategy in ("bfd_split", "wrapped")
    return Limits(
        config.truncate.max_length,
        Overlong.WHOLE if cuts else Overlong(config.truncate.overlong),
        Keep(config.truncate.keep),
        config.truncate.max_prompt_length,
        config.truncate.max_completion_length,
    )


def select_alone(
    catalogue: Catalogue, config: RunConfig, mask: Mask, tokenizer_json: str, refused: "OverlongExamples | None" = None
) -> Chosen:
    """Decide what does not depend on other documents; see `decide` for the rest. The first step that leaves a document
    out gives the reason.

    Args:
        refused: with `overlong: error`, collects the documents that are too long, instead of raising.

    Raises:
        InputError: `overlong: error`, and a document is too long.
    """
    limits = limits_of(config)
    selection = Selection.of(len(catalogue))
    selection.leave_out(catalogue.lengths == 0, "empty")
    if mask.needs_turns:
        selection.leave_out(catalogue.unlocated_turns, UNPROVED)
    if mask.needs_parts:
        selection.leave_out(catalogue.unlocated_parts, MIXED)
    if config.mask.on_rewritten == "reject":
        selection.leave_out(catalogue.rewritten, REWRITTEN)
    leave_out_contaminated(selection, catalogue, config)
    leave_out_lengths(selection, catalogue, config)
    if not config.keep_untrained:
        # The first token never counts, because a piece's first token has no label.
        selection.leave_out(catalogue.supervised - catalogue.head <= 0, "untrained")
    long = catalogue.high - catalogue.low > limits.max_length
    if limits.overlong is Overlong.DROP:
        selection.leave_out(long, "overlong")
    if limits.overlong is Overlong.ERROR:
        found = refused or OverlongExamples()
        found.add(catalogue, long & selection.stays)
        if refused is None:
            found.check(config)
    split = None
    labels = catalogue.supervised_kept - catalogue.head_kept
    if limits.overlong is Overlong.SPLIT:
        documents = np.flatnonzero(long & selection.stays)
        split = split_documents(catalogue, documents, splitter_of(config, mask, tokenizer_json))
        labels[split.documents] = split.labels
    if not config.keep_untrained:
        selection.leave_out(labels <= 0, CUT_UNTRAINED)
    return Chosen(catalogue, selection, split)


def source_bounds(part_starts: NDArray[np.int64], owners: Sequence[int], sources: int) -> list[tuple[int, int]]:
    """Return the first document of each source and the end (one past its last document); parts are in the order of
    sources.

    Args:
        part_starts: (parts + 1,) first document of each part, then N.
        owners: the source of each part.
        sources: number of sources.
    """
    first = part_starts[np.searchsorted(owners, np.arange(sources), side="left")]
    last = part_starts[np.searchsorted(owners, np.arange(sources), side="right")]
    return list(zip(first.tolist(), last.tolist(), strict=True))


def leave_out_contaminated(selection: Selection, catalogue: Catalogue, config: RunConfig) -> None:
    """Leave out documents that share text with evaluation rows, if they are to be dropped."""
    if config.decontaminate is not None and config.decontaminate.action == "drop":
        selection.leave_out(contaminated(catalogue), "contaminated")


def leave_out_lengths(selection: Selection, catalogue: Catalogue, config: RunConfig) -> None:
    """Leave out documents shorter or longer than their source's filter allows."""
    filters = [_effective(source.filter, config.filter) for source in config.sources]
    if all(least is None and most is None for least, most in filters):
        return
    sizes = np.diff(catalogue.part_starts)
    sources = [part.source for part in catalogue.parts]

    def spread(values: Sequence[int]) -> NDArray[np.int64]:
        return np.repeat(np.array([values[source] for source in sources], dtype=np.int64), sizes)

    selection.leave_out(catalogue.lengths < spread([least or 0 for least, _ in filters]), "min_tokens")
    unlimited = np.iinfo(np.int64).max
    selection.leave_out(catalogue.lengths > spread([unlimited if m is None else m for _, m in filters]), "max_tokens")


def _effective(own: FilterConfig, general: FilterConfig) -> tuple[int | None, int | None]:
    return (
        own.min_tokens if own.min_tokens is not None else general.min_tokens,
        own.max_tokens if own.max_tokens is not None else general.max_tokens,
    )


def splitter_of(config: RunConfig, mask: Mask, tokenizer_json: str) -> Splitter:
    """The configured splitting."""
    how = config.truncate
    return Splitter(how.max_length, how.split.at, how.split.overlap, mask, config.keep_untrained, tokenizer_json)


class OverlongExamples:
    """Counts examples that are too long with `overlong: error`, and remembers the first."""

    def __init__(self) -> None:
        self.count = 0
        self._first: tuple[int, str, int, int] | None = None
        self._longest = 0

    def add(self, catalogue: Catalogue, long: NDArray[np.bool_]) -> None:
        """Count the documents that `long`, (N,), marks."""
        found = np.flatnonzero(long)
        self.count += len(found)
        if len(found):
            self._longest = max(self._longest, int((catalogue.high - catalogue.low)[found].max()))
        if len(found) and self._first is None:
            first = int(found[0])
            self._first = (*where_from(catalogue, first), int(catalogue.high[first] - catalogue.low[first]))

    def check(self, config: RunConfig) -> None:
        """Raise an error if any document was counted.

        Raises:
            InputError: documents are too long; the message names the first.
        """
        if self._first is None:
            return
        source, file, line, tokens = self._first
        raise InputError(
            f"{plural(self.count, 'example is', 'examples are')} longer than truncate.max_length "
            f"({config.truncate.max_length:,}); the first "
            f"one has {tokens:,} tokens and is in {file} of source {config.sources[source].name!r}, "
            f"line {line:,}. Cut them ({setting('truncate.overlong', 'truncate')}, or split), leave them out (drop), "
            f"or raise the length ({setting('truncate.max_length', config.pack.alignment.next_row(self._longest))})"
        )


def where_from(catalogue: Catalogue, document: int) -> tuple[int, str, int]:
    """Return a document's source, the label of its file, and its line in the file, counted from 1."""
    part = int(np.searchsorted(catalogue.part_starts, document, side="right")) - 1
    place = catalogue.parts[part]
    rows = np.concatenate([view(batch.column("line")) for batch in EncodedPart(place.path).batches])
    index, line = place.lines.find(int(rows[document - int(catalogue.part_starts[part])]))
    return place.source, place.lines.files[index], line
