"""Spans over characters → spans over tokens, for a batch of documents at once.

A token that straddles a boundary (`token_boundaries`) belongs to the assistant's side if one side is the assistant's,
else to the later side; so it belongs to the later of two parts of a turn. Tokens that straddle the boundary between two
parts of one turn are not counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import lists, numbers
from ...schemas.ragged import begins_of, offsets_of, starts_of
from ...schemas.rows import (
    ASSISTANT_KINDS,
    ENCODED,
    END_KINDS,
    NEXT_STOP_KINDS,
    PART_KINDS,
    SPAN,
    UNPROVED_KINDS,
    SpanKind,
)
from ..render.rendered import Spans, merged_spans
from .token_boundaries import TokenBoundaries

_MAX_TURN = int(np.iinfo(np.int16).max)


def _table(kinds: Iterable[SpanKind]) -> NDArray[np.bool_]:
    """(kinds,) whether each value of `SpanKind` is one of `kinds`."""
    table = np.zeros(max(SpanKind) + 1, np.bool_)
    table[list(kinds)] = True
    return table


IS_ASSISTANT = _table(ASSISTANT_KINDS)
IS_END = _table(END_KINDS)
IS_UNPROVED = _table(UNPROVED_KINDS)
IS_NEXT_STOP = _table(NEXT_STOP_KINDS)
_IS_PART_OF_TURN = _table((SpanKind.HISTORY, SpanKind.ASSISTANT, *PART_KINDS))
"""Assistant turns without end-of-turn tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class CharacterSpans:
    """The spans over characters of N documents, one after another. Only the only span of a document may be empty.

    Of two documents, with the spans PROMPT to 8, COMPLETION to 9 and TEXT to 5:

        ends     8 9 5
        counts   2 1
        inner    1 0 0     the first span of the first document is followed by another one
    """

    ends: NDArray[np.int64]
    """(spans,) each ends before this character of its document."""
    kinds: NDArray[np.int8]
    """(spans,) what each is, as `SpanKind`."""
    turns: NDArray[np.int64]
    """(spans,) the message that each belongs to, or -1."""
    weights: NDArray[np.float32]
    """(spans,) the loss weight of its tokens, if they are trained; 0 for `train: false`."""
    counts: NDArray[np.int64]
    """(N,) number of spans of each document, at least one."""
    inner: NDArray[np.bool_]
    """(spans,) whether another span of the document follows."""

    @classmethod
    def of_documents(cls, documents: Sequence[Spans]) -> "CharacterSpans":
        """The spans of N documents. Empty spans are left out if the document has others."""
        documents = [_without_empty_spans(document) for document in documents]
        counts = np.fromiter((len(document.ends) for document in documents), np.int64, len(documents))
        span_count = int(counts.sum())
        inner = np.ones(span_count, np.bool_)
        inner[np.cumsum(counts) - 1] = False
        ends = chain.from_iterable(document.ends for document in documents)
        kinds = chain.from_iterable(document.kinds for document in documents)
        turns = chain.from_iterable(document.turns for document in documents)
        weights = chain.from_iterable(document.weights for document in documents)
        return cls(
            ends=np.fromiter(ends, np.int64, span_count),
            kinds=np.fromiter(kinds, np.int8, span_count),
            # Turns beyond the column's limit share the highest number.
            turns=np.minimum(np.fromiter(turns, np.int64, span_count), _MAX_TURN),
            weights=np.fromiter(weights, np.float32, span_count),
            counts=counts,
            inner=inner,
        )

    def to_arrow(self) -> pa.ListArray:
        """The spans as Arrow lists, for documents whose `ends` are in tokens."""
        return span_lists(self.ends, self.kinds, self.turns, self.weights, offsets_of(self.counts))

    def boundaries(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(B,) the places, in characters, where one span ends and the next begins, and (N + 1,) where each document's
        places begin in that array.
        """
        return self.ends[self.inner], offsets_of(self.counts - 1)

    def over_tokens(
        self, boundaries: TokenBoundaries, lengths: NDArray[np.int64], prefix_lengths: NDArray[np.int64]
    ) -> tuple[pa.ListArray, NDArray[np.int64]]:
        """The spans over tokens, and (N,) how many boundaries of each document a token straddles, without those between
        two parts of one turn.

        Args:
            boundaries: where the places that `boundaries()` gives lie among the tokens of the texts, without the tokens
                that were added around them.
            lengths: (N,) tokens of each document, including those added around the text.
            prefix_lengths: (N,) how many tokens were added before the text; they form a separate span.
        """
        document_of_span = np.repeat(np.arange(len(self.counts)), self.counts)
        # By span: whether a token straddles the boundary at its end. The last span of a document has none.
        straddled = np.zeros(len(self.kinds), np.bool_)
        straddled[self.inner] = boundaries.straddles
        counted = straddled & ~self._is_before_part()
        straddles = np.bincount(document_of_span[counted], minlength=len(self.counts))
        ends = self._token_ends(boundaries, straddled, lengths, prefix_lengths, document_of_span)
        with_prefix = self._with_prefix_spans(ends, prefix_lengths)
        return with_prefix._to_arrow_without_empty_spans(), straddles

    def _token_ends(
        self,
        boundaries: TokenBoundaries,
        straddled: NDArray[np.bool_],
        lengths: NDArray[np.int64],
        prefix_lengths: NDArray[np.int64],
        document_of_span: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """(spans,) each ends before this token of its document, counted with the tokens added around the text.

        A prompt "2 +", an assistant's " 2 = " and a user's "4.", behind a token that the tokenizer adds:

            tokens              "<s>"   "2" " +" " 2" " =" " 4" "."
            boundaries          2 4         before " 2", and within " 4", which straddles the second
            the assistant's     2 5         the token " 4" is the assistant's
            with "<s>"          3 6
            with the last       3 6 7
        """
        ends = np.zeros(len(self.kinds), np.int64)
        ends[self.inner] = boundaries.tokens
        # A straddling token is the later side's, which `boundaries` assume, but the assistant's if that is the earlier.
        is_assistant = IS_ASSISTANT[self.kinds]
        is_assistant_before_other = is_assistant[:-1] & ~is_assistant[1:]
        ends[:-1] += straddled[:-1] & is_assistant_before_other
        ends += prefix_lengths[document_of_span]
        # A document's last span ends with it, behind the tokens that were added after the text.
        ends[~self.inner] = lengths
        # If one token straddles two boundaries, and the first moved behind it, the second must not stay before it: in
        # each document, ends ascend. With the tokens of all documents before, they ascend over all documents, so one
        # running maximum serves for all:
        #
        #     ends                 3 5 4 6    2 4
        #     document's start     0 0 0 0    6 6
        #     sum                  3 5 4 6    8 10
        #     running maximum      3 5 5 6    8 10
        #     less the start       3 5 5 6    2 4
        document_starts = starts_of(lengths)[document_of_span]
        ascending: NDArray[np.int64] = np.maximum.accumulate(ends + document_starts) - document_starts
        return ascending

    def _with_prefix_spans(self, ends: NDArray[np.int64], prefix_lengths: NDArray[np.int64]) -> "CharacterSpans":
        """These spans with their ends in tokens, and a span of the tokens before the text where there are any.

        Of two documents with 2 and 1 spans that end at 3 6 and at 4, where the tokenizer added one token before the
        second: ends 3 6 1 4, because the document's first span, at index 2, gets one before it.

        Args:
            ends: (spans,) from `_token_ends`, which count the tokens before the text.
            prefix_lengths: (N,) how many tokens the tokenizer added before the text of each document.
        """
        if not prefix_lengths.any():
            return replace(self, ends=ends)
        has_prefix = prefix_lengths > 0
        first_spans = starts_of(self.counts)[has_prefix]
        return CharacterSpans(
            ends=np.insert(ends, first_spans, prefix_lengths[has_prefix]),
            kinds=np.insert(self.kinds, first_spans, SpanKind.SPECIAL),
            turns=np.insert(self.turns, first_spans, -1),
            weights=np.insert(self.weights, first_spans, self.weights[first_spans]),
            counts=self.counts + has_prefix,
            inner=np.insert(self.inner, first_spans, True),
        )

    def _to_arrow_without_empty_spans(self) -> pa.ListArray:
        """The spans as Arrow lists, without empty ones. If all spans of a document are empty, its last one stays,
        because every document has a span.

        Of two documents with the ends 3 3 6 and 0: the second span of the first is left out, which gives 3 6 and 0.
        """
        # A span is empty if a token that straddled both of its boundaries went to its neighbours.
        offsets = offsets_of(self.counts)
        is_kept = self.ends > begins_of(self.ends, offsets)
        kept_counts = np.add.reduceat(is_kept, offsets[:-1], dtype=np.int64)
        last_spans = offsets[1:] - 1
        is_kept[last_spans[kept_counts == 0]] = True
        return span_lists(
            self.ends[is_kept],
            self.kinds[is_kept],
            self.turns[is_kept],
            self.weights[is_kept],
            offsets_of(np.maximum(kept_counts, 1)),
        )

    def _is_before_part(self) -> NDArray[np.bool_]:
        """(spans,) whether each span and the next one are two parts of a turn with the same weight: a thought and the
        answer after it. A token that straddles these is trained either way, and so is not counted.
        """
        is_part = _IS_PART_OF_TURN[self.kinds]
        is_same_turn = self.turns[:-1] == self.turns[1:]
        is_same_weight = self.weights[:-1] == self.weights[1:]
        is_other_kind = self.kinds[:-1] != self.kinds[1:]
        is_before_part = np.zeros(len(self.kinds), np.bool_)
        is_before_part[:-1] = is_part[:-1] & is_part[1:] & is_same_turn & is_same_weight & is_other_kind
        return is_before_part


def _without_empty_spans(document: Spans) -> Spans:
    """The spans of a document, without empty ones: of the ends 0 3 3, only the span that ends at the first 3."""
    # `merged_spans` leaves out empty ones, and merges neighbours that differ in nothing but their ends. Few documents
    # have empty ones, and looking is faster than merging.
    has_empty_span = not document.ends[0] or len(set(document.ends)) < len(document.ends)
    return merged_spans(document) if has_empty_span else document


def span_lists(
    ends: NDArray[np.integer[Any]],
    kinds: NDArray[np.integer[Any]],
    turns: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
    offsets: NDArray[np.int64],
) -> pa.ListArray:
    """The spans of N documents as N Arrow lists of `schemas.rows.SPAN`.

    Args:
        ends, kinds, turns, weights: (spans,) the fields of each span.
        offsets: (N + 1,) where the spans of each document begin.
    """
    columns = (ends.astype(np.int32), kinds.astype(np.int8), turns.astype(np.int16), weights.astype(np.float32))
    structs = pa.StructArray.from_arrays([numbers(column) for column in columns], fields=list(SPAN))
    return lists(offsets, structs, ENCODED.field("spans").type)
