"""Decides in the table what is packed of each document, and how often, or why it is left out. Tokenizes nothing.

Decisions follow one another, and the first that leaves a document out gives the reason. What depends on one document
alone is decided for `table.SLICE` documents at a time.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ...schemas.ragged import offsets_of
from ...schemas.tables.reasons import CUT_UNTRAINED, NOT_DRAWN, OUTCOMES, UNPROVED
from ...stages.mask.span_index import SpanIndex
from ...stages.select.copies import draw_keys, is_later_copy, passes_of
from ...stages.select.kept_tokens import SupervisedDigests, range_digests
from ...stages.select.split import Places, split
from ...stages.select.truncate import Limits, PairCut, PairLengths, is_without_labels, limits_of_pairs
from ...stages.tokenize.cut_points import WHITE, Breaks, line_places, skip_white
from ..store.local import open_unnamed_file
from .segments import Segments
from .table import CONTAMINATED, FIRST_SUPERVISED, HELD_OUT, NO_TURNS, PIECE, SPLIT, Documents, Table
from .units import group_keys_of, set_group_keys, share_in_groups

if TYPE_CHECKING:
    from ...schemas.config.config import RunConfig

BY_LENGTH = tuple(map(OUTCOMES.index, ("overlong", CUT_UNTRAINED, "cut_empty", "cut_equal")))
"""The outcomes of documents and of preference pairs that only the length leaves out."""
SPLIT_TOKENS = 1 << 22
"""Tokens of the documents that are split together."""
MAX_PASSES = 10_000
"""Maximum number of copies of an example; a configuration that asks for more is surely a mistake."""


def limits_of(config: "RunConfig", *, pairs: bool = False) -> Limits:
    """The configured length limits of documents, or of preference pairs."""
    truncate = config.truncate
    if pairs:
        return limits_of_pairs(config, truncate.max_length, config.row_length)
    if config.pack.cuts_documents:  # a strategy that cuts at the ends of rows gets whole documents
        return Limits(truncate.max_length, overlong="whole", keep=truncate.keep)
    return Limits(truncate.max_length, overlong=truncate.overlong, keep=truncate.keep)


def has_copies(config: "RunConfig") -> bool:
    """Whether some example may be packed several times or left out by a draw: by `repeat` or `weight`."""
    return any(source.weight is not None or source.repeat is not None for source in config.sources)


def decide(table: Table, config: "RunConfig", tokenizer_json: str, scratch: Path, *, only: str | None = None) -> None:
    """Decide about all documents, in place: what is left out and why, which documents are cut into pieces, what shares
    tokens, and how often each is packed.

    The table says already which tokens the limits keep of each document, from `low` to `high`, and how many `labels`
    they have: `read_parts` has cut documents that are longer, where `overlong` is `truncate`.

    Args:
        tokenizer_json: content of a tokenizer.json; the vocabulary shows which tokens end lines.
        scratch: a folder for an anonymous file.
        only: the only split to pack; by default all.

    Raises:
        ConfigError: a weight asks for too many copies.
    """
    limits = limits_of(config)
    pieces = open_unnamed_file(scratch)  # their number is not known before the last one is made
    segments = Segments.of(table)  # which opens a part when a document of it is split
    for source, rows in table.slices():
        documents = table.documents.at(rows)  # views, so what is written to them is in the table
        documents.outcome[:] = 0  # packed, unless a reason is found
        _leave_out(documents, documents.length == 0, "empty")
        if table.masks[source].needs_turns:
            _leave_out(documents, documents.has(NO_TURNS), UNPROVED)
        _leave_out_by_filters(documents, documents.length, config, source)  # by their length before any cut
        if not config.keep_untrained:
            # The first token never counts, because a piece's first token has no label.
            trainable = documents.supervised - documents.has(FIRST_SUPERVISED)
            _leave_out(documents, trainable <= 0, "untrained")
        # With `truncate`, none is too long any more; with `whole`, the packing strategy cuts those that are.
        too_long = (documents.outcome == 0) & (documents.high - documents.low > limits.max_length)
        if limits.overlong == "drop":
            _leave_out(documents, too_long, "overlong")
        elif limits.overlong == "split":
            doc_ids = np.flatnonzero(too_long) + rows.start
            _split(table, segments, doc_ids, config, tokenizer_json, pieces)
        if not config.keep_untrained:
            _leave_out(documents, documents.labels <= 0, CUT_UNTRAINED)
    if config.pack.share == "group":
        set_group_keys(table, scratch)
    decide_together(table, config, only)
    if config.pack.shares:
        share_in_groups(table, segments, config, pieces)
    pieces.flush()
    if pieces.tell():  # an empty file cannot be mapped
        table.pieces = np.memmap(pieces, PIECE, "r")


def leave_out_pairs(
    pairs: Documents,
    lengths: PairLengths,
    cut: PairCut,
    config: "RunConfig",
    source: int,
    *,
    equal: NDArray[np.bool_],
    equal_when_cut: NDArray[np.bool_],
) -> None:
    """Leave out preference pairs of a source for what each is by itself, in place. What depends on other documents is
    decided by `decide_together`.

    Args:
        lengths: tokens of the three parts of each of N pairs.
        cut: what the limits keep of the pairs.
        source: its index in the configuration.
        equal: (N,) whether both completions have the same tokens.
        equal_when_cut: (N,) whether the kept tokens of both completions are the same.
    """
    pairs.outcome[:] = 0
    _leave_out(pairs, (lengths.chosen == 0) | (lengths.rejected == 0), "empty")
    _leave_out(pairs, equal, "equal")
    _leave_out_by_filters(pairs, lengths.longest, config, source)
    limits = limits_of(config, pairs=True)
    if limits.overlong == "drop":
        _leave_out(pairs, lengths.limited(limits) > limits.max_length, "overlong")
    _leave_out(pairs, is_without_labels(cut.kept, limits), "cut_empty")
    _leave_out(pairs, equal_when_cut, "cut_equal")


def decide_together(table: Table, config: "RunConfig", only: str | None = None) -> None:
    """Decide what depends on other documents: duplicates, and how often each is packed.

    Only documents that are still in count: if the first of two equal documents is left out for another reason, the
    second is not a duplicate.

    Args:
        only: the only split to pack; by default all.
    """
    documents = table.documents
    if config.duplicates == "drop":
        doc_ids = np.flatnonzero(documents.outcome == 0)
        later = is_later_copy(documents.first_digest[doc_ids], documents.second_digest[doc_ids])
        documents.outcome[doc_ids[later]] = OUTCOMES.index("duplicate")
    # One copy of each, which `repeat` and `weight` change.
    for _, rows in table.slices():
        documents.copies[rows] = documents.outcome[rows] == 0
    if has_copies(config):
        _set_copies(table, config)
    for _, rows in table.slices():
        decided = documents.at(rows)
        _leave_out(decided, decided.copies == 0, NOT_DRAWN)
        if only is not None:
            # The reason is the name of the split that they would be in.
            other_split = {"train": "holdout", "holdout": "train"}[only]
            _leave_out(decided, decided.has(HELD_OUT) == (other_split == "holdout"), other_split)
        # The ledger adds up these columns, so what is left out must not stand in them.
        left_out = decided.outcome > 0
        decided.copies[left_out] = 0
        decided.kept[left_out] = 0
        decided.overlap[left_out] = 0


def _set_copies(table: Table, config: "RunConfig") -> None:
    """Set how often each document that is still in is packed, by `repeat` and `weight`. Held-out ones are packed once.

    Raises:
        ConfigError: a weight asks for too many copies.
    """
    sources = config.sources
    rows_of_sources = [slice(first, last) for first, last in pairwise(table.bounds.tolist())]
    tokens_of_sources = [int(_tokens_to_mix(table, rows).sum()) for rows in rows_of_sources]
    passes_of_sources = passes_of(
        tokens_of_sources, [source.weight for source in sources], [source.repeat for source in sources]
    )
    for number, (source, passes, rows) in enumerate(zip(sources, passes_of_sources, rows_of_sources, strict=True)):
        if passes > MAX_PASSES:
            raise ConfigError(
                f"sources.{source.name}.weight would repeat every example {float(passes):,.0f} times; lower it, or "
                f"limit it by `repeat` (at most {MAX_PASSES:,})"
            )
        tokens = _tokens_to_mix(table, rows)
        # 2.3 passes are two copies of each document, and a third one of documents with .3 of the tokens.
        copies = np.full(rows.stop - rows.start, int(passes), np.uint16)
        tokens_to_draw = float((passes - int(passes)) * tokens_of_sources[number])
        if tokens_to_draw:
            groups = np.arange(len(copies))  # each document by itself
            if config.pack.shares:
                # Documents that may share tokens are drawn together: only equally many copies of them can share.
                groups = np.unique(group_keys_of(table, rows), return_inverse=True)[1].astype(np.int64)
            copies += _drawn_documents(groups, tokens, tokens_to_draw, seed=config.seed, source=number)
        # Documents without tokens to mix keep what they have: held-out ones one copy, others none.
        decided = table.documents.copies[rows]
        decided[:] = np.where(tokens > 0, copies, decided)


def _drawn_documents(
    groups: NDArray[np.int64], tokens: NDArray[np.int64], tokens_to_draw: float, *, seed: int, source: int
) -> NDArray[np.bool_]:
    """(N,) whether each document of a source is drawn. Whole groups are drawn, until their tokens add up to
    `tokens_to_draw` as nearly as can be.

    Args:
        groups: (N,) a number for each document, from 0 on; equal for those that are drawn together.
        tokens: (N,) of each document; 0 for those that are not mixed.
        source: its number, so that sources are drawn independently of one another.
    """
    sizes = np.bincount(groups, weights=tokens).astype(np.int64)
    # In an order by hashes, so that the draw depends on nothing but the seed and the number of groups.
    order = np.argsort(draw_keys(len(sizes), seed, source), kind="stable")
    sums = offsets_of(sizes[order])
    # Groups of 5, 3 and 4 tokens in this order have the sums 0, 5, 8 and 12: for 7 tokens, the first two are drawn.
    drawn_groups = order[: int(np.argmin(np.abs(sums - tokens_to_draw)))]
    is_drawn = np.zeros(len(sizes), np.bool_)
    is_drawn[drawn_groups] = True
    return is_drawn[groups]


def _tokens_to_mix(table: Table, rows: slice) -> NDArray[np.int64]:
    """(N,) tokens of one copy of each document of some rows of the table; 0 for those that no mixture counts, because
    they are left out or held out.
    """
    documents = table.documents.at(rows)
    is_mixed = (documents.outcome == 0) & ~documents.has(HELD_OUT)
    return np.where(is_mixed, documents.kept.astype(np.int64) + documents.overlap, 0)


def _leave_out(documents: Documents, concerned: NDArray[np.bool_], reason: str) -> None:
    """Leave out the documents that a reason concerns, unless an earlier one has left them out: the first one counts."""
    documents.outcome[concerned & (documents.outcome == 0)] = OUTCOMES.index(reason)


def _leave_out_by_filters(documents: Documents, lengths: NDArray[np.int32], config: "RunConfig", source: int) -> None:
    """Leave out documents of a source that share text with evaluation rows, or that a filter of length excludes.

    Args:
        lengths: (N,) the tokens that the filter compares: those of a document, or of the longer side of a pair.
    """
    if config.contamination is not None and config.contamination.action == "drop":
        _leave_out(documents, documents.has(CONTAMINATED), "contaminated")
    of_source = config.sources[source].filter
    min_tokens = of_source.min_tokens if of_source.min_tokens is not None else config.filter.min_tokens
    max_tokens = of_source.max_tokens if of_source.max_tokens is not None else config.filter.max_tokens
    if min_tokens is not None:
        _leave_out(documents, lengths < min_tokens, "min_tokens")
    if max_tokens is not None:
        _leave_out(documents, lengths > max_tokens, "max_tokens")


def _split(
    table: Table,
    segments: Segments,
    doc_ids: NDArray[np.int64],
    config: "RunConfig",
    tokenizer_json: str,
    file: IO[bytes],
) -> None:
    """Cut documents into pieces of at most `max_length` tokens. Append the pieces that are packed to a file, and fill
    the documents' columns with the sums over these pieces.

    Args:
        segments: of the table.
        doc_ids: of the documents, ascending.
        tokenizer_json: content of a tokenizer.json.
        file: takes a `PIECE` after another.
    """
    options = config.truncate.split
    # What the vocabulary says of line ends; None where documents are cut anywhere, and need no places.
    breaks = Breaks.from_json(tokenizer_json) if len(doc_ids) and options.at != "tokens" else None
    # Some documents at a time, because their tokens and spans are laid end to end in memory.
    for batch in _in_batches(doc_ids, table.documents.length[doc_ids]):
        documents = table.documents.at(batch)
        spans = segments.index(documents)
        places = Places()
        if breaks is not None:
            from_the_first = np.zeros(1, np.int32)  # for all documents
            tokens = np.concatenate(segments.tokens(documents, from_the_first, documents.length))
            places = _places_of(spans, breaks.of(tokens), turns=options.at == "turns")
        # From here on, places are those in the documents laid end to end. A document of 10 tokens that begins at 100,
        # cut into pieces of 6 with an overlap of 2, gives start 100 104, fresh 100 106, end 106 110: the second piece
        # repeats 104 and 105, and its first fresh token is 106.
        bases = spans.bases[:-1]
        cut = split(bases + documents.low, bases + documents.high, config.truncate.max_length, options.overlap, places)
        supervised = spans.supervised_before(cut.end) - spans.supervised_before(cut.fresh)
        # The first token of a piece has no label; it is a fresh one unless the piece repeats tokens.
        labels = supervised - (spans.supervised_at(cut.fresh) & (cut.fresh == cut.start))
        stays = (labels > 0) | config.keep_untrained
        owner = cut.document[stays]
        start = cut.start[stays]
        fresh = cut.fresh[stays]
        end = cut.end[stays]
        base = bases[owner]
        pieces = np.zeros(len(owner), PIECE)
        pieces["document"] = batch[owner]
        pieces["start"] = start - base
        pieces["length"] = end - start
        pieces["repeated"] = fresh - start
        pieces.tofile(file)
        # Kept are the tokens of each piece that no earlier one has; trained are those of them with a label: in the
        # example, from 101 and 106 on.
        first_label = np.where(fresh == start, np.minimum(fresh + 1, end), fresh)
        kept_digests = range_digests(fresh - base, end - base)
        trained_digests = SupervisedDigests(spans, documents.span_count).between(base, first_label, end)
        overlap = _sums(pieces["repeated"], owner, len(batch))
        columns = table.documents
        columns.flags[batch] |= SPLIT
        columns.overlap[batch] = overlap
        columns.kept[batch] = _sums(pieces["length"], owner, len(batch)) - overlap
        columns.labels[batch] = _sums(labels[stays], owner, len(batch))
        columns.supervised_packed[batch] = _sums(supervised[stays], owner, len(batch))
        columns.kept_digest[batch] = _digest_sums(kept_digests, owner, len(batch))
        columns.trained_digest[batch] = _digest_sums(trained_digests, owner, len(batch))


def _places_of(spans: SpanIndex, bits: NDArray[np.uint8], *, turns: bool) -> Places:
    """The places where documents may be cut: line ends; with `turns`, ends of turns rather than these.

    Args:
        bits: (T,) of each token, bits that say whether it is white space, and which kind of line end.
    """
    lines = line_places(bits)
    if not turns:
        return Places(lines=lines)
    white = (bits & WHITE) > 0
    # A cut before white space would leave it at the begin of the next piece, so each place moves behind it, but not out
    # of the span that begins there.
    turn_places = [
        skip_white(places, white, spans.ends[np.searchsorted(spans.ends, places, side="right")])
        for places in spans.turn_places()
    ]
    return Places(turn_places, lines)


def _sums(values: NDArray[Any], owner: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """(count,) the sum of the values of each owner; owners 0 0 2 with 5 1 3 have the sums 6 0 3."""
    return np.bincount(owner, weights=values, minlength=count).astype(np.int64)


def _digest_sums(digests: NDArray[np.uint64], owner: NDArray[np.int64], count: int) -> NDArray[np.uint64]:
    """(count,) the sum of the digests of each owner, modulo 2**64."""
    sums = np.zeros(count, np.uint64)  # not `np.bincount`, whose floats would lose the lowest bits
    np.add.at(sums, owner, digests)
    return sums


def _in_batches(doc_ids: NDArray[np.int64], lengths: NDArray[np.int32]) -> Iterator[NDArray[np.int64]]:
    """Yield documents, about `SPLIT_TOKENS` tokens at a time and at least one document."""
    # With 10 in place of 4 million, documents of 4, 5, 12 and 3 tokens: the first two, then each of the others alone.
    ends = offsets_of(lengths)
    first = 0
    while first < len(doc_ids):
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + SPLIT_TOKENS, side="right")) - 1)
        yield doc_ids[first:last]
        first = last
