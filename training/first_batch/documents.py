"""Which documents of a dataset are in a batch, found by their tokens.

Documents, not rows, because trainers divide, join and pad rows. Legend: B rows of the batch, T tokens of each.

A *stretch* of the dataset is a piece of a document, or a whole row. It is looked up by its key: a hash of its first 8
tokens, or of all if it has fewer. Stretches that short are looked for only where nothing but padding or documents are
beside them, since two or three tokens may stand anywhere; elsewhere a short piece is found with its row.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...schemas.dataset.row_batch import BatchPieces
from ...schemas.ragged import ranges
from ..packed_rows import PackedRows

KEY = 8
"""Most tokens by whose hash a stretch is looked up."""
COMPARED_FIRST = (1.0, 0.5, 0.75, 0.25, 0.9)
"""Places in a stretch that are compared before all of it: many chats begin with the same system prompt."""
# Odd, so that no token is multiplied to 0.
_FACTORS = np.random.default_rng(0).integers(1, 2**63, KEY, np.uint64) | np.uint64(1)
Windows = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""(N,) the keys of stretches that may begin in the batch, sorted; and (N,) where each begins, in the tokens of all rows
end to end."""


class BatchSpan(NamedTuple):
    """Neighbouring tokens of a row of the batch; `end` is behind the last one. A *gap* is a span that is neither a
    document nor padding.
    """

    row: int
    begin: int
    end: int


class FoundDocument(NamedTuple):
    """A piece of a document in the batch, whole."""

    row: int
    begin: int
    end: int
    labels: list[NDArray[np.int32]]
    """Its labels in the dataset. Several variants, if the dataset has these tokens several times with other labels, for
    example in sources with different masks."""

    @property
    def place(self) -> tuple[int, slice]:
        """Its index into (B, T) arrays."""
        return self.row, slice(self.begin, self.end)


class DocumentFinder:
    """Finds documents of one split in batches. Reads its shards in order, until a batch is explained."""

    def __init__(self, rows: PackedRows) -> None:
        self._rows = rows

    def find(self, ids: NDArray[np.int64], padding: NDArray[np.bool_]) -> tuple[list[FoundDocument], list[BatchSpan]]:
        """The documents in a batch, in its order, and the gaps between them.

        Args:
            ids: (B, T) tokens.
            padding: (B, T), true where an attention mask hides a token. Without one, the same token again and again
                behind a document is padding.

        Raises:
            IntegrityError: a shard is damaged.
        """
        # Where a piece of the dataset was found → the different labels that the dataset has for it.
        labels_of: dict[BatchSpan, list[NDArray[np.int32]]] = {}
        # So far nothing was found: all that is not padding is a gap.
        documents, gaps = _without_parts(ids, padding, labels_of)
        # Twice: a document of fewer than `KEY` tokens is looked for only where nothing else is beside it, and what is
        # beside it may be found later in the first pass.
        for _ in range(2):
            windows = _windows(ids, gaps)
            # The first member, dropped here, is where the rows lie.
            for _, batch in self._rows.batches():
                found_before = len(labels_of)
                for where, labels in _matches(ids, windows, batch.pieces()):
                    variants = labels_of.setdefault(where, [])
                    if not any(np.array_equal(labels, variant) for variant in variants):
                        variants.append(labels)
                if len(labels_of) > found_before:
                    documents, gaps = _without_parts(ids, padding, labels_of)
                if not gaps:
                    return documents, []
        return documents, gaps

    def describe(self, ids: NDArray[np.int64], gap: BatchSpan) -> str:
        """What a gap holds, in a sentence: a part of a document that was cut, or anything else. Reads all shards, at
        worst.
        """
        part = ids[gap.row, gap.begin : gap.end]
        # How often its last token stands at its end, 3 for 7 8 0 0 0. More than once is likely padding. A gap has two
        # different tokens at least, so there is a first one that differs.
        repeated = int(np.argmax(part[::-1] != part[-1]))
        part = part[:-repeated] if repeated > 1 else part
        where = f"tokens {gap.begin:,} to {gap.begin + len(part):,} of row {gap.row} of the batch"
        for _, batch in self._rows.batches():
            pieces = batch.pieces()
            # Searched as bytes, because that is done in C. A match that begins within a token has a remainder below.
            tokens = pieces.input_ids.tobytes()
            pattern = part.astype(pieces.input_ids.dtype).tobytes()
            at = tokens.find(pattern)
            while at >= 0:
                place, remainder = divmod(at, pieces.input_ids.itemsize)
                piece = int(np.searchsorted(pieces.begins, place, "right")) - 1
                length = int(pieces.lengths[piece])
                if not remainder and piece >= 0 and place + len(part) <= pieces.begins[piece] + length:
                    return f"{where} are a part of a document of {length:,} tokens, which was cut"
                at = tokens.find(pattern, at + 1)
        return f"{where} are no documents of this dataset"


