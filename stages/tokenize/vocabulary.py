"""What a tokenizer.json says without a library: its pieces, added tokens and steps, and how many bytes of text each
token stands for. With these a token's position is a running sum, and the tokenizer need not report offsets.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import TokenizerError

Read = TypeVar("Read")
_KEEPS_TEXT = ("Split", "Digits", "Punctuation", "UnicodeScripts")
# Bytes that never occur in UTF-8, so a byte-level vocabulary may lack them.
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
_BYTE_TOKENS = {f"<0x{byte:02X}>" for byte in range(256)}


@dataclass(frozen=True, slots=True)
class SpecialTokenAffixes:
    """The tokens that the tokenizer adds around a plain text. Templates write their own, so chats get none."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    prefix_text: str = ""
    """The text of `prefix`; a text that already begins with it gets no prefix."""
    suffix_text: str = ""
    eos: str = ""
    """A token appended to a text or completion that does not end with it."""


class ModelHead(msgspec.Struct):
    """The fields of a tokenizer's `model` that decide support; the vocabulary is not parsed."""

    type: str | None = None
    dropout: float | None = None
    unk_token: str | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    byte_fallback: bool = False


class AddedToken(msgspec.Struct):
    """One entry of `added_tokens`."""

    id: int
    content: str
    normalized: bool = False
    special: bool = False
    lstrip: bool = False
    """Whether it swallows the white space before it."""
    rstrip: bool = False
    """Whether it swallows the white space after it."""


class TokenizerHead(msgspec.Struct):
    """A tokenizer.json without its vocabulary."""

    model: ModelHead
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    added_tokens: list[AddedToken] = msgspec.field(default_factory=list)


@lru_cache(maxsize=4)
def tokenizer_head(tokenizer_json: str) -> TokenizerHead:
    """A tokenizer.json without its vocabulary, in about 10 ms for 150,000 entries.

    Raises:
        TokenizerError: it is not the content of a tokenizer.json.
    """
    return _decoded(tokenizer_json, TokenizerHead)


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _Vocabulary(msgspec.Struct):
    model: _Model


def vocabulary(tokenizer_json: str) -> dict[str, int]:
    """The pieces of the model with their ids; those of Unigram stand in the order of ids.

    Raises:
        TokenizerError: it is not the content of a tokenizer.json.
    """
    found = _decoded(tokenizer_json, _Vocabulary).model.vocab
    return found if isinstance(found, dict) else {piece: index for index, (piece, _) in enumerate(found)}


def id_count(pieces: Mapping[str, int], added: Iterable[AddedToken]) -> int:
    """Number of token ids: one more than the highest."""
    return max([max(pieces.values(), default=-1), *(token.id for token in added)]) + 1


def _decoded(tokenizer_json: str, kind: type[Read]) -> Read:
    try:
        return msgspec.json.decode(tokenizer_json, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise TokenizerError(
            f"this is not the content of a tokenizer.json: {error}; save the tokenizer again with save_pretrained"
        ) from error


def steps(component: dict[str, Any] | None, inside: str) -> list[dict[str, Any]]:
    """Return a normaliser or pre-tokenizer as a flat list of steps; `inside` is the key of a Sequence's steps."""
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [step for child in component.get(inside) or [] for step in steps(child, inside)]
    return [component]


@dataclass(frozen=True, slots=True, eq=False)
class ByteLengths:
    """The table. No token stands for fewer bytes than it says. So if the lengths of a text's tokens add up to the
    length of the text, each of them is right; `token_spans` checks that.
    """

    lengths: NDArray[np.uint16]
    """(V,) bytes of UTF-8 text for each token id."""
    nfc: bool
    """Whether the tokenizer brings texts into the Unicode form NFC first, whose bytes the lengths count."""

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
    ) -> "ByteLengths":
        """The table, with the lengths of added tokens: the smallest if one id can mean two texts.

        Args:
            sizes: of the pieces of `vocab`.
            space: the character that stands for a space in the vocabulary, as in Gemma's, or "".
        """
        added = tokenizer_head(tokenizer_json).added_tokens
        lengths = np.zeros(id_count(vocab, added), np.int64)
        lengths[np.fromiter(vocab.values(), np.int64, len(vocab))] = sizes
        for token in added:
            # A normalised added token is searched in the normalised text.
            content = unicodedata.normalize("NFC", token.content) if nfc and token.normalized else token.content
            size = _size(content, space) if space else len(content.encode())
            # The library knows such a token by the id of a piece, if there is one, and the model may also produce it.
            piece = vocab.get(token.content, token.id)
            if token.content in vocab and (space or set(content) <= _alphabet()):
                size = min(size, int(lengths[piece]))
            lengths[[token.id, piece]] = size
        return cls(np.minimum(lengths, np.iinfo(np.uint16).max).astype(np.uint16), nfc)


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
