"""The first of two readings of each part: the columns of its documents. The second lays them out, in `segments`.

What depends on the spans of one document is computed here, while its part is mapped: lengths, what the limits keep,
turns, digests. The tokens themselves are read only of preference pairs, to compare the two completions.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import view
from ...schemas.digests import text_number
from ...schemas.errors import IntegrityError
from ...schemas.ragged import offsets_of
from ...schemas.rows import SpanKind
from ...stages.mask.policy import Mask, supervised_turns
from ...stages.mask.span_index import SpanIndex
from ...stages.select.kept_tokens import SupervisedDigests, range_digests
from ...stages.select.truncate import Limits, cut_pairs
from ...stages.tokenize.token_spans import IS_NEXT_STOP, IS_UNPROVED
from ..encode.parts import EncodedPart, PartPlace, Spans
from .outcomes import leave_out_pairs
from .pairs import equal_completions, pair_lengths
from .spools import GroupSpool, TrainedSpanSpool
from .table import (
    CONTAMINATED,
    FIRST_SUPERVISED,
    HELD_OUT,
    NO_TURNS,
    WEIGHTED,
    Documents,
    Origins,
    Table,
    scratch_documents,
)

if TYPE_CHECKING:
    from ...schemas.config.config import RunConfig

SAMPLED = 1_000_000
"""About the most documents whose trained spans are kept for the report, in an anonymous file of about 30 MB."""


def read_table(
    places: Sequence[PartPlace],
    sizes: Sequence[int],
    config: "RunConfig",
    limits: Limits,
    scratch: Path,
    *,
    pairs: bool = False,
    sample: bool = False,
) -> Table:
    """Read the lengths and spans of all parts, one part in memory at a time.

    Args:
        sizes: (parts,) documents of each part, as its record says.
        limits: the limits of length, by which the columns of what is kept are filled.
        scratch: a folder for anonymous files.
        pairs: whether these are preference pairs.
        sample: whether to keep trained spans for the comparison of lengths: of all documents, or of those of every
            second, third, … part if there are more than `SAMPLED`.

    Raises:
        IntegrityError: a part has another number of documents.
    """
    count = sum(sizes)
    documents = scratch_documents(count, scratch)
    masks = tuple(Mask.of(config.mask_of(source)) for source in config.sources)
    groups = GroupSpool(scratch)
    trained_spans = TrainedSpanSpool(scratch) if sample else None
    sampled_step = max(1, -(-count // SAMPLED))
    segment_counts: list[int] = []
    blocks: list[int] = []
    first = 0  # the doc id of the next document
    segment_number = 0  # of the next record batch, counted over all parts
    for number, (place, size) in enumerate(zip(places, sizes, strict=True)):
        part = EncodedPart(place.path)
        rows = sum(batch.num_rows for batch in part.batches)
        if rows != size:
            raise IntegrityError(
                f"the encoded part {place.part.name} has {rows:,} examples, but its record says {size:,}; delete both "
                "and run again to rebuild them"
            )
        blocks += _sizes_by_file(place, part, rows)
        segment_counts.append(len(part.batches))
        for batch in part.batches:
            segment = documents.at(slice(first, first + batch.num_rows))
            segment.segment[:] = segment_number
            _read_example_columns(batch, segment, place, config)
            groups.add(batch.column("group"))
            if batch.num_rows:
                spans = Spans.of(batch, masks[place.source])
                _read_spans(batch, segment, spans, masks[place.source])
                if pairs:
                    _cut_pairs(batch, segment, limits, spans, config, place.source)
                else:
                    _cut(segment, limits, spans)
                segment.supervised_packed[:] = segment.supervised_kept
                if trained_spans is not None and number % sampled_step == 0:
                    if pairs:  # whose completions are trained under every mask
                        spans = replace(spans, supervised=spans.kind != SpanKind.PROMPT)
                    trained_spans.add(first, spans)
            first += batch.num_rows
            segment_number += 1
    origins = Origins(
        parts=[place.part for place in places],
        sources=[place.source for place in places],
        lines=[place.lines for place in places],
        documents=list(sizes),
        segments=segment_counts,
    )
    return Table(
        documents,
        places,
        origins,
        bounds=origins.bounds(len(config.sources)),
        block_starts=offsets_of(blocks),
        block_sources=[place.source for place in places for _ in place.lines.files],
        masks=masks,
        groups=groups.result(),
        trained_spans=None if trained_spans is None else trained_spans.result(),
    )


def _read_example_columns(batch: pa.RecordBatch, segment: Documents, place: PartPlace, config: "RunConfig") -> None:
    """Fill the columns that do not depend on tokens: where the examples are from, and whether they are held out or
    share text with evaluation rows.
    """
    segment.line[:] = view(batch.column("line"))
    segment.sub[:] = view(batch.column("sub"))
    digests = batch.column("digest")
    if len(segment):  # an empty column may have no buffer
        # A digest of 16 bytes is a row of two numbers.
        halves = np.frombuffer(digests.buffers()[1], np.uint64).reshape(-1, 2)[digests.offset :][: len(segment)]
        segment.first_digest[:] = halves[:, 0]
        segment.second_digest[:] = halves[:, 1]
    contaminated = np.frombuffer(place.contaminated, np.int64)
    if len(contaminated):
        # An example is one number there: example 0 of row 3 is 3 * 2**32 + 1, and the only one of row 3, whose `sub` is
        # -1, is 3 * 2**32.
        examples = (segment.line.astype(np.int64) << 32) + segment.sub + 1
        segment.flags[np.isin(examples, contaminated)] |= CONTAMINATED
    if config.holdout.fraction > 0:
        segment.flags[_held_out(batch, config.sources[place.source].name, config)] |= HELD_OUT


def _read_spans(batch: pa.RecordBatch, segment: Documents, spans: Spans, mask: Mask) -> None:
    """Fill the columns of a segment's documents that their spans give, whatever the limits."""
    token_offsets = view(batch.column("input_ids").offsets)
    offsets = spans.offsets.astype(np.int64)
    # Token offsets 0 5 9 are documents that begin at 0 and 5, and have 5 and 4 tokens; spans likewise.
    segment.begin[:] = token_offsets[:-1]
    segment.length[:] = np.diff(token_offsets)
    segment.span_begin[:] = offsets[:-1]
    segment.span_count[:] = np.diff(offsets)
    # With `auto`, a stop token in the next message's header is trained as the end of the turn before it.
    next_stops = spans.supervised & IS_NEXT_STOP[spans.kind] & (mask.stop == "auto")
    # reduceat is right only because each document has at least one span, even one without tokens.
    segment.next_stops[:] = np.add.reduceat(next_stops, offsets[:-1], dtype=np.int32)
    turns, without_stop = supervised_turns(spans.kind, spans.turn, spans.supervised, offsets, next_stops)
    segment.turns[:] = turns
    segment.turns_without_stop[:] = without_stop
    segment.flags[np.logical_or.reduceat(IS_UNPROVED[spans.kind], offsets[:-1])] |= NO_TURNS
    if spans.weights is not None:
        weighted = spans.supervised & (spans.weights != 1)
        segment.flags[np.logical_or.reduceat(weighted, offsets[:-1])] |= WEIGHTED


