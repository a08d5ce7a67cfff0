"""Text as normalised words, as bytes that numpy can hash.

1. Unicode NFKC, then case folding, then NFKC again, because folding can undo it.
2. A word is a longest run of letters, digits and combining marks. Every other character separates words; format
   characters, such as soft hyphens, vanish. In scripts that write no spaces between words, each character is a word.

ASCII text needs no Python code for each character: one table translates its bytes.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import lengths_of, offsets_of

SPACE = 32
_TABLE = bytes(
    ord(chr(byte).lower()) if chr(byte).isalnum() and byte < 128 else (byte if byte >= 128 else SPACE)
    for byte in range(256)
)
IS_WORD = np.frombuffer(_TABLE, np.uint8) != SPACE
"""(256,) whether each byte of UTF-8 belongs to a word, after normalising."""
_SEPARATES, _WORD, _ALONE, _VANISHES = range(4)
_KNOWN = 0x32400
"""Characters from here on are private or unassigned, apart from marks and tags that select a variant."""
_UNSPACED = (
    (0x0E00, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x31F0, 0x31FF),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF),
)  # fmt: skip
"""Thai, Lao, Tibetan, Burmese, Khmer, kana and ideographs."""


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The words of S texts, end to end."""

    data: NDArray[np.uint8]
    """(B,) all words in UTF-8, with a space after each."""
    begins: NDArray[np.int64]
    """(W,) where each word begins in `data`."""
    ends: NDArray[np.int64]
    """(W,) where each word ends: the place of its space."""
    texts: NDArray[np.int64]
    """(S + 1,) the first word of each text, then W."""

    def __len__(self) -> int:
        return len(self.begins)

    def bytes_of(self, first: int, count: int) -> bytes:
        """The words from `first` on, joined by single spaces."""
        return self.data[self.begins[first] : self.ends[first + count - 1]].tobytes() if count else b""

    @property
    def owners(self) -> NDArray[np.int64]:
        """(W,) the text of each word."""
        return np.repeat(np.arange(len(self.texts) - 1), np.diff(self.texts))


def words_of(texts: Sequence[str]) -> Words:
    """The words of some texts."""
    encoded = [(text if text.isascii() else normalised(text)).encode("utf-8", "replace") for text in texts]
    raw = np.frombuffer((b"\n".join(encoded) + b"\n").translate(_TABLE), np.uint8)
    gap = raw == SPACE
    kept = ~gap
    kept[1:] |= kept[:-1]  # the first separator after a word stays, as its space
    data = raw[kept]
    ends = np.flatnonzero(data == SPACE)
    begins = np.zeros_like(ends)
    begins[1:] = ends[:-1] + 1
    bounds = offsets_of(lengths_of(encoded) + 1)
    return Words(data, begins, ends, np.searchsorted(np.flatnonzero(gap & kept), bounds))


def normalised(text: str) -> str:
    """A text whose words are separated by ASCII characters that are not letters or digits."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    if folded.isascii():
        return folded
    form = "utf-16-le"
    raw = folded.encode(form, "replace")
    codes: NDArray[np.uint16 | np.uint32] = np.frombuffer(raw, np.uint16)
    if len(codes) != len(folded):  # pairs of surrogates, which stand for one character
        form = "utf-32-le"
        codes = np.frombuffer(folded.encode(form, "replace"), np.uint32)
    kinds = _kinds().take(codes)
    codes = np.where(kinds == _SEPARATES, codes.dtype.type(SPACE), codes)
    if (kinds >= _ALONE).any():
        widths = np.array([1, 1, 3, 0])[kinds]
        alone = offsets_of(widths)[np.flatnonzero(kinds == _ALONE)]
        codes = np.repeat(codes, widths)
        codes[alone] = codes[alone + 2] = SPACE
    return codes.tobytes().decode(form)


@lru_cache(maxsize=1)
def _kinds() -> NDArray[np.uint8]:
    """(0x110000,) what each character does after normalising."""
    out = np.full(0x110000, _SEPARATES, np.uint8)
    for code in (*range(_KNOWN), *range(0xE0000, 0xE0200)):
        category = unicodedata.category(chr(code))
        if category[0] in "LMN":
            out[code] = _WORD
        elif category == "Cf" and code != 0x200B:  # a zero-width space does separate
            out[code] = _VANISHES
    for first, last in _UNSPACED:
        here = out[first : last + 1]
        here[here == _WORD] = _ALONE
    # One rule for all of ASCII, whether or not a text has other characters.
    for code in range(128):
        out[code] = _WORD if chr(code).isalnum() else _SEPARATES
    return out


def unicode_version() -> str:
    """The version of the tables that normalising uses; it may change what a word is."""
    return unicodedata.unidata_version