def _windows(ids: NDArray[np.int64], gaps: list[BatchSpan]) -> Windows:
    """Where stretches may begin in gaps, and their keys: those of `KEY` tokens anywhere; shorter ones only with nothing
    but padding beside them.

    Args:
        ids: (B, T) tokens.
    """
    width = ids.shape[1]
    places: list[int] = []
    lengths: list[int] = []
    for row, begin, end in gaps:
        # One window of `KEY` tokens after another, each by its place in the tokens of all rows end to end.
        places += range(row * width + begin, row * width + end - KEY + 1)
        lengths += [KEY] * max(0, end - begin - KEY + 1)
        # Padding is one token again and again at an end: of 0 0 5 6 7, what stands alone begins at place 2 at the
        # latest, and ends before place 4 at the earliest, as 7 may be padding of one token. So three tokens may begin
        # at 1 or 2, and two only at 2:
        #     place              0 1 2 3 4
        #     token              0 0 5 6 7
        #     three tokens at 1    x x x
        #     three tokens at 2      x x x
        #     two tokens at 2        x x
        tokens = ids[row, begin:end]
        latest_begin = begin + int(np.argmax(tokens != tokens[0]))
        earliest_end = end - int(np.argmax(tokens[::-1] != tokens[-1]))
        for length in range(1, KEY):
            alone = range(max(begin, earliest_end - length), min(latest_begin, end - length) + 1)
            places += [row * width + place for place in alone]
            lengths += [length] * len(alone)
    window_places = np.array(places, np.int64)
    keys = _keys(ids.ravel(), window_places, np.array(lengths, np.int64))
    order = np.argsort(keys, kind="stable")
    return keys[order], window_places[order]


