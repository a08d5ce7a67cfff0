"""Preference pairs as documents: three spans end to end, which are the prompt and both completions.

A pair is one line of the table. In packed rows it is a unit of two pieces, its sides, each of which is a document with
prompt and completion. A prompt of 3 tokens (p), and completions of 2 (c) and 1 (r), are stored in a part as

    p0 p1 p2 c0 c1 r0

and packed in one of two ways; `^` marks trained tokens:

    pack.share      chosen side       rejected side
    none            p0 p1 p2 c0 c1    p0 p1 p2 r0
                             ^  ^              ^
    row             p0 p1 p2 c0 c1    p2 r0              which continues the 2 first tokens of the chosen side
                             ^  ^        ^
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import lists
from ...schemas.ragged import offsets_of
from ...schemas.tables.columns import CHOSEN_SIDE, PREFERENCE, REJECTED_SIDE
from ...stages.pack.row_columns import Branches, PlannedPieces
from ...stages.select.truncate import Limits, PairCut, PairLengths, cut_pairs
from .segments import Segments
from .table import PIECE, Documents, Pieces


def pair_lengths(ends: NDArray[np.int32]) -> PairLengths:
    """The lengths of N pairs: spans that end at 3, 5 and 6 are 3, 2 and 1 tokens.

    Args:
        ends: (3 N,) where the three spans of each pair end, in tokens of the pair.
    """
    parts = ends.reshape(-1, 3)
    return PairLengths(prompt=parts[:, 0].copy(), chosen=parts[:, 1] - parts[:, 0], rejected=parts[:, 2] - parts[:, 1])


def equal_completions(
    tokens: NDArray[np.int32], pairs: Documents, lengths: PairLengths, cut: PairCut
) -> NDArray[np.bool_]:
    """(N,) whether what is kept of both completions of each pair is the same.

    Args:
        tokens: those of the pairs' segment.
        pairs: the N pairs of the segment.
        lengths: tokens of the three parts of each pair.
        cut: what is kept of each part.
    """
    equal = np.zeros(len(pairs), dtype=np.bool_)
    # Completions of different lengths differ already.
    same_length = np.flatnonzero(cut.kept.chosen == cut.kept.rejected)
    # Where what is kept of each completion begins in `tokens`.
    chosen = (pairs.begin + lengths.prompt + cut.begins.chosen)[same_length]
    rejected = (pairs.begin + lengths.prompt + lengths.chosen + cut.begins.rejected)[same_length]
    stretches = zip(chosen.tolist(), rejected.tolist(), cut.kept.chosen[same_length].tolist(), strict=True)
    equal[same_length] = [
        np.array_equal(tokens[left : left + length], tokens[right : right + length])
        for left, right, length in stretches
    ]
    return equal


# Packed


def sides_of(pairs: Documents, doc_ids: NDArray[np.int64]) -> Pieces:
    """(2 N,) both sides of each of N pairs, the chosen one first, as pieces to plan."""
    prompt = pairs.kept - pairs.supervised_kept
    pieces = np.zeros((len(doc_ids), 2), PIECE)
    chosen = pieces[:, CHOSEN_SIDE]
    rejected = pieces[:, REJECTED_SIDE]
    pieces["document"] = doc_ids[:, None]
    chosen["length"] = prompt + pairs.chosen_kept
    # Of a prompt of 3 tokens, the rejected side begins at 0 if it repeats all 3, and at 2 if it repeats the last one.
    rejected["start"] = prompt - pairs.overlap
    rejected["length"] = pairs.overlap + pairs.supervised_kept - pairs.chosen_kept
    rejected["repeated"] = pairs.overlap
    rejected["parent"] = rejected["start"] > 0  # what comes before it stands in the chosen side
    return pieces.ravel()


def plan_sides(
    sides: Pieces, documents: Documents, segments: Segments, limits: Limits, row_offsets: NDArray[np.int64]
) -> PlannedPieces:
    """The sides of pairs with their tokens and spans: D pieces in R rows, chosen and rejected in turn.

    Args:
        sides: (D,) pieces that `sides_of` made, in the order of their rows.
        documents: (D,) the pair of each side, so that each pair stands twice.
        row_offsets: (R + 1,) first piece of each row, then D.
    """
    pairs = documents.at(slice(None, None, 2))
    lengths = pair_lengths(segments.spans(pairs)[0])
    cut = cut_pairs(lengths, limits)
    prompt = lengths.prompt
    lengths_of_sides = np.ascontiguousarray(sides["length"])
    starts_in_kept = np.ascontiguousarray(sides["start"])
    repeated = np.ascontiguousarray(sides["repeated"])
    # A completion loses its beginning only if nothing of the prompt is kept, so what is kept of a side is one stretch.
    # Of p0 p1 p2 c0 c1, what is kept begins at 2 + 0 if it is p2 c0 c1, and at 3 + 1 if it is c1.
    first_of_chosen = cut.begins.prompt + cut.begins.chosen
    first_of_rejected = cut.begins.prompt + cut.begins.rejected
    chosen = segments.tokens(pairs, first_of_chosen, lengths_of_sides[::2])
    # Of the rejected side, prompt and completion are two stretches, between which the chosen completion is stored. Of
    # the prompt, it repeats the last tokens: all that are kept, or one.
    prompts = segments.tokens(pairs, prompt - repeated[1::2], repeated[1::2])
    first_rejected = prompt + lengths.chosen + cut.begins.rejected
    completions = segments.tokens(pairs, first_rejected, cut.kept.rejected)
    tokens: list[NDArray[np.int32]] = []
    for chosen_side, prompt_ids, completion in zip(chosen, prompts, completions, strict=True):
        tokens += (chosen_side, np.concatenate([prompt_ids, completion]))
    # A prompt of 3 tokens and completions of 2 and 1: the spans of the sides end at 3 5 and 3 4.
    span_ends = np.stack([prompt, prompt + lengths.chosen, prompt, prompt + lengths.rejected], axis=1)
    return PlannedPieces(
        tokens=tokens,
        starts=np.stack([first_of_chosen, first_of_rejected], axis=1).ravel() + starts_in_kept,
        lengths=lengths_of_sides,
        repeated=repeated,
        doc_ids=np.ascontiguousarray(sides["document"]),
        row_offsets=row_offsets,
        span_ends=span_ends.ravel(),
        span_supervised=np.tile([False, True], len(sides)),
        span_offsets=np.arange(len(sides) + 1, dtype=np.int64) * 2,
        branches=Branches(np.ascontiguousarray(sides["parent"]), starts_in_kept) if limits.share_prompt else None,
        sides=np.tile(np.array([CHOSEN_SIDE, REJECTED_SIDE], np.int8), len(pairs)),
    )


# Not packed


def lay_out_unpacked(
    pairs: Documents, segments: Segments, doc_ids: NDArray[np.int64], limits: Limits
) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Return the rows of R pairs, one each, and (R,) how many tokens of their completions have no loss: 2 where nothing
    of the prompt is kept, which would predict the first token of either completion; else 0.
    """
    span_ends, _ = segments.spans(pairs)
    lengths = pair_lengths(span_ends)
    cut = cut_pairs(lengths, limits)
    # A pair's tokens are stored as prompt, chosen, rejected; each part loses tokens at its beginning or its end.
    part_starts = (np.zeros_like(lengths.prompt), lengths.prompt, lengths.prompt + lengths.chosen)
    fields_of_parts = list(PREFERENCE)[:3]  # behind them stands `doc_ids`
    columns = []
    for start, begin, kept, field in zip(part_starts, cut.begins.parts, cut.kept.parts, fields_of_parts, strict=True):
        tokens = np.concatenate(segments.tokens(pairs, start + begin, kept))
        columns.append(lists(offsets_of(kept), tokens, field.type))
    columns.append(lists(np.arange(len(doc_ids) + 1), doc_ids, PREFERENCE.field("doc_ids").type))
    first_tokens = np.where(cut.kept.prompt == 0, 2, 0).astype(np.int64)
    return pa.RecordBatch.from_arrays(columns, schema=PREFERENCE), first_tokens
