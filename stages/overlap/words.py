"""Text as normalised words, and the words as numbers that numpy can compare.

1. HTML tags separate words; entities such as `&nbsp;` are the characters that they stand for.
2. Unicode NFKC, then case folding, then NFKC again, because folding can undo it.
3. A word is a longest run of letters, digits and combining marks. Every other character separates words; format
   characters, such as soft hyphens, vanish. In scripts that write no spaces between words, each character is a word.

ASCII text needs no Python code for each character: one table translates its bytes. A word is compared by a hash of 64
bits; of a longer word than 64 bytes, of its beginning and its length.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import unescape

import numpy as np
from numpy.typing import NDArray

from ...schemas.fingerprint import GOLDEN, mix
from ...schemas.ragged import lengths_of, offsets_of

_NAMES = (
    "a|abbr|article|b|blockquote|body|br|center|code|dd|del|div|dl|dt|em|figure|font|h[1-6]|head|hr|html|i|img|ins|kbd|"
    "li|mark|math|ol|p|pre|q|s|samp|section|small|span|strike|strong|sub|sup|table|tbody|td|th|thead|tr|tt|u|ul|var"
)
_ATTRIBUTE = r"""\s+[a-z][\w:-]*\s*=\s*(?:"[^"<>]*"|'[^'<>]*'|[\w./#:%-]+)"""
_TAGS = re.compile(rf"<(?:/(?:{_NAMES})|(?:{_NAMES})(?:{_ATTRIBUTE})*\s*/?)\s*>", re.IGNORECASE)
"""Known elements with complete attributes: `i<n && j>0` and `vector<int>` are no tags."""
_ENTITIES = re.compile(r"&(?:\#[0-9]{1,7}|\#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,31});", re.IGNORECASE)
_ALONE = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U000323af]"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, kana and ideographs."""
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_ASCII = bytes(byte if byte >= 128 else ord(chr(byte).lower()) if chr(byte).isalnum() else 32 for byte in range(256))


class _Kinds(dict[int, str]):
    """What each character becomes after normalising: itself, itself apart, a space or nothing."""

    def __missing__(self, code: int) -> str:
        char, category = chr(code), unicodedata.category(chr(code))
        if category[0] in "LMN":
            self[code] = f" {char} " if _ALONE.match(char) else char
        else:  # a zero-width space does separate
            self[code] = "" if category == "Cf" and code != 0x200B else " "
        return self[code]


_KINDS = _Kinds()
_SPACE = 32
_LONG = 64
_MASKS = np.array([(1 << (8 * count)) - 1 for count in range(9)], np.uint64)
"""(9,) by which the first bytes of eight are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The W words of S texts, end to end."""

    data: NDArray[np.uint8]
    """(B,) all words in UTF-8, with spaces around each."""
    begins: NDArray[np.int64]
    """(W,) where each word begins in `data`."""
    hashes: NDArray[np.uint64]
    """(W,)"""
    starts: NDArray[np.int64]
    """(S + 1,) the first word of each text, then W."""

    def said(self, first: int, count: int) -> str:
        """Some words, joined by single spaces."""
        begins = self.begins[first : first + count + 1].tolist()
        end = begins[count] if len(begins) > count else len(self.data)
        return b" ".join(self.data[begins[0] : end].tobytes().split()).decode()


def words_of(texts: Sequence[str]) -> Words:
    """The words of some texts."""
    spaced = [_normalised(text).translate(_ASCII) for text in texts]
    data = np.frombuffer(b" ".join([b"", *spaced, b" " * _LONG]), np.uint8)
    space = data == _SPACE
    edges = np.flatnonzero(space[1:] != space[:-1]) + 1
    begins, ends = edges[::2], edges[1::2]
    starts = np.searchsorted(begins, offsets_of(lengths_of(spaced) + 1))
    return Words(data, begins, _hashes(data, begins, ends - begins), starts)


def _hashes(data: NDArray[np.uint8], begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """(W,) hashes of words, eight bytes at a time: those of up to eight bytes differ. There are `_LONG` bytes after the
    last word.
    """
    eights = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))  # from each byte on
    out = (eights[begins] & _MASKS[np.minimum(sizes, 8)]) * GOLDEN
    out[sizes > _LONG] += sizes[sizes > _LONG].astype(np.uint64)
    for done in range(8, _LONG, 8):
        more = np.flatnonzero(sizes > done)
        if not len(more):
            break
        rest = eights[begins[more] + done] & _MASKS[np.minimum(sizes[more] - done, 8)]
        out[more] = mix(out[more] ^ rest) * GOLDEN
    return out


def _normalised(text: str) -> bytes:
    """A text in UTF-8 whose words are separated by ASCII characters that are not letters or digits."""
    if "<" in text:
        text = _TAGS.sub(" ", text)
    if "&" in text:
        text = _ENTITIES.sub(lambda match: unescape(match[0]), text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.casefold())  # joins marks with the ASCII letters before them
        text = _BEYOND_ASCII.sub(lambda match: _folded(match[0]), text)
    return text.encode()


@lru_cache(maxsize=1 << 14)
def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).translate(_KINDS)