def _keys(tokens: NDArray[np.integer], begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """(N,) the keys of N stretches of `tokens`, by (N,) where they begin and (N,) how long they are."""
    offsets = np.arange(KEY)
    places = np.minimum(begins[:, None] + offsets, len(tokens) - 1)
    # -1, which is no token, behind the end of a shorter one.
    first_tokens = np.where(offsets < lengths[:, None], tokens[places].astype(np.int64), -1)
    # Different tokens may have one key: `_matches` compares what has equal keys token by token.
    keys: NDArray[np.uint64] = (first_tokens.astype(np.uint64) * _FACTORS).sum(-1, dtype=np.uint64)
    return keys


def _matches(
    ids: NDArray[np.int64], windows: Windows, pieces: BatchPieces
) -> Iterator[tuple[BatchSpan, NDArray[np.int32]]]:
    """Where pieces are whole in the batch, by themselves or with their row; and their labels.

    Args:
        ids: (B, T) tokens of the batch.
        windows: where a stretch may begin in it.
        pieces: of some rows of the dataset, with their tokens and labels end to end.
    """
    window_keys, window_places = windows
    flat = ids.ravel()
    width = ids.shape[1]
    # The pieces of each stretch: of rows with two pieces and one, 0:1, 1:2 and 2:3, then 0:2 and 2:3 for the rows.
    numbers = np.arange(len(pieces.rows))
    row_firsts = np.flatnonzero(np.diff(pieces.rows, prepend=-1))
    row_stops = np.flatnonzero(np.diff(pieces.rows, append=-1)) + 1
    firsts = np.concatenate([numbers, row_firsts])
    stops = np.concatenate([numbers + 1, row_stops])
    begins = pieces.begins[firsts]
    lengths = np.concatenate([pieces.lengths, pieces.row_ends[row_firsts] - pieces.begins[row_firsts]])
    keys = _keys(pieces.input_ids, begins, lengths)
    # The places with the key of a stretch are neighbours in the sorted keys, from `low` to before `high`. Of the sorted
    # keys 3 5 5 8, the key 5 has low 1 and high 3, so 2 places; the key 4 has low 1 and high 1, so none.
    low = np.searchsorted(window_keys, keys, "left")
    high = np.searchsorted(window_keys, keys, "right")
    stretch = np.repeat(np.arange(len(keys)), high - low)  # an entry for each pair of a stretch and a place
    start = window_places[ranges(low, high - low)]
    # A stretch must end in the row in which it begins.
    is_match = start % width + lengths[stretch] <= width
    # A few tokens are compared before all of them: the pairs that are left go through a loop in Python.
    for share in COMPARED_FIRST:
        stretch = stretch[is_match]
        start = start[is_match]
        offset = (share * (lengths[stretch] - 1)).astype(np.int64)
        is_match = pieces.input_ids[begins[stretch] + offset] == flat[start + offset]
    for number, at in zip(stretch[is_match].tolist(), start[is_match].tolist(), strict=True):
        begin = int(begins[number])
        length = int(lengths[number])
        if not np.array_equal(pieces.input_ids[begin : begin + length], flat[at : at + length]):
            continue
        for piece in range(int(firsts[number]), int(stops[number])):
            piece_begin = int(pieces.begins[piece])
            piece_length = int(pieces.lengths[piece])
            # The piece is as far behind `at` in the batch as it is behind the beginning of its stretch.
            row, place = divmod(at + piece_begin - begin, width)
            if piece_length:  # a row may have pieces without tokens
                yield (
                    BatchSpan(row, place, place + piece_length),
                    pieces.labels[piece_begin : piece_begin + piece_length],
                )


def _without_parts(
    ids: NDArray[np.int64], padding: NDArray[np.bool_], labels_of: dict[BatchSpan, list[NDArray[np.int32]]]
) -> tuple[list[FoundDocument], list[BatchSpan]]:
    """The documents in the batch's order, without what is only a part of a longer one; and the gaps between them.

    Args:
        ids: (B, T) tokens.
        padding: (B, T), true where an attention mask hides a token.
        labels_of: where pieces of the dataset were found, and their labels.
    """
    documents: list[FoundDocument] = []
    is_taken = np.zeros(ids.shape, bool)
    # The longest first: what overlaps one that is kept already is a part of it.
    for where in sorted(labels_of, key=lambda where: where.begin - where.end):
        document = FoundDocument(*where, labels_of[where])
        if not is_taken[document.place].any():
            is_taken[document.place] = True
            documents.append(document)
    gaps = []
    for number, unknown in enumerate(~is_taken & ~padding):
        # Where unknown tokens begin and end, in turn: [0 1 1 0 1] has the edges 1, 3, 4, 5.
        edges = np.flatnonzero(np.diff(np.concatenate(([0], unknown.view(np.int8), [0]))))
        for begin, end in edges.reshape(-1, 2).tolist():
            part = ids[number, begin:end]
            if (part != part[0]).any():  # one token again and again is padding
                gaps.append(BatchSpan(number, begin, end))
    return sorted(documents, key=lambda document: document[:2]), gaps  # by row, then by where they begin
