"""Reads from the vocabulary how many bytes of text each token stands for.

With this table a token's position in the text is a running sum, and the tokenizer need not report offsets.
"""

import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .vocabulary import ModelHead, id_count, steps, tokenizer_head, vocabulary

_KEEPS_TEXT = ("Split", "Digits", "Punctuation", "UnicodeScripts")
# Bytes that never occur in UTF-8, so a byte-level vocabulary may lack them.
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
_BYTE_TOKENS = {f"<0x{byte:02X}>" for byte in range(256)}


@dataclass(frozen=True, slots=True, eq=False)
class ByteLengths:
    """The table. No token stands for fewer bytes than it says. So if the lengths of a text's tokens add up to the
    length of the text, after normalisation, each of them is right; `token_spans` checks that.
    """

    lengths: NDArray[np.uint16]
    """(V,) bytes of UTF-8 text for each token id."""
    nfc: bool
    """Whether the tokenizer brings texts into the Unicode form NFC first."""

    @classmethod
    def from_json(cls, tokenizer_json: str) -> "ByteLengths | None":
        """Read the table from the content of a tokenizer.json: 0.1 s for 150,000 entries. None if it would be wrong for
        this tokenizer, or if that is not known, so that every document needs the reference's offsets.

        Raises:
            TokenizerError: it is not the content of a tokenizer.json.
        """
        head = tokenizer_head(tokenizer_json)
        model, before = head.model, steps(head.normalizer, "normalizers")
        pre = steps(head.pre_tokenizer, "pretokenizers")
        if model.type == "Unigram" or model.continuing_subword_prefix or model.end_of_word_suffix:
            return None
        # A space that the tokenizer puts before a text is in no table.
        byte_level = bool(pre) and pre[-1]["type"] == "ByteLevel" and not pre[-1].get("add_prefix_space", True)
        others = pre[:-1] if byte_level else pre
        if any(one["type"] not in _KEEPS_TEXT or "Removed" in str(one.get("behavior")) for one in others):
            return None
        vocab = vocabulary(tokenizer_json)
        if byte_level:
            nfc = [one.get("type") for one in before] == ["NFC"]
            if (before and not nfc) or (model.unk_token is not None and not vocab.keys() >= _alphabet()):
                return None
            return cls._of(tokenizer_json, vocab, list(map(len, vocab)), nfc=nfc)
        if (space := _space(model, before)) is None or not vocab.keys() >= _BYTE_TOKENS:
            return None
        sizes = [1 if piece in _BYTE_TOKENS else _size(piece, space) for piece in vocab]
        return cls._of(tokenizer_json, vocab, sizes, space=space)

    @classmethod
    def _of(
        cls, tokenizer_json: str, vocab: dict[str, int], sizes: list[int], *, nfc: bool = False, space: str = ""
    ) -> "ByteLengths | None":
        """The table, with the lengths of added tokens; None if one of them is ambiguous, or too long.

        Args:
            sizes: of the pieces of `vocab`.
            space: the character that stands for a space in the vocabulary, as in Gemma's, or "".
        """
        lengths = np.zeros(id_count(tokenizer_json), np.int64)
        lengths[np.fromiter(vocab.values(), np.int64, len(vocab))] = sizes
        for token in tokenizer_head(tokenizer_json).added_tokens:
            # A normalised added token is searched in the normalised text.
            content = unicodedata.normalize("NFC", token.content) if nfc and token.normalized else token.content
            size = len(content.encode())
            # The library knows such a token by the id of a piece, if there is one, and the model may also produce it.
            piece = vocab.get(token.content, token.id)
            own = int(lengths[piece]) if token.content in vocab else size
            if space and space in content and (token.content in vocab or token.normalized):
                size = _size(content, space)
            elif own != size and (space or set(content) <= _alphabet()):
                return None
            lengths[[token.id, piece]] = size
        if lengths.max(initial=0) > np.iinfo(np.uint16).max:
            return None
        return cls(lengths.astype(np.uint16), nfc)


def _space(model: ModelHead, normalisers: list[dict[str, Any]]) -> str | None:
    """The one character that a normaliser writes for a space, before byte fallback; None if it does anything else."""
    match normalisers:
        case [{"type": "Replace", "pattern": {"String": " "}, "content": str(space)}] if len(space) == 1:
            return space if model.byte_fallback else None
    return None


def _size(text: str, space: str) -> int:
    """Bytes of a piece's text, in which a space is one byte."""
    return len(text) if text.isascii() else len(text.encode()) - (len(space.encode()) - 1) * text.count(space)


def _alphabet() -> set[str]:
    """The characters that byte-level vocabularies use for the bytes of UTF-8 text."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    written = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return {char for byte, char in written.items() if byte not in _NEVER_IN_UTF8}