def _cut(segment: Documents, limits: Limits, spans: Spans) -> None:
    """Fill the columns that say what the limits keep of each document, and what of that is trained."""
    index = SpanIndex.of(
        segment.length,
        segment.span_count,
        ends=spans.ends,
        kind=spans.kind,
        turn=spans.turn,
        supervised=spans.supervised,
    )
    low, high = limits.stretch(segment.length)
    segment.low[:] = low
    segment.high[:] = high
    segment.kept[:] = high - low
    segment.kept_digest[:] = range_digests(low, high)
    # From here on as places in the documents laid end to end, in which `bases` says where each begins, and the end.
    begins = index.bases[:-1]
    begins_kept = begins + low
    ends_kept = begins + high
    supervised_before = index.supervised_before
    segment.supervised[:] = supervised_before(begins + segment.length) - supervised_before(begins)
    segment.supervised_kept[:] = supervised_before(ends_kept) - supervised_before(begins_kept)
    segment.flags[index.supervised_at(begins) & (segment.length > 0)] |= FIRST_SUPERVISED
    # The first kept token has no label, so labels are looked for from the second one on.
    segment.labels[:] = segment.supervised_kept - (index.supervised_at(begins_kept) & (low < high))
    labels = SupervisedDigests(index, segment.span_count)
    # The second kept token, or the end where fewer than two are kept.
    first_labels = np.minimum(begins_kept + 1, ends_kept)
    segment.trained_digest[:] = labels.between(bases=begins, low=first_labels, high=ends_kept)


