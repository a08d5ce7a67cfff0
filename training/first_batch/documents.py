"""Which documents of a dataset are in a batch, found by their tokens.

Documents, not rows, because trainers divide, join and pad rows. Legend: B rows of the batch, T tokens of each, D pieces
of documents.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ...schemas.dataset.row_batch import BatchPieces
from ...schemas.ragged import ranges
from ..packed_rows import PackedRows

KEY = 8
"""Tokens by whose hash documents are looked up."""
COMPARED_FIRST = (1.0, 0.5, 0.75, 0.25, 0.9)
"""Places in a document that are compared before all of it: many chats begin with the same system prompt."""
MOST_LABELS = 8
"""Documents with the same tokens may have other labels: most that are kept."""
_FACTORS = np.random.default_rng(0).integers(1, 2**63, KEY, np.uint64) | np.uint64(1)
Places = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""The hashes of `KEY` tokens from every place of the batch on, sorted; and those places, row after row."""


class FoundDocument(NamedTuple):
    """A piece of a document in the batch, whole."""

    row: int
    begin: int
    end: int
    dataset_row: int
    labels: list[NDArray[np.int32]]
    """Its labels in the dataset; several, if pieces with these tokens have different ones."""


class Gap(NamedTuple):
    """A part of the batch that is neither a document nor padding."""

    row: int
    begin: int
    end: int


