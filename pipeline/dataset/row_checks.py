"""The invariants of packed rows and of preference pairs that trainers rely on, as tables: what is wrong, in which rows,
and the words for it.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import list_lengths, view
from ...schemas.dataset.manifest import Manifest
from ...schemas.ragged import offsets_of, ranges, starts_of
from ...schemas.rows import IGNORE_INDEX
from ...schemas.tables.columns import PARENTS, SIDES, UNPADDED, WEIGHTS, Per, columns_per

Check = tuple[NDArray[np.bool_], NDArray[np.int64] | None, str]
"""One check of a batch: whether each of N things (rows, pieces or tokens) is wrong; the row of each, or None if the
things are the rows; and the words for what is wrong."""


def row_problems(batch: pa.RecordBatch, manifest: Manifest) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) for the first row that breaks each invariant.

    Tokens are looked at only if all columns of all rows have the lengths that they should have.
    """
    if manifest.has_unpacked_pairs:
        yield from _first_of(_pairs(batch, manifest))
        return
    problems = list(_first_of(_shape(batch, manifest)))
    yield from problems
    if problems:
        return
    yield from _first_of(_tokens(batch, manifest))
    if SIDES in batch.schema.names:
        problems = list(_first_of(_turns_of_sides(batch)))
        yield from problems
        if not problems:  # else which two pieces are a pair is not known
            yield from _first_of(_packed_pairs(batch, manifest))