def _cut_pairs(
    batch: pa.RecordBatch, segment: Documents, limits: Limits, spans: Spans, config: "RunConfig", source: int
) -> None:
    """Fill the columns that say what the limits keep of preference pairs, and leave out pairs for what they are.

    Args:
        source: the index of the pairs' source.
    """
    lengths = pair_lengths(spans.ends)
    cut = cut_pairs(lengths, limits)
    segment.high[:] = cut.kept.all
    segment.kept[:] = cut.kept.all
    segment.supervised[:] = lengths.completions
    segment.supervised_kept[:] = cut.kept.completions
    segment.chosen_kept[:] = cut.kept.chosen
    if limits.both:  # whole prompts, also with `pack.share`, so that a mixture does not depend on it
        segment.overlap[:] = cut.kept.prompt
    segment.flags[lengths.prompt == 0] |= FIRST_SUPERVISED
    # Without a prompt, nothing predicts the first token of either completion.
    segment.labels[:] = segment.supervised_kept - np.where(cut.kept.prompt == 0, 2, 0)
    kept_digests = np.zeros(len(segment), np.uint64)
    # Of a prompt of 3 tokens of which the last 2 are kept, and completions of 2 and 1 tokens, the tokens 1 to 2, 3 to 4
    # and 5 of the pair are kept.
    begin_of_part = np.zeros(len(segment), np.int64)
    for length, begin, kept in zip(lengths.parts, cut.begins.parts, cut.kept.parts, strict=True):
        kept_digests += range_digests(begin_of_part + begin, begin_of_part + begin + kept)
        begin_of_part += length
    segment.kept_digest[:] = kept_digests
    segment.trained_digest[:] = kept_digests  # all tokens of completions are trained, and none of prompts
    # Compared twice, because pairs that only a cut makes equal have another reason, and another remedy. `drop` cuts
    # nothing.
    tokens = view(batch.column("input_ids").values)
    uncut = cut_pairs(lengths, replace(limits, overlong="drop"))
    equal = equal_completions(tokens, segment, lengths, uncut)
    equal_when_cut = equal_completions(tokens, segment, lengths, cut)
    leave_out_pairs(segment, lengths, cut, config, source, equal=equal, equal_when_cut=equal_when_cut)


def _sizes_by_file(place: PartPlace, part: EncodedPart, documents: int) -> list[int]:
    """Documents of each file of a part."""
    if len(place.lines.files) == 1:
        return [documents]
    # Small files share a part; each of them is a block by itself where windows are composed.
    file_of_documents = [np.zeros(0, np.int32)]  # there may be no batch
    for batch in part.batches:
        file_numbers, _ = place.lines.find_all(view(batch.column("line")))
        file_of_documents.append(file_numbers)
    counts = np.bincount(np.concatenate(file_of_documents), minlength=len(place.lines.files))
    return [int(count) for count in counts]


def _held_out(batch: pa.RecordBatch, source: str, config: "RunConfig") -> NDArray[np.bool_]:
    """(N,) whether each document is held out, decided by a hash of its content; or of its group, if it has one and
    `holdout.by` is `group`. So adding data does not move documents, and equal examples are in the same split.

    Args:
        source: the name of the documents' source: groups of two sources that have one name are different groups.
    """
    groups = batch.column("group").to_pylist() if config.holdout.by == "group" else [""] * batch.num_rows
    examples = zip(groups, batch.column("digest").to_pylist(), strict=True)
    keys = (f"{source}\n{group}".encode() if group else digest for group, digest in examples)
    # Hashes are spread evenly over 64 bits, so this share of them lies below.
    limit = int(config.holdout.fraction * 2**64)
    return np.fromiter((text_number(key, config.seed) < limit for key in keys), np.bool_, batch.num_rows)
