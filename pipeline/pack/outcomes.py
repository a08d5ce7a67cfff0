"""Decides in the table what is packed of each document, or why it is left out. Tokenizes nothing.

Decisions follow one another, and the first that leaves a document out gives the reason. What depends on one document
alone is decided for `table.SLICE` documents at a time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.ledger import NOT_DRAWN
from ...schemas.ragged import offsets_of
from ...stages.mask.policy import Mask
from ...stages.mask.run_index import RunIndex
from ...stages.select.split import Places, split
from ...stages.select.truncate import Keep, Limits, Overlong
from ...stages.tokenize.cut_points import WHITE, Breaks, line_places, skip_white
from ...stages.tokenize.encode import UNPROVED
from ..store.local import nameless
from .copies import later_copies, mixes, set_copies
from .segments import Segments
from .table import CONTAMINATED, HEAD, HELD_OUT, NO_TURNS, PIECE, SPLIT, Documents, Table

CUT_UNTRAINED = "cut_untrained"
"""The ledger's reason for documents that a limit left without a trained token."""
REASONS = (
    *("", "empty", "equal", UNPROVED, "contaminated", "min_tokens", "max_tokens", "untrained"),
    *("overlong", CUT_UNTRAINED, "cut_empty", "cut_equal", "duplicate", NOT_DRAWN, "holdout", "train"),
)
"""The ledger's reasons, in the order in which they count; "" stands for packed. The last two are those of a stream for
the documents of the other split.
"""
SPLIT_TOKENS = 1 << 22
"""Tokens of the documents that are split together."""


def mask_rejects(config: RunConfig) -> dict[str, frozenset[str]]:
    """Return the reasons for which its mask rejects conversations of each source."""
    return {
        source.name: frozenset({UNPROVED} if mask.needs_turns else ())
        for source, mask in zip(config.sources, Mask.of_sources(config), strict=True)
    }


def limits_of(config: RunConfig, *, pairs: bool = False) -> Limits:
    """The configured length limits of documents, or of preference pairs."""
    cuts = config.pack.strategy in ("bfd_split", "wrapped") and not pairs
    return Limits(
        config.truncate.max_length,
        Overlong.WHOLE if cuts else Overlong(config.truncate.overlong),
        Keep(config.truncate.keep),
    )


def select(table: Table, config: RunConfig, tokenizer_json: str, scratch: Path, *, only: str | None = None) -> None:
    """Decide about all documents, in place.

    Args:
        scratch: a folder for an anonymous file.
        only: the only split to pack; by default all.

    Raises:
        ConfigError: a weight asks for too many copies.
    """
    documents, limits, pieces = table.documents, limits_of(config), nameless(scratch)
    masks = Mask.of_sources(config)
    for source, here in table.slices():
        some = documents.at(here)
        some.outcome[:] = 0
        _leave_out_by_mask(some, masks[source])
        leave_out_by_filters(some, some.length, config, source)
        if not config.keep_untrained:
            # The first token never counts, because a piece's first token has no label.
            leave_out(some, some.asked - some.has(HEAD) <= 0, "untrained")
        long = (some.outcome == 0) & (some.high - some.low > limits.max_length)
        if limits.overlong is Overlong.DROP:
            leave_out(some, long, "overlong")
        elif limits.overlong is Overlong.SPLIT:
            _split(table, np.flatnonzero(long) + here.start, config, tokenizer_json, pieces)
        if not config.keep_untrained:
            leave_out(some, some.labels <= 0, CUT_UNTRAINED)
    decide_together(table, config, only)
    pieces.flush()
    if pieces.tell():
        table.pieces = np.memmap(pieces, PIECE, "r")


def decide_together(table: Table, config: RunConfig, only: str | None = None) -> None:
    """Decide what depends on other documents: duplicates, and how often each is packed.

    Only documents that are still in count: if the first of two equal documents is left out for another reason, the
    second is not a duplicate.

    Args:
        only: the only split to pack; by default all.
    """
    documents = table.documents
    if config.duplicates == "drop":
        documents.outcome[later_copies(documents)] = REASONS.index("duplicate")
    for _, here in table.slices():
        documents.copies[here] = documents.outcome[here] == 0
    if mixes(config):
        set_copies(table, config)
    for _, here in table.slices():
        some = documents.at(here)
        leave_out(some, some.copies == 0, NOT_DRAWN)
        if only is not None:
            leave_out(some, some.has(HELD_OUT) != (only == "holdout"), "holdout" if only == "train" else "train")
        gone = some.outcome > 0
        some.copies[gone] = some.kept[gone] = some.overlap[gone] = 0