def _first_of(checks: Iterator[Check]) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) for the first row that breaks each check."""
    for is_wrong, rows, problem in checks:
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            yield first if rows is None else int(rows[first]), problem


def _shape(batch: pa.RecordBatch, manifest: Manifest) -> Iterator[Check]:
    """Yield the checks of the lengths of columns, pieces and rows."""
    # Of rows with pieces of 3 and 2 tokens, and of 2: `tokens` are 5 2, `pieces` 2 1, `lengths` 3 2 2, `rows` 0 0 1.
    tokens = list_lengths(batch.column("input_ids"))
    pieces = list_lengths(batch.column("seq_lengths"))
    lengths = view(batch.column("seq_lengths").flatten())
    rows = np.repeat(np.arange(batch.num_rows), pieces)
    for name in columns_per(Per.TOKEN, batch.schema.names):
        yield list_lengths(batch.column(name)) != tokens, None, f"{name} has another length than input_ids"
    for name in columns_per(Per.PIECE, batch.schema.names):
        yield list_lengths(batch.column(name)) != pieces, None, f"{name} has another length than seq_lengths"
    for name in columns_per(Per.ROW, batch.schema.names):
        yield list_lengths(batch.column(name)) != 1, None, f"{name} does not have one value for the row"
    # The message names the key that sets the limit: without a longer `row_length`, rows are as long as `max_length`.
    key = "row_length" if manifest.row_length > manifest.max_length else "max_length"
    yield tokens > manifest.row_length, None, f"is longer than {key} ({manifest.row_length:,})"
    too_long = f"a piece is longer than max_length ({manifest.longest_piece:,})"
    # A piece that may be as long as its row is too long only if its row is, which was checked above.
    if manifest.longest_piece < manifest.row_length:
        yield lengths > manifest.longest_padded, rows, too_long
    yield lengths < 1, rows, "a piece has no tokens"
    sums = np.bincount(rows, weights=lengths, minlength=batch.num_rows).astype(np.int64)
    yield sums != tokens, None, "seq_lengths does not add up to the row"
    if UNPADDED not in batch.schema.names:
        return
    unpadded = view(batch.column(UNPADDED).flatten())
    if len(unpadded) != len(lengths):  # named above
        return
    if manifest.longest_piece < manifest.row_length:
        yield unpadded > manifest.longest_piece, rows, too_long
    yield (unpadded > lengths) | (unpadded < 1), rows, f"{UNPADDED} is not between 1 and the piece's seq_lengths"
    yield pieces < 1, None, "has no piece"


def _tokens(batch: pa.RecordBatch, manifest: Manifest) -> Iterator[Check]:
    """Yield the checks of the tokens, labels, positions and weights of rows whose columns have the right lengths."""
    # Of rows with pieces of 3 and 2 tokens, and of 2: `lengths` are 3 2 2, `pieces` 2 1, `piece_rows` 0 0 1, and the
    # row of each token, `rows`, is 0 0 0 0 0 1 1.
    lengths = view(batch.column("seq_lengths").flatten())
    pieces = list_lengths(batch.column("seq_lengths"))
    piece_rows = np.repeat(np.arange(batch.num_rows), pieces)
    rows = np.repeat(piece_rows, lengths)
    ids = view(batch.column("input_ids").flatten())
    labels = view(batch.column("labels").flatten())
    positions = view(batch.column("position_ids").flatten())
    trained = labels != IGNORE_INDEX
    prefixes = np.zeros(len(lengths), np.int64)  # where the positions of each piece begin: at 0, but for branches
    if PARENTS in batch.schema.names:
        prefixes = positions[starts_of(lengths)].astype(np.int64)
        yield from _branches(batch, manifest, prefixes, lengths, piece_rows)
    yield ids < 0, rows, "a token id is negative"
    yield positions != ranges(prefixes, lengths), rows, "position_ids do not count 0, 1, 2, … in every document"
    yield trained & (labels != ids), rows, "a label is neither its own input id nor -100"
    first_token = "the first label of a piece is not -100: one document would be trained to predict another"
    yield trained[starts_of(lengths)], piece_rows, first_token
    if WEIGHTS in batch.schema.names:
        weights = view(batch.column(WEIGHTS).flatten())
        yield ~np.isfinite(weights) | (weights < 0), rows, "a loss weight is negative or not finite"
        yield trained & ~(weights > 0), rows, "a trained token has no loss weight"
        yield ~trained & (weights != 0), rows, "a token without a label has a loss weight"
    if UNPADDED in batch.schema.names:
        unpadded = view(batch.column(UNPADDED).flatten())
        is_uneven = manifest.pack.alignment.padded(unpadded, offsets_of(pieces)) != lengths
        yield is_uneven, piece_rows, "a piece is padded to another length than the configuration asks for"
        # A piece of 3 tokens and one of padding: 0 1 2 3 are compared with 3 3 3 3.
        is_padding = ranges(0, lengths) >= np.repeat(unpadded, lengths)
        yield is_padding & trained, rows, "padding has a label"
        yield is_padding & (ids != manifest.pad_id), rows, f"padding is not the token {manifest.pad_id}"


def _branches(
    batch: pa.RecordBatch,
    manifest: Manifest,
    prefixes: NDArray[np.int64],
    lengths: NDArray[np.int32],
    piece_rows: NDArray[np.int64],
) -> Iterator[Check]:
    """Yield the checks of pieces that continue others: each parent is in the row, and it is the piece that holds the
    last token that is continued, so that rows of one content have one form.

        piece 0, the parent      a b c d        positions 0 to 3
        piece 1, a branch            c e f      positions 2 to 4: it continues a b c, and stores c again
        `parents`                0 1            piece 1 stands one piece behind its parent
        `prefixes`               0 2            the position of the first token that each stores

    Args:
        prefixes: (D,) the first position of each piece: how many tokens of its parent's path it continues.
        lengths: (D,) tokens of each piece.
        piece_rows: (D,) the row of each piece.
    """
    parents = view(batch.column(PARENTS).flatten())
    places = ranges(0, list_lengths(batch.column(PARENTS)))  # how many pieces of its row stand before each
    lost = (parents < 0) | (parents > places)
    yield lost, piece_rows, "a piece continues one that stands before its row"
    is_branch = (parents > 0) & ~lost
    yield (prefixes > 0) != (parents > 0), piece_rows, "a piece begins above position 0 exactly if it continues another"
    # Pieces 7 and 8, which stand 1 and 2 pieces behind their parent 6, which has none: 6 6 6.
    parent = np.arange(len(parents)) - np.where(is_branch, parents, 0)
    too_far = prefixes > prefixes[parent] + lengths[parent]
    yield is_branch & too_far, piece_rows, "a piece continues more tokens than its parent's path has"
    # The token that a branch stores again stands at its first position, 2 above. A parent that begins there or behind
    # does not hold it as a token of its own: an ancestor of the parent does.
    ancestor = prefixes <= prefixes[parent]
    yield is_branch & ancestor, piece_rows, "a parent does not hold the last token that its branch continues"
    yield is_branch & (lengths < 2), piece_rows, "a branch has no token but the one that it repeats"
    # With the padding of `pack.align`, which the lengths of pieces include.
    longest = f"a document is longer than max_length ({manifest.longest_piece:,})"
    yield prefixes + lengths > manifest.longest_padded, piece_rows, longest


def _turns_of_sides(batch: pa.RecordBatch) -> Iterator[Check]:
    """Yield the checks that chosen and rejected sides alternate in each row: 0 1 0 1."""
    pieces = list_lengths(batch.column(SIDES))
    rows = np.repeat(np.arange(batch.num_rows), pieces)
    in_turn = "sides are not 0 and 1 in turn"
    yield view(batch.column(SIDES).flatten()) != ranges(0, pieces) % 2, rows, in_turn
    yield pieces % 2 != 0, None, in_turn


def _packed_pairs(batch: pa.RecordBatch, manifest: Manifest) -> Iterator[Check]:
    """Yield the checks of P packed pairs. Of each, the chosen side is a piece, and the rejected one the next.

    A side ends its prompt where its first label is. Of a side without a prompt, whose first token has no label, the
    prompt looks one token long: so prompts of one token are not compared.
    """
    doc_ids = view(batch.column("doc_ids").flatten())
    padded = view(batch.column("seq_lengths").flatten()).astype(np.int64)
    lengths = padded
    has_unpadded = UNPADDED in batch.schema.names
    if has_unpadded:
        lengths = view(batch.column(UNPADDED).flatten()).astype(np.int64)
    ids = view(batch.column("input_ids").flatten())
    labels = view(batch.column("labels").flatten())
    begins = starts_of(padded)
    # Where the first label of each piece stands in it; without one, at its end. Pieces of 4, 3 and 2 tokens begin at 0,
    # 4 and 7. With labels at the places 2, 3 and 6, the first ones stand at 2, 2 and, as the third piece has none, 2.
    trained_places = np.append(np.flatnonzero(labels != IGNORE_INDEX), len(ids))
    first_labels = np.minimum(trained_places[np.searchsorted(trained_places, begins)] - begins, lengths)
    rows = np.repeat(np.arange(batch.num_rows), list_lengths(batch.column(SIDES)) // 2)
    yield doc_ids[::2] != doc_ids[1::2], rows, "the two sides of a pair have different doc ids"
    has_no_label = first_labels >= lengths
    yield has_no_label[::2] | has_no_label[1::2], rows, "a side of a pair has no label"
    too_long = f"the two sides of a pair are longer than max_length ({manifest.max_length:,})"
    longest = _longest_pair(manifest, exact=has_unpadded)
    yield lengths[::2] + lengths[1::2] > longest, rows, too_long
    shared = np.zeros(len(rows), np.int64)
    if PARENTS in batch.schema.names:  # what the rejected side continues is the prompt, but for its last token
        shared = view(batch.column("position_ids").flatten())[begins[1::2]].astype(np.int64)
        parents = view(batch.column(PARENTS).flatten())
        yield (parents[::2] != 0) | (parents[1::2] > 1), rows, "a side of a pair continues another pair"

    # Prompts of different lengths differ; of others, the tokens are compared. The prompt of a rejected side is what it
    # shares, and what it stores before its first label.
    prompts = first_labels[::2]
    differs = shared + first_labels[1::2] != prompts
    compared = np.flatnonzero(~differs & (prompts > 1))
    # Of prompts of 3 and 2 tokens of which nothing is shared, tokens 0 1 2 and 0 1 of both sides.
    stored = (prompts - shared)[compared]
    of_chosen = ids[ranges((begins[::2] + shared)[compared], stored)]
    of_rejected = ids[ranges(begins[1::2][compared], stored)]
    differs[np.repeat(compared, stored)[of_chosen != of_rejected]] = True
    yield differs, rows, "the two sides of a pair begin with different prompts"

    is_same = np.zeros(len(rows), np.bool_)
    for pair in np.flatnonzero(~differs & (lengths[::2] == lengths[1::2] + shared)).tolist():
        # Labels too, because they tell a last token from padding with the same token.
        chosen = slice(begins[2 * pair] + shared[pair], begins[2 * pair] + lengths[2 * pair])
        rejected = slice(begins[2 * pair + 1], begins[2 * pair + 1] + lengths[2 * pair + 1])
        is_same[pair] = np.array_equal(ids[chosen], ids[rejected]) and np.array_equal(labels[chosen], labels[rejected])
    yield is_same, rows, "both sides of a pair are the same"


def _longest_pair(manifest: Manifest, *, exact: bool) -> int:
    """No pair has more tokens than this, both sides together.

    Args:
        exact: whether the lengths to compare are without padding.
    """
    alignment = manifest.pack.alignment
    if exact or not alignment.pads:
        return manifest.max_length
    # Two sides are each padded to a multiple of `document`, and the last piece of a row to one of `row`.
    return min(manifest.row_length, manifest.max_length + 2 * (alignment.document - 1) + alignment.row)


def _pairs(batch: pa.RecordBatch, manifest: Manifest) -> Iterator[Check]:
    """Yield the checks of preference pairs that are not packed, one in a row."""
    prompt, chosen, rejected = unpacked_lengths(batch)
    for name in ("prompt_ids", "chosen_ids", "rejected_ids"):
        rows = np.repeat(np.arange(batch.num_rows), list_lengths(batch.column(name)))
        yield view(batch.column(name).flatten()) < 0, rows, f"a token id of {name} is negative"
    for name, lengths in (("chosen_ids", chosen), ("rejected_ids", rejected)):
        yield lengths == 0, None, f"{name} is empty"
        too_long = f"prompt_ids and {name} are longer than max_length ({manifest.max_length:,})"
        yield prompt + lengths > manifest.max_length, None, too_long
    yield list_lengths(batch.column("doc_ids")) != 1, None, "does not have one doc id"
    same = np.zeros(batch.num_rows, dtype=np.bool_)
    for row in np.flatnonzero((chosen == rejected) & (chosen > 0)).tolist():
        chosen_ids = view(batch.column("chosen_ids")[row].values)
        rejected_ids = view(batch.column("rejected_ids")[row].values)
        same[row] = np.array_equal(chosen_ids, rejected_ids)
    yield same, None, "chosen_ids and rejected_ids are the same"


def unpacked_lengths(batch: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(N,) tokens of the prompts, of the chosen and of the rejected completions of pairs that are not packed."""
    return (
        list_lengths(batch.column("prompt_ids")),
        list_lengths(batch.column("chosen_ids")),
        list_lengths(batch.column("rejected_ids")),
    )