class DocumentFinder:
    """Finds documents of one split in batches. Reads its shards in order, until a batch is explained."""

    def __init__(self, rows: PackedRows) -> None:
        self._rows = rows

    def find(self, ids: NDArray[np.int64], padding: NDArray[np.bool_]) -> tuple[list[FoundDocument], list[Gap]]:
        """The documents in a batch, in its order, and what is none.

        Args:
            ids: (B, T) tokens.
            padding: (B, T), true where an attention mask hides a token. Without one, the same token again and again
                behind a document is padding.

        Raises:
            IntegrityError: a shard is damaged.
        """
        places = _places(ids)
        documents: dict[Gap, FoundDocument] = {}
        for first_row, pieces in self._pieces():
            before = len(documents)
            _keep(documents, _found_by_key(ids, places, pieces), pieces, first_row)
            if len(documents) > before:
                kept = _without_parts(documents.values())
                if not _gaps(ids, padding, kept):
                    return kept, []
        kept = _without_parts(documents.values())
        gaps = _gaps(ids, padding, kept)
        if gaps:
            # Documents shorter than a key that stand alone, because a trainer took their row apart.
            for first_row, pieces in self._pieces():
                _keep(documents, _found_alone(ids, gaps, pieces), pieces, first_row)
            kept = _without_parts(documents.values())
        return kept, _gaps(ids, padding, kept)

    def _pieces(self) -> Iterator[tuple[int, BatchPieces]]:
        return ((first_row, batch.pieces()) for first_row, batch in self._rows.batches())

    def describe(self, ids: NDArray[np.int64], gap: Gap) -> str:
        """What a gap holds, in a sentence. Reads all shards, at worst."""
        part = ids[gap.row, gap.begin : gap.end]
        repeated = int(np.argmax(part[::-1] != part[-1]))  # how often its last token stands at its end
        part = part[:-repeated] if repeated > 1 else part  # without what is likely padding
        where = f"tokens {gap.begin:,} to {gap.begin + len(part):,} of row {gap.row} of the batch"
        last = len(part) - 1
        for _, pieces in self._pieces():
            # Places where the part could begin, fewer with each token that is compared.
            places = np.flatnonzero(pieces.input_ids[: max(0, len(pieces.input_ids) - last)] == part[0])
            for offset in (last, last // 2, min(1, last)):
                places = places[pieces.input_ids[places + offset] == part[offset]]
            for place in places.tolist():
                piece = int(np.searchsorted(pieces.begins, place, "right")) - 1
                length = int(pieces.lengths[piece])
                inside = piece >= 0 and place + len(part) <= pieces.begins[piece] + length
                if inside and np.array_equal(pieces.input_ids[place : place + len(part)], part):
                    return f"{where} are a part of a document of {length:,} tokens, which was cut"
        return f"{where} are no documents of this dataset"


def _keep(
    documents: dict[Gap, FoundDocument],
    hits: Iterable[tuple[int, int, int]],
    pieces: BatchPieces,
    first_row: int,
) -> None:
    """Add (row of the batch, place in it, piece) to the documents that were found before."""
    for row, place, piece in hits:
        begin = int(pieces.begins[piece])
        length = int(pieces.lengths[piece])
        labels = pieces.labels[begin : begin + length]
        where = Gap(row, place, place + length)
        document = documents.setdefault(where, FoundDocument(*where, first_row + int(pieces.rows[piece]), []))
        is_new = not any(np.array_equal(labels, variant) for variant in document.labels)
        if is_new and len(document.labels) < MOST_LABELS:
            document.labels.append(labels)


def _places(ids: NDArray[np.int64]) -> Places:
    rows, width = ids.shape
    if width < KEY:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    keys = _hash(sliding_window_view(ids, KEY, axis=1))
    places = np.arange(rows)[:, None] * width + np.arange(keys.shape[1])
    order = np.argsort(keys.ravel(), kind="stable")
    return keys.ravel()[order], places.ravel()[order]


# The factors are odd, so no token is multiplied to 0; equal hashes are compared token by token anyway.
def _hash(windows: NDArray[np.integer]) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = (windows.astype(np.uint64) * _FACTORS).sum(-1, dtype=np.uint64)
    return keys


def _found_by_key(ids: NDArray[np.int64], places: Places, pieces: BatchPieces) -> Iterator[tuple[int, int, int]]:
    """(row of the batch, place in it, piece) of pieces that are whole in the batch.

    A key begins with its piece, and may reach into the next ones of its row, so that a short piece is found as well.
    The last `KEY` - 1 tokens of a row have no key: pieces there are found behind their neighbour.
    """
    batch_keys, batch_places = places
    flat = ids.ravel()
    width = ids.shape[1]
    keyed = np.flatnonzero((pieces.begins + KEY <= pieces.row_ends) & (pieces.lengths > 0) & (pieces.lengths <= width))
    piece_keys = _hash(pieces.input_ids[pieces.begins[keyed, None] + np.arange(KEY)])
    # The places with the key of a piece are neighbours in the sorted keys: low to high.
    low = np.searchsorted(batch_keys, piece_keys, "left")
    high = np.searchsorted(batch_keys, piece_keys, "right")
    piece = np.repeat(keyed, high - low)  # an entry for each pair of a piece and a place
    place = batch_places[ranges(low, high - low)]
    fits = place % width + pieces.lengths[piece] <= width
    # A few tokens are compared before all of them: the pairs that are left go through a loop in Python.
    for share in COMPARED_FIRST:
        piece = piece[fits]
        place = place[fits]
        offset = (share * (pieces.lengths[piece] - 1)).astype(np.int64)
        fits = pieces.input_ids[pieces.begins[piece] + offset] == flat[place + offset]
    for number, at in zip(piece[fits].tolist(), place[fits].tolist(), strict=True):
        row, begin = divmod(at, width)
        if not _equal(ids[row], begin, pieces, number):
            continue
        yield row, begin, number
        for near in range(number + 1, len(pieces.rows)):
            begin += int(pieces.begins[near] - pieces.begins[near - 1])
            same_row = pieces.rows[near] == pieces.rows[number]
            if not same_row or pieces.lengths[near] >= KEY or not _equal(ids[row], begin, pieces, near):
                break
            yield row, begin, near


def _found_alone(ids: NDArray[np.int64], gaps: list[Gap], pieces: BatchPieces) -> Iterator[tuple[int, int, int]]:
    """(row of the batch, place in it, piece) of short pieces that fill a gap, beside padding on either side."""
    short = np.flatnonzero(pieces.lengths < KEY).tolist()
    for gap in gaps:
        part = ids[gap.row, gap.begin : gap.end]
        # Without the token that is repeated at either end, which may be padding.
        core_begin = gap.begin + int(np.argmax(part != part[0]))
        core_end = gap.end - int(np.argmax(part[::-1] != part[-1]))
        if core_end - core_begin >= KEY:
            continue
        for piece in short:
            length = int(pieces.lengths[piece])
            for place in range(max(gap.begin, core_end - length), min(core_begin, gap.end - length) + 1):
                if _equal(ids[gap.row], place, pieces, piece):
                    yield gap.row, place, piece


def _equal(row: NDArray[np.int64], place: int, pieces: BatchPieces, piece: int) -> bool:
    begin = int(pieces.begins[piece])
    length = int(pieces.lengths[piece])
    return length > 0 and np.array_equal(pieces.input_ids[begin : begin + length], row[place : place + length])


def _without_parts(documents: Iterable[FoundDocument]) -> list[FoundDocument]:
    """Without those that are part of longer ones, in the batch's order."""
    kept_of_rows: dict[int, list[FoundDocument]] = {}
    # The longest first: what overlaps one that is kept already is a part of it.
    for document in sorted(documents, key=lambda document: document.begin - document.end):
        kept = kept_of_rows.setdefault(document.row, [])
        if all(document.end <= longer.begin or longer.end <= document.begin for longer in kept):
            kept.append(document)
    all_kept = [document for kept in kept_of_rows.values() for document in kept]
    return sorted(all_kept, key=lambda document: (document.row, document.begin))


def _gaps(ids: NDArray[np.int64], padding: NDArray[np.bool_], documents: list[FoundDocument]) -> list[Gap]:
    """Stretches of a batch that are neither documents nor padding. Padding is what a mask hides, and stretches of one
    token again and again.
    """
    unknown = ~padding
    for document in documents:
        unknown[document.row, document.begin : document.end] = False
    gaps = []
    for number, row in enumerate(unknown):
        # Where unknown tokens begin and end, in turn: [0 1 1 0 1] has the edges 1, 3, 4, 5.
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row.view(np.int8), [0]))))
        for begin, end in edges.reshape(-1, 2).tolist():
            part = ids[number, begin:end]
            if (part != part[0]).any():
                gaps.append(Gap(number, begin, end))
    return gaps
