"""Finds where a text may be cut: reads from the vocabulary which tokens end a line or a paragraph.

Documents are cut when their text is no longer available, so this uses tokens only.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .vocabulary import id_count, steps, tokenizer_head, vocabulary

LINE = 1
"""Bit of a token that ends with a line end, or a line end and spaces."""
BLANK = 2
"""Bit of a token that ends so and contains a blank line: two line ends with only spaces between them."""
WHITE = 4
"""Bit of a token that is only white space."""

_BYTE_LEVEL = str.maketrans({"Ċ": "\n", "č": "\r", "Ġ": " ", "ĉ": "\t"})
"""How byte-level vocabularies, such as GPT-2's, write white space."""
_BYTE_PIECES = {"<0x0A>": "\n", "<0x0D>": "\r", "<0x20>": " ", "<0x09>": "\t"}
"""How other vocabularies write single bytes; a space within a piece is "▁" there."""
_SPACES = " \t\f\v"
_BYTE_LEVEL_ENDS = frozenset("ĊčĠĉ")
_TEXT_ENDS = frozenset(">▁ \n\r\t\f\v")
"""Last characters of the pieces that may end in white space; ">" of `<0x0A>` and the like."""


@dataclass(frozen=True, slots=True, eq=False)
class Breaks:
    """A table of a vocabulary: which of its tokens end a line, end a paragraph, or are white space."""

    bits: NDArray[np.uint8]
    """(V + 1,) bits of each token; the last one, 0, is for ids outside of the vocabulary."""

    @classmethod
    def from_json(cls, tokenizer_json: str) -> "Breaks":
        """Read the table from the content of a tokenizer.json.

        Raises:
            TokenizerError: it is not the content of a tokenizer.json.
        """
        head = tokenizer_head(tokenizer_json)
        pieces = vocabulary(tokenizer_json)
        is_byte_level = any(step.get("type") == "ByteLevel" for step in steps(head.pre_tokenizer, "pretokenizers"))
        bits = np.zeros(id_count(pieces, head.added_tokens) + 1, dtype=np.uint8)
        # Only pieces that end in white space have bits: one in a hundred.
        ends = _BYTE_LEVEL_ENDS if is_byte_level else _TEXT_ENDS
        for piece, index in pieces.items():
            if piece[-1:] not in ends:
                continue
            bits[index] = token_bits(_text_of_piece(piece, is_byte_level=is_byte_level))
        for token in head.added_tokens:
            bits[token.id] = token_bits(token.content)
        return cls(bits)

    def of(self, tokens: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return (T,) the bits of each token; ids are 0 or more."""
        # `clip` takes the last entry, 0, for ids beyond the vocabulary.
        return np.take(self.bits, tokens, mode="clip")


def _text_of_piece(piece: str, *, is_byte_level: bool) -> str:
    """The text of a piece, as far as line ends and spaces are concerned."""
    if is_byte_level:
        return piece.translate(_BYTE_LEVEL)
    return _BYTE_PIECES.get(piece, piece).replace("▁", " ")


def line_places(bits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return places to cut at: after blank lines, and after all line ends. Both ascending, without 0 and T.

    Of several line ends in a row only the last one counts, so that no piece begins with an empty line.

        "a" "\\n" "b" "\\n\\n" "c"     after blank lines: 4, after all line ends: 2 and 4
        "a" "\\n" "\\n" "b"            both: 3, because two tokens make the blank line

    Args:
        bits: (T,) of the tokens, from `Breaks.of`.
    """
    empty_line = LINE | WHITE  # a token that is white space and ends a line
    is_empty_line = (bits & empty_line) == empty_line
    # Without the last token, behind which nothing can be cut off. LINE is the lowest bit, so that its 0 and 1 can be
    # viewed as booleans, on which np.flatnonzero is five times as fast.
    line_ends = np.flatnonzero((bits[:-1] & LINE).view(np.bool_))
    # Of "a" "\n" "\n" "b", the line ends are the tokens 1 and 2. Token 1 is left out, because an empty line follows it.
    line_ends = line_ends[~is_empty_line[line_ends + 1]]
    # Token 2 is an empty line behind a line end, so the two make a blank line.
    is_after_line_end = (line_ends > 0) & ((bits[line_ends - 1] & LINE) > 0)
    is_second_end = is_empty_line[line_ends] & is_after_line_end
    ends_paragraph = ((bits[line_ends] & BLANK) > 0) | is_second_end
    # A cut is after its token.
    return line_ends[ends_paragraph] + 1, line_ends + 1


def token_bits(text: str) -> int:
    """The bits of a token with this text: of "a", 0; of " ", WHITE; of ".\\n", LINE; of "\\n", WHITE and LINE; of
    ".\\n\\n", LINE and BLANK.
    """
    white = WHITE if text and text.isspace() else 0
    trimmed = text.rstrip(_SPACES)
    if not trimmed.endswith(("\n", "\r")):
        return white
    lines = trimmed.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    # The text before the first line end is the rest of a line that an earlier token began.
    has_blank_line = any(not line.strip(_SPACES) for line in lines[1:])
    return white | LINE | (BLANK if has_blank_line else 0)


def skip_white(places: NDArray[np.int64], white: NDArray[np.bool_], limits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move each place past at most two white tokens, staying below its limit.

    A template writes a line end after the token that ends a turn; it belongs to that turn.

    Args:
        places: (M,) tokens before which documents may be cut.
        white: (T,) whether each token is white space.
        limits: (M,) a place stays below its own.
    """
    moved = places.copy()
    for _ in range(2):
        # A place at the very end has no token; its limit keeps it there.
        is_white = white[np.minimum(moved, len(white) - 1)]
        moved[is_white & (moved + 1 < limits)] += 1
    return moved
