"""Maps positions in a text to positions among its tokens.

A boundary divides a text into a left and a right side. The first token of the right side is the first one that ends
after the boundary: a token that straddles it belongs to the right side, where a completion's loss is. Boundaries fall
between characters, so a token with only a part of a character never straddles one.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from unicodedata import is_normalized, normalize

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from .byte_lengths import ByteLengths
from .engines import FAST, REFERENCE, EngineTokens


class Boundaries(NamedTuple):
    """Where B boundaries of N documents lie among their tokens."""

    tokens: NDArray[np.int64]
    """(B,) index, within its document, of the first token right of the boundary; the number of tokens if there is none.
    """
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
    reference: Callable[[], Any],
) -> Boundaries:
    """Find the boundaries of every document: by the byte lengths of its tokens where they add up to the length of its
    text, which takes about 2 ns per token; else by the offsets of the reference tokenizer.

    Args:
        encoded: N documents, T tokens.
        table: byte lengths of the tokenizer that encoded them, if there are any.
        texts: the N texts.
        bounds: (B,) in characters, ascending within each document.
        bound_offsets: (N + 1,) document i has `bounds[bound_offsets[i]:bound_offsets[i + 1]]`.
        reference: returns `engines.reference_tokenizer(...)`; called only if a document needs it.

    Raises:
        IntegrityError: the reference gives a document other tokens than `encoded` has.
    """
    if table is None:
        found = Boundaries(np.zeros(len(bounds), np.int64), np.zeros(len(bounds), np.bool_), np.zeros(len(texts), bool))
    else:
        found = _by_lengths(encoded, table, texts, bounds, bound_offsets)
    for i in np.flatnonzero(~found.exact & (np.diff(bound_offsets) > 0)).tolist():
        part = slice(int(bound_offsets[i]), int(bound_offsets[i + 1]))
        told = encoded.encodings[i] if encoded.encodings else reference().encode(texts[i], add_special_tokens=False)
        if told.ids != encoded.ids[encoded.offsets[i] : encoded.offsets[i + 1]].tolist():
            raise IntegrityError(
                f"the tokenizer engine {FAST} gives other tokens than {REFERENCE} on {texts[i][:80]!r}; please report "
                f"it, and use tokenizer.engine={REFERENCE}"
            )
        found.tokens[part], found.straddles[part] = _by_offsets(told.offsets, bounds[part])
    return found


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
    bounds, text_bytes = _in_bytes(texts, char_bounds, bound_offsets, nfc=table.nfc)
    first, last = encoded.offsets[:-1], encoded.offsets[1:]
    ends = np.zeros(len(encoded.ids) + 1, np.int64)
    np.cumsum(table.lengths[encoded.ids], dtype=np.int64, out=ends[1:])
    exact = ends[last] - ends[first] == text_bytes
    owner = np.repeat(np.arange(len(texts)), np.diff(bound_offsets))
    low, high, place = first[owner], last[owner], ends[first][owner] + bounds
    # Tokens of no bytes must not move a boundary into the next document.
    found = np.minimum(np.searchsorted(ends[1:], place, side="right"), high)
    found = np.where(bounds <= 0, low, found)
    straddles = (ends[found] < place) & (found < high) & (bounds > 0)
    return Boundaries(found - low, straddles, exact)


def _in_bytes(
    texts: Sequence[str], char_bounds: NDArray[np.int64], bound_offsets: NDArray[np.int64], *, nfc: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (B,) the boundaries in bytes of UTF-8, and (N,) the texts' lengths in bytes.

    Args:
        nfc: whether in bytes of the texts in NFC. A text with a boundary that NFC would move has the length -1.
    """
    text_bytes = np.fromiter(map(len, texts), np.int64, len(texts))
    bounds = char_bounds.copy()
    for i in [i for i, text in enumerate(texts) if not text.isascii()]:
        text, own = texts[i], slice(int(bound_offsets[i]), int(bound_offsets[i + 1]))
        pieces = [text[low:high] for low, high in pairwise((0, *char_bounds[own].tolist(), len(text)))]
        moved = False
        if nfc and not is_normalized("NFC", text):
            pieces = [normalize("NFC", piece) for piece in pieces]
            moved = not is_normalized("NFC", "".join(pieces))
        ends = list(accumulate([len(piece.encode()) for piece in pieces]))
        bounds[own] = ends[:-1]
        text_bytes[i] = -1 if moved else ends[-1]
    return bounds, text_bytes


def _by_offsets(
    offsets: Sequence[tuple[int, int]], bounds: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Find the boundaries of one text by the offsets that `tokenizers` reports: slow, but right for normalised texts.

    Args:
        offsets: of T tokens, in characters.
        bounds: (B,) in characters.

    Returns:
        (B,) index of the first token right of each boundary, (B,) whether it straddles.
    """
    starts, ends = np.asarray(offsets, np.int64).reshape(-1, 2).T
    # Tokens that share a character have the same end, so the first of equal ends is taken.
    reached = np.maximum.accumulate(np.where(ends > starts, ends, 0))
    tokens = np.where(bounds > 0, np.searchsorted(reached, bounds, side="right"), 0)
    inside = (bounds > 0) & (tokens < len(ends))
    inside[inside] = starts[tokens[inside]] < bounds[inside]
    return tokens, inside
