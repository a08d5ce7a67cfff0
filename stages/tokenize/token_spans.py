"""Spans over characters → spans over tokens, for a batch of documents at once.

A boundary divides a text into a left and a right side, and lies between characters, so a token with only a part of a
character never straddles one. A token that does belongs to the assistant's side if one side is the assistant's, else to
the later side; so it belongs to the later of two parts of a turn. Those between parts of one turn are not counted.
An added token that only swallowed the white space beside it (`lstrip`, `rstrip`) straddles nothing: it belongs to the
side where its own text is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple
from unicodedata import is_normalized, normalize

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import lists, numbers
from ...schemas.errors import IntegrityError
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
from ...schemas.tables.engines import REFERENCE
from ..render.rendered import Spans, merged_spans
from .engines import EngineTokens, reference_tokenizer
from .vocabulary import ByteLengths, tokenizer_head

_MAX_TURN = int(np.iinfo(np.int16).max)


def _table(kinds: Iterable[SpanKind]) -> NDArray[np.bool_]:
    """A table that tells, for each kind, whether it is one of `kinds`."""
    table = np.zeros(max(SpanKind) + 1, np.bool_)
    table[list(kinds)] = True
    return table


IS_ASSISTANT = _table(ASSISTANT_KINDS)
IS_END = _table(END_KINDS)
IS_UNPROVED = _table(UNPROVED_KINDS)
IS_NEXT_STOP = _table(NEXT_STOP_KINDS)
_IS_SAID = _table((SpanKind.HISTORY, SpanKind.ASSISTANT, *PART_KINDS))
"""Assistant turns without end-of-turn tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class TextSpans:
    """The spans over characters of N documents, one after another. Only the only span of a document may be empty."""

    ends: NDArray[np.int64]
    """(spans,) each ends before this character of its document."""
    kinds: NDArray[np.int8]
    turns: NDArray[np.int64]
    weights: NDArray[np.float32]
    counts: NDArray[np.int64]
    """(N,) number of spans of each document, at least one."""
    inner: NDArray[np.bool_]
    """(spans,) whether another span of the document follows."""

    @classmethod
    def of(cls, documents: Sequence[Spans]) -> "TextSpans":
        """The spans of N documents. Empty spans are left out if the document has others."""
        spans = [
            merged_spans(one) if not one.ends[0] or len(set(one.ends)) < len(one.ends) else one for one in documents
        ]
        counts = np.fromiter((len(one.ends) for one in spans), np.int64, len(spans))
        total = int(counts.sum())
        inner = np.ones(total, np.bool_)
        inner[np.cumsum(counts) - 1] = False
        return cls(
            np.fromiter(chain.from_iterable(one.ends for one in spans), np.int64, total),
            np.fromiter(chain.from_iterable(one.kinds for one in spans), np.int8, total),
            np.minimum(np.fromiter(chain.from_iterable(one.turns for one in spans), np.int64, total), _MAX_TURN),
            np.fromiter(chain.from_iterable(one.weights for one in spans), np.float32, total),
            counts,
            inner,
        )

    def lists(self) -> pa.ListArray:
        """The spans as Arrow lists, for documents whose `ends` are in tokens."""
        return span_lists(self.ends, self.kinds, self.turns, self.weights, offsets_of(self.counts))

    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(B,) the places, in characters, where one span ends and the next begins, and (N + 1,) where each document's
        places begin in that array.
        """
        return self.ends[self.inner], offsets_of(self.counts - 1)

    def tokens(
        self, found: "Boundaries", lengths: NDArray[np.int64], prefix: NDArray[np.int64]
    ) -> tuple[pa.ListArray, NDArray[np.int64]]:
        """The spans over tokens, and (N,) how many tokens of each document span a boundary.

        Args:
            found: the boundaries, in tokens of the texts.
            lengths: (N,) tokens of each document, including those added around the text.
            prefix: (N,) how many tokens were added before the text; they form a separate span.
        """
        counts, inner, kinds, turns, weights = self.counts, self.inner, self.kinds, self.turns, self.weights
        owner = np.repeat(np.arange(len(counts)), counts)
        crossing, places = np.zeros(len(kinds), np.bool_), np.zeros(len(kinds), np.int64)
        crossing[inner], places[inner] = found.straddles, found.tokens
        straddles = np.bincount(owner[crossing & ~self._parts_of_turn()], minlength=len(counts))

        said = IS_ASSISTANT[kinds]
        places[:-1] += crossing[:-1] & said[:-1] & ~said[1:]
        places += prefix[owner]
        places[~inner] = lengths
        # A token that one boundary moved must not be moved again by the next.
        base = starts_of(lengths)[owner]
        places = np.maximum.accumulate(places + base) - base

        if prefix.any():
            has = prefix > 0
            at = starts_of(counts)[has]
            places = np.insert(places, at, prefix[has])
            kinds = np.insert(kinds, at, SpanKind.SPECIAL)
            turns = np.insert(turns, at, -1)
            weights = np.insert(weights, at, weights[at])
            counts = counts + has
        # Empty spans go; an empty document keeps its last span.
        offsets = offsets_of(counts)
        keep = places > begins_of(places, offsets)
        kept = np.add.reduceat(keep, offsets[:-1], dtype=np.int64)
        keep[(offsets[1:] - 1)[kept == 0]] = True
        spans = span_lists(places[keep], kinds[keep], turns[keep], weights[keep], offsets_of(np.maximum(kept, 1)))
        return spans, straddles

    def _parts_of_turn(self) -> NDArray[np.bool_]:
        """(spans,) whether each span and the next one are two parts of a turn with the same flag or weight."""
        out, said = np.zeros(len(self.kinds), np.bool_), _IS_SAID[self.kinds]
        alike = [one[:-1] == one[1:] for one in (self.turns, self.weights, self.kinds)]
        out[:-1] = said[:-1] & said[1:] & alike[0] & alike[1] & ~alike[2]
        return out


def span_lists(
    ends: NDArray[np.integer[Any]],
    kinds: NDArray[np.integer[Any]],
    turns: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
    offsets: NDArray[np.int64],
) -> pa.ListArray:
    """(spans,) spans and (N + 1,) where those of each document begin as Arrow lists of `schemas.rows.SPAN`."""
    columns = (ends.astype(np.int32), kinds.astype(np.int8), turns.astype(np.int16), weights.astype(np.float32))
    structs = pa.StructArray.from_arrays([numbers(one) for one in columns], fields=list(SPAN))
    return lists(offsets, structs, ENCODED.field("spans").type)


# Where boundaries lie among tokens


class Boundaries(NamedTuple):
    """Where B boundaries of N documents lie among their tokens."""

    tokens: NDArray[np.int64]
    """(B,) index, within its document, of the first token that ends right of the boundary; the number of tokens if
    there is none."""
    straddles: NDArray[np.bool_]
    """(B,) whether the token at that index begins left of the boundary."""
    exact: NDArray[np.bool_]
    """(N,) whether the byte lengths sufficed for each document."""


def locate_boundaries(
    encoded: EngineTokens,
    table: ByteLengths | None,
    texts: Sequence[str],
    bounds: NDArray[np.int64],
    bound_offsets: NDArray[np.int64],
    tokenizer_json: str,
) -> Boundaries:
    """Find the boundaries of every document: by the byte lengths of its tokens where they add up to the length of its
    text, which takes about 2 ns per token; else by the offsets of the reference tokenizer.

    Args:
        encoded: N documents, T tokens.
        table: byte lengths of the tokenizer that encoded them, if there are any.
        texts: the N texts.
        bounds: (B,) in characters, ascending within each document.
        bound_offsets: (N + 1,) document i has `bounds[bound_offsets[i]:bound_offsets[i + 1]]`.
        tokenizer_json: for the reference, which is loaded only if a document needs it.

    Raises:
        IntegrityError: the reference gives a document other tokens than `encoded` has.
    """
    if table is None:
        found = Boundaries(np.zeros(len(bounds), np.int64), np.zeros(len(bounds), np.bool_), np.zeros(len(texts), bool))
    else:
        found = _by_lengths(encoded, table, texts, bounds, bound_offsets)
    for i in np.flatnonzero(~found.exact & (np.diff(bound_offsets) > 0)).tolist():
        part = slice(int(bound_offsets[i]), int(bound_offsets[i + 1]))
        if encoded.encodings:
            told = encoded.encodings[i]
        else:
            told = reference_tokenizer(tokenizer_json).encode(texts[i], add_special_tokens=False)
        if told.ids != encoded.ids[encoded.offsets[i] : encoded.offsets[i + 1]].tolist():
            raise IntegrityError(
                f"the fast tokenizer engine gives other tokens than {REFERENCE} on {texts[i][:80]!r}; please report "
                f"it, and use tokenizer.engine={REFERENCE}"
            )
        found.tokens[part], found.straddles[part] = _by_offsets(told.offsets, bounds[part])
        if (contents := _swallowing(tokenizer_json)) and found.straddles[part].any():
            _leave_swallowed_space(found, part, told, bounds, texts[i], contents)
    return found


@lru_cache(maxsize=2)
def _swallowing(tokenizer_json: str) -> Mapping[int, str]:
    """The added tokens that swallow white space beside them, with their texts."""
    added = tokenizer_head(tokenizer_json).added_tokens
    return {token.id: token.content for token in added if token.lstrip or token.rstrip}


def _leave_swallowed_space(
    boundaries: Boundaries,
    part: slice,
    encoding: Any,
    bounds: NDArray[np.int64],
    text: str,
    contents: Mapping[int, str],
) -> None:
    """Move boundaries that lie in the white space which a token swallowed to the side of the token's own text.

    For `<|user|>` with `rstrip` in `<|user|>\\n  code`, a boundary at 9, before the answer's indentation, lies within
    the token of the characters 0 to 11, but after its own text, which ends at 8: the answer begins with `code`.

    Args:
        boundaries: changed in place.
        part: those of this text.
        encoding: of the text, by the reference.
    """
    for place in np.flatnonzero(boundaries.straddles[part]) + part.start:
        token = int(boundaries.tokens[place])
        content = contents.get(encoding.ids[token])
        if content is None:
            continue
        begin = text.find(content, *encoding.offsets[token])
        if begin < 0:  # its own text was normalised: nothing shows what is white space beside it
            continue
        if bounds[place] >= begin + len(content):
            boundaries.tokens[place] += 1
            boundaries.straddles[place] = False
        elif bounds[place] <= begin:
            boundaries.straddles[place] = False


def _by_lengths(
    encoded: EngineTokens,
    table: ByteLengths,
    texts: Sequence[str],
    char_bounds: NDArray[np.int64],
    bound_offsets: NDArray[np.int64],
) -> Boundaries:
    """The boundaries of the documents whose tokens' lengths add up to the length of the text. For the others the
    tokenizer changed the text.
    """
    bounds, text_bytes = char_bounds.copy(), np.fromiter(map(len, texts), np.int64, len(texts))
    for i in [i for i, text in enumerate(texts) if not text.isascii()]:
        text, own = texts[i], slice(int(bound_offsets[i]), int(bound_offsets[i + 1]))
        places = (0, *char_bounds[own].tolist(), len(text))
        pieces, moved = [text[low:high] for low, high in pairwise(places)], False
        if table.nfc and not is_normalized("NFC", text):
            pieces = [normalize("NFC", piece) for piece in pieces]
            moved = not is_normalized("NFC", "".join(pieces))  # a boundary lies within what becomes one character
        ends = list(accumulate(len(piece.encode()) for piece in pieces))
        bounds[own] = ends[:-1]
        text_bytes[i] = -1 if moved else ends[-1]
    first, last = encoded.offsets[:-1], encoded.offsets[1:]
    ends_of_tokens = offsets_of(table.lengths[encoded.ids])
    exact = ends_of_tokens[last] - ends_of_tokens[first] == text_bytes
    owner = np.repeat(np.arange(len(texts)), np.diff(bound_offsets))
    low, high, place = first[owner], last[owner], ends_of_tokens[first][owner] + bounds
    # Tokens of no bytes must not move a boundary into the next document.
    found = np.minimum(np.searchsorted(ends_of_tokens[1:], place, side="right"), high)
    found = np.where(bounds <= 0, low, found)
    straddles = (ends_of_tokens[found] < place) & (found < high) & (bounds > 0)
    return Boundaries(found - low, straddles, exact)


def _by_offsets(
    offsets: Sequence[tuple[int, int]], bounds: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The same of one text, (B,) and (B,), by the offsets in characters that `tokenizers` reports of its tokens: slow,
    but right for normalised texts.
    """
    starts, ends = np.asarray(offsets, np.int64).reshape(-1, 2).T
    # Tokens that share a character have the same end, so the first of equal ends is taken.
    reached = np.maximum.accumulate(np.where(ends > starts, ends, 0))
    tokens = np.where(bounds > 0, np.searchsorted(reached, bounds, side="right"), 0)
    inside = (bounds > 0) & (tokens < len(ends))
    inside[inside] = starts[tokens[inside]] < bounds[inside]
    return tokens, inside
