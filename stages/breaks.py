"""Where a text may be cut: which tokens end a line or a paragraph, read off the vocabulary.

The text itself is gone when a document is cut; its tokens say enough.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..schemas.errors import TokenizerError
from .engines import steps, tokenizer_head

LINE = 1
"""Bit of a token after whose last line end only spaces stand."""
BLANK = 2
"""Bit of such a token that holds a blank line: two line ends with nothing but spaces between them."""
WHITE = 4
"""Bit of a token of white space alone."""

_BYTE_LEVEL = str.maketrans({"Ċ": "\n", "č": "\r", "Ġ": " ", "ĉ": "\t"})
_BYTE_PIECES = {"<0x0A>": "\n", "<0x0D>": "\r", "<0x20>": " ", "<0x09>": "\t"}
_SPACES = " \t\f\v"
_BYTE_LEVEL_ENDS = frozenset("ĊčĠĉ")
_TEXT_ENDS = frozenset(">▁ \n\r\t\f\v")


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _Vocabulary(msgspec.Struct):
    model: _Model


@dataclass(frozen=True, slots=True, eq=False)
class Breaks:
    """The table, and how it is applied."""

    bits: NDArray[np.uint8]
    """(V + 1,) bits of each token; the last one, 0, stands for ids that the vocabulary does not have."""

    @classmethod
    def from_json(cls, tokenizer_json: str) -> "Breaks":
        """Read the table off the content of a tokenizer.json.

        Raises:
            TokenizerError: it is not the content of a tokenizer.json.
        """
        head = tokenizer_head(tokenizer_json)
        try:
            vocab = msgspec.json.decode(tokenizer_json, type=_Vocabulary).model.vocab
        except msgspec.MsgspecError as error:
            raise TokenizerError(
                f"this is not the content of a tokenizer.json: {error}; save the tokenizer anew with save_pretrained"
            ) from error
        pieces = vocab if isinstance(vocab, dict) else {piece: index for index, (piece, _) in enumerate(vocab)}
        byte_level = any(step.get("type") == "ByteLevel" for step in steps(head.pre_tokenizer, "pretokenizers"))
        extent = max([max(pieces.values(), default=-1), *(token.id for token in head.added_tokens)]) + 1
        bits = np.zeros(extent + 1, dtype=np.uint8)
        # Only what ends in white space has bits, and that is one piece in a hundred.
        ends = _BYTE_LEVEL_ENDS if byte_level else _TEXT_ENDS
        for piece, index in pieces.items():
            if piece[-1:] not in ends:
                continue
            text = piece.translate(_BYTE_LEVEL) if byte_level else _BYTE_PIECES.get(piece, piece).replace("▁", " ")
            bits[index] = token_bits(text)
        for token in head.added_tokens:
            bits[token.id] = token_bits(token.content)
        return cls(bits)

    def of(self, tokens: NDArray[np.int32]) -> NDArray[np.uint8]:
        """(T,) the bits of each token; ids are 0 or more."""
        return np.take(self.bits, tokens, mode="clip")


def line_places(bits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places to cut before: after blank lines, and after all line ends. Both rise; 0 and T are not among them.

    Of several line ends in a row only the last one counts, so that no piece begins with an empty line.

    Args:
        bits: (T,) of the tokens, from `Breaks.of`.
    """
    # LINE is the lowest bit; as booleans, they are found five times as fast.
    found = np.flatnonzero((bits[:-1] & LINE).view(np.bool_))
    empty = LINE | WHITE
    found = found[bits[found + 1] & empty != empty]
    own = bits[found]
    second = (own & empty == empty) & (found > 0) & (bits[found - 1] & LINE > 0)
    return found[(own & BLANK > 0) | second] + 1, found + 1


def token_bits(text: str) -> int:
    """The bits of a token by its text."""
    white = WHITE if text and text.isspace() else 0
    trimmed = text.rstrip(_SPACES)
    if not trimmed.endswith(("\n", "\r")):
        return white
    lines = trimmed.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    # What stands before the first line end is the rest of a line that an earlier token began.
    blank = any(not line.strip(_SPACES) for line in lines[1:])
    return white | LINE | (BLANK if blank else 0)


def skip_white(
    places: NDArray[np.int64], white: NDArray[np.bool_], limits: NDArray[np.int64], most: int = 2
) -> NDArray[np.int64]:
    """Each place, moved on over white tokens, at most so many, and never to its limit.

    A template writes a line end behind the token that ends a turn. It belongs to the turn before.
    """
    out = places.copy()
    for _ in range(most):
        moves = white[np.minimum(out, len(white) - 1)] & (out + 1 < limits)
        out[moves] += 1
    return out
