"""Where the boundaries between spans lie among the tokens of a text.

A boundary divides a text into a left and a right side, and lies between characters, so a token with only a part of a
character never straddles one. An added token that only swallowed the white space beside it (`lstrip`, `rstrip`)
straddles nothing: it belongs to the side where its own text is.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from unicodedata import is_normalized, normalize

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from ...schemas.ragged import offsets_of
from ...schemas.tables.engines import REFERENCE
from .engines import EngineTokens, reference_tokenizer
from .vocabulary import ByteLengths, tokenizer_head


class TokenBoundaries(NamedTuple):
    """Where B boundaries of N documents lie among their tokens."""

    tokens: NDArray[np.int64]
    """(B,) index, within its document, of the first token that ends right of the boundary; the number of tokens if
    there is none."""
    straddles: NDArray[np.bool_]
    """(B,) whether the token at that index begins left of the boundary."""
    exact: NDArray[np.bool_]
    """(N,) whether the byte lengths sufficed for each document."""


def locate_boundaries(
    tokens: EngineTokens,
    byte_lengths: ByteLengths | None,
    texts: Sequence[str],
    boundaries: NDArray[np.int64],
    boundary_offsets: NDArray[np.int64],
    tokenizer_json: str,
) -> TokenBoundaries:
    """Find the boundaries of every document: by the byte lengths of its tokens where they add up to the length of its
    text, which takes about 2 ns per token; else by the offsets of the reference tokenizer.

    Args:
        tokens: N documents, T tokens.
        byte_lengths: of the tokenizer that encoded them, if they are known.
        texts: the N texts.
        boundaries: (B,) in characters, ascending within each document.
        boundary_offsets: (N + 1,) document i has `boundaries[boundary_offsets[i]:boundary_offsets[i + 1]]`.
        tokenizer_json: for the reference, which is loaded only if a document needs it.

    Raises:
        IntegrityError: the reference gives a document other tokens than `tokens` has.
    """
    if byte_lengths is None:  # nothing is located yet: all documents need the reference
        located = TokenBoundaries(
            tokens=np.zeros(len(boundaries), np.int64),
            straddles=np.zeros(len(boundaries), np.bool_),
            exact=np.zeros(len(texts), np.bool_),
        )
    else:
        located = _by_lengths(tokens, byte_lengths, texts, boundaries, boundary_offsets)
    needs_reference = ~located.exact & (np.diff(boundary_offsets) > 0)
    for index in np.flatnonzero(needs_reference).tolist():
        encoding = _reference_encoding(tokens, index, texts[index], tokenizer_json)
        own_boundaries = slice(int(boundary_offsets[index]), int(boundary_offsets[index + 1]))
        located.tokens[own_boundaries], located.straddles[own_boundaries] = _by_offsets(
            encoding.offsets, boundaries[own_boundaries]
        )
        swallowing_tokens = _swallowing_tokens(tokenizer_json)
        if swallowing_tokens and located.straddles[own_boundaries].any():
            _leave_swallowed_space(located, own_boundaries, encoding, boundaries, texts[index], swallowing_tokens)
    return located


def _reference_encoding(tokens: EngineTokens, index: int, text: str, tokenizer_json: str) -> Any:
    """The reference's `Encoding` of a text, whose tokens must be those that `tokens` has for the text `index`.

    Raises:
        IntegrityError: they are not.
    """
    # If the reference encoded the batch, its encodings are there already.
    if tokens.encodings:
        encoding = tokens.encodings[index]
    else:
        encoding = reference_tokenizer(tokenizer_json).encode(text, add_special_tokens=False)
    if encoding.ids != tokens.ids_of(index).tolist():
        raise IntegrityError(
            f"the fast tokenizer engine gives other tokens than {REFERENCE} on {text[:80]!r}; please report "
            f"it, and use tokenizer.engine={REFERENCE}"
        )
    return encoding


@lru_cache(maxsize=2)
def _swallowing_tokens(tokenizer_json: str) -> Mapping[int, str]:
    """Id → text of each added token that swallows white space beside it."""
    added = tokenizer_head(tokenizer_json).added_tokens
    return {token.id: token.content for token in added if token.lstrip or token.rstrip}


def _leave_swallowed_space(
    located: TokenBoundaries,
    own_boundaries: slice,
    encoding: Any,
    boundaries: NDArray[np.int64],
    text: str,
    swallowing_tokens: Mapping[int, str],
) -> None:
    """Move boundaries that lie in the white space which a token swallowed to the side of the token's own text.

    For `<|user|>` with `rstrip` in `<|user|>\\n  code`, a boundary at 9, before the answer's indentation, lies within
    the token of the characters 0 to 11, but after its own text, which ends at 8: the answer begins with `code`.

    Args:
        located: changed in place.
        own_boundaries: the boundaries of this text among all of them.
        encoding: of the text, by the reference.
        swallowing_tokens: id → text of each token that swallows white space beside it.
    """
    for place in np.flatnonzero(located.straddles[own_boundaries]) + own_boundaries.start:
        token = int(located.tokens[place])
        content = swallowing_tokens.get(encoding.ids[token])
        if content is None:
            continue
        token_begin, token_end = encoding.offsets[token]
        begin = text.find(content, token_begin, token_end)
        if begin < 0:
            continue  # its own text was normalised: nothing shows what is white space beside it
        if boundaries[place] >= begin + len(content):
            located.tokens[place] += 1
            located.straddles[place] = False
        elif boundaries[place] <= begin:
            located.straddles[place] = False


def _by_lengths(
    tokens: EngineTokens,
    byte_lengths: ByteLengths,
    texts: Sequence[str],
    boundaries: NDArray[np.int64],
    boundary_offsets: NDArray[np.int64],
) -> TokenBoundaries:
    """Locate all boundaries by sums of the tokens' lengths. They are right for documents whose lengths add up to that
    of the text (`exact`); of the others the tokenizer changed the text, for instance to NFC.

    Two texts, "2 + 2" with boundaries at 3 and 4, and "a b" with one at 1. All places are in bytes, counted over both
    texts, and all tokens are counted over both:

        tokens            "2" " +" " 2"    "a" " b"
        token_begins       0   1    3       5   6   8
        places             3   4            6             3 and 4, and 1 behind the 5 bytes of the first text
        located            2   2            4             the first tokens that end behind these places
        in the document    2   2            1
        straddles          no  yes          no            token 2 begins at 3: at the place 3, and left of the place 4
    """
    byte_boundaries, text_bytes = _in_bytes(texts, boundaries, boundary_offsets, is_nfc=byte_lengths.nfc)
    first_tokens = tokens.offsets[:-1]
    end_tokens = tokens.offsets[1:]
    # (T + 1,) bytes of all texts before each token, and of all texts.
    token_begins = offsets_of(byte_lengths.lengths[tokens.ids])
    exact = token_begins[end_tokens] - token_begins[first_tokens] == text_bytes
    # (B,) of the document of each boundary: its first token, and one past its last.
    document_of_boundary = np.repeat(np.arange(len(texts)), np.diff(boundary_offsets))
    document_begin = first_tokens[document_of_boundary]
    document_end = end_tokens[document_of_boundary]
    places = token_begins[document_begin] + byte_boundaries
    # A token ends where the next one begins.
    token_ends = token_begins[1:]
    located = np.searchsorted(token_ends, places, side="right")
    # Behind a text's last token may be tokens of no bytes, and the next document's: none of those is located.
    located = np.minimum(located, document_end)
    # A boundary at the text's beginning lies before all tokens, also before tokens of no bytes.
    is_inside = byte_boundaries > 0
    located = np.where(is_inside, located, document_begin)
    begins_left = token_begins[located] < places
    straddles = begins_left & (located < document_end) & is_inside
    return TokenBoundaries(located - document_begin, straddles, exact)


def _in_bytes(
    texts: Sequence[str], boundaries: NDArray[np.int64], boundary_offsets: NDArray[np.int64], *, is_nfc: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(B,) the boundaries of N texts in bytes of UTF-8, and (N,) the bytes of each text; -1 where a boundary lies
    within what NFC makes one character. Of "né 1" with a boundary at 2, the boundary is 3, and the bytes are 5.

    Args:
        is_nfc: whether the tokenizer brings texts into NFC first.
    """
    # In ASCII, bytes are characters. Other texts are few enough for a loop.
    byte_boundaries = boundaries.copy()
    text_bytes = np.fromiter(map(len, texts), np.int64, len(texts))
    for index in [index for index, text in enumerate(texts) if not text.isascii()]:
        own_boundaries = slice(int(boundary_offsets[index]), int(boundary_offsets[index + 1]))
        ends = _byte_ends(texts[index], boundaries[own_boundaries].tolist(), is_nfc=is_nfc)
        if ends is None:
            text_bytes[index] = -1  # no sum of lengths equals it
        else:
            byte_boundaries[own_boundaries] = ends[:-1]
            text_bytes[index] = ends[-1]
    return byte_boundaries, text_bytes