def leave_out(some: Documents, which: NDArray[np.bool_], reason: str) -> None:
    """Leave out those of the documents that are still in."""
    some.outcome[which & (some.outcome == 0)] = REASONS.index(reason)


def _leave_out_by_mask(some: Documents, mask: Mask) -> None:
    """Leave out empty documents, and those that the mask rejects."""
    leave_out(some, some.length == 0, "empty")
    if mask.needs_turns:
        leave_out(some, some.has(NO_TURNS), UNPROVED)


def leave_out_by_filters(some: Documents, lengths: NDArray[np.int32], config: RunConfig, source: int) -> None:
    """Leave out documents of a source that share text with evaluation rows, or that its filter excludes.

    Args:
        lengths: (N,) what the filter compares.
    """
    if config.decontaminate is not None and config.decontaminate.action == "drop":
        leave_out(some, some.has(CONTAMINATED), "contaminated")
    own = config.sources[source].filter
    least = own.min_tokens if own.min_tokens is not None else config.filter.min_tokens
    most = own.max_tokens if own.max_tokens is not None else config.filter.max_tokens
    if least is not None:
        leave_out(some, lengths < least, "min_tokens")
    if most is not None:
        leave_out(some, lengths > most, "max_tokens")


def _split(table: Table, rows: NDArray[np.int64], config: RunConfig, tokenizer_json: str, pieces: IO[bytes]) -> None:
    """Cut documents, ascending, into pieces; add those kept to a file.

    Args:
        tokenizer_json: content of a tokenizer.json; the vocabulary shows which tokens end lines.
    """
    how, capacity = config.truncate.split, config.truncate.max_length
    breaks = Breaks.from_json(tokenizer_json) if len(rows) and how.at != "tokens" else None
    for group in _groups(table.documents.length[rows], rows):
        some, segments = table.documents.at(group), Segments.of(table, config)
        runs, places = segments.index(some), Places()
        if breaks is not None:
            tokens = np.concatenate(segments.tokens(some, np.zeros(1, np.int32), some.length))
            places = _places_of(runs, breaks.of(tokens), turns=how.at == "turns")
        bases = runs.bases[:-1]
        cut = split(bases + some.low, bases + some.high, capacity, how.overlap, places)
        supervised = runs.supervised_before(cut.end) - runs.supervised_before(cut.fresh)
        # A label needs the token before it in the same piece.
        labels = supervised - (runs.supervised_at(cut.fresh) & (cut.fresh == cut.start))
        stays = (labels > 0) | config.keep_untrained
        owner, start = cut.document[stays], cut.start[stays]
        kept = np.zeros(len(owner), PIECE)
        kept["document"], kept["start"] = group[owner], start - bases[owner]
        kept["length"], kept["repeated"] = cut.end[stays] - start, cut.fresh[stays] - start
        kept.tofile(pieces)
        overlap = _sums(kept["repeated"], owner, len(group))
        table.documents.flags[group] |= SPLIT
        table.documents.overlap[group] = overlap
        table.documents.kept[group] = _sums(kept["length"], owner, len(group)) - overlap
        table.documents.labels[group] = _sums(labels[stays], owner, len(group))
        table.documents.asked_packed[group] = _sums(supervised[stays], owner, len(group))


def _places_of(runs: RunIndex, bits: NDArray[np.uint8], *, turns: bool) -> Places:
    """The places where documents may be cut: line ends, and before them turns if asked for.

    Args:
        bits: (T,) what `Breaks` says of each token.
    """
    lines = line_places(bits)
    if not turns:
        return Places(lines=lines)
    white = (bits & WHITE) > 0
    found = [
        skip_white(places, white, runs.ends[np.searchsorted(runs.ends, places, side="right")])
        for places in runs.turn_places()
    ]
    return Places(found, lines)


def _sums(values: NDArray[Any], owner: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """(count,) the sum of the values of each owner."""
    return np.bincount(owner, weights=values, minlength=count).astype(np.int64)


def _groups(lengths: NDArray[np.int32], rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Divide documents into groups of about `SPLIT_TOKENS` tokens."""
    ends = offsets_of(lengths)
    first = 0
    while first < len(rows):
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + SPLIT_TOKENS, side="right")) - 1)
        yield rows[first:last]
        first = last
