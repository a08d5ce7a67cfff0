"""Decides in the table what is packed of each document, and how often, or why it is left out. Tokenizes nothing.

Decisions follow one another, and the first that leaves a document out gives the reason. What depends on one document
alone is decided for `table.SLICE` documents at a time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ...schemas.ragged import offsets_of
from ...schemas.tables.reasons import CUT_UNTRAINED, NOT_DRAWN, OUTCOMES, UNPROVED
from ...stages.mask.span_index import SpanIndex
from ...stages.select.copies import draw_keys, later_ones, passes_of
from ...stages.select.split import Places, split
from ...stages.select.truncate import Limits, PairLengths, cut_pairs
from ...stages.tokenize.cut_points import WHITE, Breaks, line_places, skip_white
from ..store.local import open_unnamed_file
from .segments import Segments
from .table import CONTAMINATED, HEAD, HELD_OUT, NO_TURNS, PIECE, SPLIT, Documents, Table, pair_lengths
from .units import groups_of_rows, share_in_rows

if TYPE_CHECKING:
    from ...schemas.config.config import RunConfig

BY_LENGTH = tuple(map(OUTCOMES.index, ("overlong", CUT_UNTRAINED)))
"""The outcomes of documents that only the length leaves out."""
SPLIT_TOKENS = 1 << 22
"""Tokens of the documents that are split together."""
MAX_PASSES = 10_000
"""Maximum number of copies of an example; a configuration that asks for more is surely a mistake."""


def limits_of(config: "RunConfig", *, pairs: bool = False) -> Limits:
    """The configured length limits of documents, or of preference pairs."""
    cuts = config.pack.cuts_documents and not pairs
    truncate = config.truncate
    return Limits(truncate.max_length, "whole" if cuts else truncate.overlong, truncate.keep)


def mixes(config: "RunConfig") -> bool:
    """Whether the configuration uses `repeat` or `weight`."""
    return any(source.weight is not None or source.repeat is not None for source in config.sources)


def decide(table: Table, config: "RunConfig", tokenizer_json: str, scratch: Path, *, only: str | None = None) -> None:
    """Decide about all documents, in place.

    Args:
        tokenizer_json: content of a tokenizer.json; the vocabulary shows which tokens end lines.
        scratch: a folder for an anonymous file.
        only: the only split to pack; by default all.

    Raises:
        ConfigError: a weight asks for too many copies.
    """
    limits, pieces = limits_of(config), open_unnamed_file(scratch)
    for source, here in table.slices():
        some = table.documents.at(here)
        some.outcome[:] = 0
        _leave_out(some, some.length == 0, "empty")
        if table.masks[source].needs_turns:
            _leave_out(some, some.has(NO_TURNS), UNPROVED)
        _leave_out_by_filters(some, some.length, config, source)
        if not config.keep_untrained:
            # The first token never counts, because a piece's first token has no label.
            _leave_out(some, some.supervised - some.has(HEAD) <= 0, "untrained")
        long = (some.outcome == 0) & (some.high - some.low > limits.max_length)
        if limits.overlong == "drop":
            _leave_out(some, long, "overlong")
        elif limits.overlong == "split":
            _split(table, np.flatnonzero(long) + here.start, config, tokenizer_json, pieces)
        if not config.keep_untrained:
            _leave_out(some, some.labels <= 0, CUT_UNTRAINED)
    decide_together(table, config, only)
    pieces.flush()
    if pieces.tell():
        table.pieces = np.memmap(pieces, PIECE, "r")
    if config.pack.share == "row":
        share_in_rows(table, config, scratch)


def decide_pairs(table: Table, config: "RunConfig") -> None:
    """Decide about all preference pairs, in place. Each becomes one row.

    Raises:
        ConfigError: a weight asks for too many copies.
    """
    limits, segments = limits_of(config, pairs=True), Segments.of(table)
    for source, here in table.slices():
        some = table.documents.at(here)
        lengths = pair_lengths(segments.spans(some)[0])
        cut = cut_pairs(lengths, limits)
        none = np.zeros_like(lengths.prompt)
        equal = _equal(some, segments, lengths, PairLengths(none, none, none), lengths)
        cut_equal = _equal(some, segments, lengths, cut.begins, cut.kept)
        some.outcome[:] = 0
        _leave_out(some, (lengths.chosen == 0) | (lengths.rejected == 0), "empty")
        _leave_out(some, equal, "equal")
        _leave_out_by_filters(some, lengths.longest, config, source)
        if limits.overlong == "drop":
            _leave_out(some, lengths.longest > limits.max_length, "overlong")
        _leave_out(some, (cut.kept.chosen == 0) | (cut.kept.rejected == 0), "cut_empty")
        _leave_out(some, cut_equal, "cut_equal")
    decide_together(table, config)


def _equal(
    some: Documents, segments: Segments, lengths: PairLengths, begins: PairLengths, sizes: PairLengths
) -> NDArray[np.bool_]:
    """(N,) whether both completions of each pair have the same tokens.

    Args:
        begins, sizes: where the completions begin, counted in each from its first token, and their tokens.
    """
    out = np.zeros(len(some), dtype=np.bool_)
    rows = np.flatnonzero(sizes.chosen == sizes.rejected)
    those, chosen = some.at(rows), lengths.prompt[rows]
    rejected = chosen + lengths.chosen[rows]
    one = segments.tokens(those, chosen + begins.chosen[rows], sizes.chosen[rows])
    other = segments.tokens(those, rejected + begins.rejected[rows], sizes.rejected[rows])
    out[rows] = [np.array_equal(a, b) for a, b in zip(one, other, strict=True)]
    return out


def decide_together(table: Table, config: "RunConfig", only: str | None = None) -> None:
    """Decide what depends on other documents: duplicates, and how often each is packed.

    Only documents that are still in count: if the first of two equal documents is left out for another reason, the
    second is not a duplicate.

    Args:
        only: the only split to pack; by default all.
    """
    documents = table.documents
    if config.duplicates == "drop":
        rows = np.flatnonzero(documents.outcome == 0)
        later = later_ones(documents.first_digest[rows], documents.second_digest[rows])
        documents.outcome[rows[later]] = OUTCOMES.index("duplicate")
    for _, here in table.slices():
        documents.copies[here] = documents.outcome[here] == 0
    if mixes(config):
        _set_copies(table, config)
    for _, here in table.slices():
        some = documents.at(here)
        _leave_out(some, some.copies == 0, NOT_DRAWN)
        if only is not None:
            _leave_out(some, some.has(HELD_OUT) != (only == "holdout"), "holdout" if only == "train" else "train")
        gone = some.outcome > 0
        some.copies[gone] = some.kept[gone] = some.overlap[gone] = 0


def _set_copies(table: Table, config: "RunConfig") -> None:
    """Set how often each document that is still in is packed, by `repeat` and `weight`. Held-out ones are packed once.

    Raises:
        ConfigError: a weight asks for too many copies.
    """
    sources = config.sources
    every = [slice(*table.bounds[n : n + 2].tolist()) for n in range(len(sources))]
    available = [int(_tokens(table, here).sum()) for here in every]
    passes = passes_of(available, [one.weight for one in sources], [one.repeat for one in sources])
    for number, (source, often, here) in enumerate(zip(sources, passes, every, strict=True)):
        if often > MAX_PASSES:
            raise ConfigError(
                f"sources.{source.name}.weight would repeat every example {float(often):,.0f} times; lower it, or "
                f"limit it by `repeat` (at most {MAX_PASSES:,})"
            )
        tokens, copies = _tokens(table, here), np.full(here.stop - here.start, int(often), np.uint16)
        if more := float((often - int(often)) * available[number]):
            # Documents that share tokens are drawn together, since only equally many copies of them can share.
            groups = groups_of_rows(table, here) if config.pack.share == "row" else np.arange(len(copies))
            sizes = np.bincount(groups, weights=tokens).astype(np.int64)
            # In the order of their keys, until their tokens are as near as possible to the passes beyond whole ones.
            order = np.argsort(draw_keys(len(sizes), config.seed, number), kind="stable")
            sums = offsets_of(sizes[order])
            is_drawn = np.zeros(len(sizes), np.bool_)
            is_drawn[order[: int(np.argmin(np.abs(sums - more)))]] = True
            copies += is_drawn[groups]
        mine = table.documents.copies[here]
        mine[:] = np.where(tokens > 0, copies, mine)


def _tokens(table: Table, here: slice) -> NDArray[np.int64]:
    """(N,) tokens of one copy of each document that is mixed; 0 for others."""
    some = table.documents.at(here)
    mixed = (some.outcome == 0) & ~some.has(HELD_OUT)
    return np.where(mixed, some.kept.astype(np.int64) + some.overlap, 0)


def _leave_out(some: Documents, which: NDArray[np.bool_], reason: str) -> None:
    """Leave out those of the documents that are still in."""
    some.outcome[which & (some.outcome == 0)] = OUTCOMES.index(reason)


def _leave_out_by_filters(some: Documents, lengths: NDArray[np.int32], config: "RunConfig", source: int) -> None:
    """Leave out documents of a source that share text with evaluation rows, or that its filter excludes.

    Args:
        lengths: (N,) what the filter compares.
    """
    if config.contamination is not None and config.contamination.action == "drop":
        _leave_out(some, some.has(CONTAMINATED), "contaminated")
    own = config.sources[source].filter
    least = own.min_tokens if own.min_tokens is not None else config.filter.min_tokens
    most = own.max_tokens if own.max_tokens is not None else config.filter.max_tokens
    if least is not None:
        _leave_out(some, lengths < least, "min_tokens")
    if most is not None:
        _leave_out(some, lengths > most, "max_tokens")


def _split(table: Table, rows: NDArray[np.int64], config: "RunConfig", tokenizer_json: str, pieces: IO[bytes]) -> None:
    """Cut documents, ascending, into pieces; add those kept to a file."""
    how, capacity = config.truncate.split, config.truncate.max_length
    breaks = Breaks.from_json(tokenizer_json) if len(rows) and how.at != "tokens" else None
    for group in _groups(table.documents.length[rows], rows):
        some, segments = table.documents.at(group), Segments.of(table)
        spans, places = segments.index(some), Places()
        if breaks is not None:
            tokens = np.concatenate(segments.tokens(some, np.zeros(1, np.int32), some.length))
            places = _places_of(spans, breaks.of(tokens), turns=how.at == "turns")
        bases = spans.bases[:-1]
        cut = split(bases + some.low, bases + some.high, capacity, how.overlap, places)
        supervised = spans.supervised_before(cut.end) - spans.supervised_before(cut.fresh)
        # A label needs the token before it in the same piece.
        labels = supervised - (spans.supervised_at(cut.fresh) & (cut.fresh == cut.start))
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
        table.documents.supervised_packed[group] = _sums(supervised[stays], owner, len(group))


def _places_of(spans: SpanIndex, bits: NDArray[np.uint8], *, turns: bool) -> Places:
    """The places where documents may be cut: line ends, and before them turns if asked for.

    Args:
        bits: (T,) what `Breaks` says of each token.
    """
    lines = line_places(bits)
    if not turns:
        return Places(lines=lines)
    white = (bits & WHITE) > 0
    found = [
        skip_white(places, white, spans.ends[np.searchsorted(spans.ends, places, side="right")])
        for places in spans.turn_places()
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