def _byte_ends(text: str, boundaries: list[int], *, is_nfc: bool) -> list[int] | None:
    """Where the pieces of a text between boundaries end, in bytes of UTF-8; None if a boundary lies within what NFC
    makes one character.

    Args:
        is_nfc: whether the tokenizer brings the text into NFC first.
    """
    pieces = [text[begin:end] for begin, end in pairwise((0, *boundaries, len(text)))]
    if is_nfc and not is_normalized("NFC", text):
        pieces = [normalize("NFC", piece) for piece in pieces]
        if not is_normalized("NFC", "".join(pieces)):
            return None
    return list(accumulate(len(piece.encode()) for piece in pieces))


def _by_offsets(
    offsets: Sequence[tuple[int, int]], boundaries: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """`tokens` and `straddles` of `TokenBoundaries`, (B,) each, for one text: by the offsets in characters that
    `tokenizers` reports of its tokens. Slow, but right also where the tokenizer changes the text.

    Of the offsets (0, 1), (1, 3) and (3, 5), a boundary at 2 lies in token 1, which begins left of it, and one at 3
    before token 2.
    """
    begins, ends = np.asarray(offsets, np.int64).reshape(-1, 2).T
    # Tokens that share a character have the same end: the first of them is taken. One of no characters takes the end
    # of the tokens before it.
    ascending_ends = np.maximum.accumulate(np.where(ends > begins, ends, 0))
    tokens = np.where(boundaries > 0, np.searchsorted(ascending_ends, boundaries, side="right"), 0)
    straddles = (boundaries > 0) & (tokens < len(ends))
    # Only now: where all tokens end at the boundary or before it, there is no token to look up.
    straddles[straddles] = begins[tokens[straddles]] < boundaries[straddles]
    return tokens, straddles
