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

Decoded = TypeVar("Decoded")
_TEXT_KEEPING_STEPS = ("Split", "Digits", "Punctuation", "UnicodeScripts")
"""Types of pre-tokenizers that only divide a text, unless they remove what they divide it at."""
# Bytes that never occur in UTF-8, so a byte-level vocabulary may lack them.
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
_BYTE_TOKENS = {f"<0x{byte:02X}>" for byte in range(256)}


@dataclass(frozen=True, slots=True)
class SpecialTokenAffixes:
    """The tokens that the tokenizer adds around a plain text. Templates write their own, so chats get none."""

    prefix: tuple[int, ...] = ()
    """Ids before the text, such as the beginning-of-sequence token's."""
    suffix: tuple[int, ...] = ()
    """Ids after it."""
    prefix_text: str = ""
    """The text of `prefix`: a text that already begins with it gets no prefix. If it is "", every text gets one."""
    suffix_text: str = ""
    """The text of `suffix`: a text that already ends with it gets no suffix. If it is "", every text gets one."""
    eos: str = ""
    """A token appended to a text or completion that does not end with it; "" appends none."""


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
    return _decode(tokenizer_json, TokenizerHead)


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _Vocabulary(msgspec.Struct):
    model: _Model


def vocabulary(tokenizer_json: str) -> dict[str, int]:
    """Piece → id, of the model without added tokens.

    Raises:
        TokenizerError: it is not the content of a tokenizer.json.
    """
    # BPE has {piece: id}, Unigram [[piece, score], ...] in the order of ids.
    pieces = _decode(tokenizer_json, _Vocabulary).model.vocab
    return pieces if isinstance(pieces, dict) else {piece: index for index, (piece, _) in enumerate(pieces)}


def id_count(pieces: Mapping[str, int], added: Iterable[AddedToken]) -> int:
    """Number of token ids: one more than the highest."""
    return max([max(pieces.values(), default=-1), *(token.id for token in added)]) + 1


def _decode(tokenizer_json: str, kind: type[Decoded]) -> Decoded:
    """The content of a tokenizer.json, as far as `kind` has fields for it.

    Raises:
        TokenizerError: it is not the content of a tokenizer.json.
    """
    try:
        return msgspec.json.decode(tokenizer_json, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise TokenizerError(
            f"this is not the content of a tokenizer.json: {error}; save the tokenizer again with save_pretrained"
        ) from error


def steps(component: dict[str, Any] | None, sequence_key: str) -> list[dict[str, Any]]:
    """A normaliser or pre-tokenizer as a flat list of steps.

    Args:
        sequence_key: the key under which one of the type Sequence has its steps.
    """
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [step for child in component.get(sequence_key) or [] for step in steps(child, sequence_key)]
    return [component]


@dataclass(frozen=True, slots=True, eq=False)
class ByteLengths:
    """How many bytes of text each token stands for. No token stands for fewer bytes than this says. So if the lengths
    of a text's tokens add up to the length of the text, each of them is right; `token_boundaries` checks that.
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
        model = head.model
        if model.type == "Unigram" or model.continuing_subword_prefix or model.end_of_word_suffix:
            return None
        normalizers = steps(head.normalizer, "normalizers")
        pre_tokenizers = steps(head.pre_tokenizer, "pretokenizers")
        last_step = pre_tokenizers[-1] if pre_tokenizers else {"type": None}
        # ByteLevel may put a space before a text, which is in no table. Such a step is not byte-level here. It stays
        # among the steps below, and there it counts as one that changes the text, so that the result is None.
        is_byte_level = last_step["type"] == "ByteLevel" and not last_step.get("add_prefix_space", True)
        dividing_steps = pre_tokenizers[:-1] if is_byte_level else pre_tokenizers
        if not all(map(_keeps_text, dividing_steps)):
            return None
        if is_byte_level:
            return cls._of_byte_level(tokenizer_json, model, normalizers)
        return cls._of_byte_fallback(tokenizer_json, model, normalizers)

    @classmethod
    def _of_byte_level(
        cls, tokenizer_json: str, model: ModelHead, normalizers: list[dict[str, Any]]
    ) -> "ByteLengths | None":
        """The table of a byte-level vocabulary like GPT-2's, whose pieces have one character for each byte; None if the
        normaliser changes texts other than to NFC, or if bytes may become unknown tokens.
        """
        is_nfc = [step.get("type") for step in normalizers] == ["NFC"]
        if normalizers and not is_nfc:
            return None
        pieces = vocabulary(tokenizer_json)
        # With an unknown token, a byte without a piece would become a token of unknown length.
        if model.unk_token is not None and not pieces.keys() >= _byte_level_alphabet():
            return None
        return cls._with_added_tokens(tokenizer_json, pieces, list(map(len, pieces)), nfc=is_nfc)

    @classmethod
    def _of_byte_fallback(
        cls, tokenizer_json: str, model: ModelHead, normalizers: list[dict[str, Any]]
    ) -> "ByteLengths | None":
        """The table of a vocabulary like Gemma's: its pieces are texts, with a character for the space, and single
        bytes for what no piece has. None if the normaliser does more than write that character, or if bytes are
        missing.
        """
        space = _space_character(model, normalizers)
        pieces = vocabulary(tokenizer_json)
        if space is None or not pieces.keys() >= _BYTE_TOKENS:
            return None
        sizes = [1 if piece in _BYTE_TOKENS else _byte_count(piece, space) for piece in pieces]
        return cls._with_added_tokens(tokenizer_json, pieces, sizes, space=space)

    @classmethod
    def _with_added_tokens(
        cls, tokenizer_json: str, pieces: dict[str, int], sizes: list[int], *, nfc: bool = False, space: str = ""
    ) -> "ByteLengths":
        """The table, with the lengths of added tokens: the smallest if one id can mean two texts.

        Args:
            sizes: bytes of each of `pieces`.
            space: the character that stands for a space in the vocabulary, as in Gemma's, or "".
        """
        added_tokens = tokenizer_head(tokenizer_json).added_tokens
        lengths = np.zeros(id_count(pieces, added_tokens), np.int64)
        lengths[np.fromiter(pieces.values(), np.int64, len(pieces))] = sizes
        for token in added_tokens:
            # A normalised added token is searched in the normalised text.
            content = unicodedata.normalize("NFC", token.content) if nfc and token.normalized else token.content
            size = _byte_count(content, space) if space else len(content.encode())
            # If the content is also a piece of the model, the library gives the added token that piece's id, so that
            # one id has two lengths if the model can produce the piece. In a byte-level vocabulary it can only if all
            # characters of the piece stand for bytes. The smaller length is safe: a sum that is too small makes its
            # document need the reference.
            piece_id = pieces.get(token.content, token.id)  # the token's own id where its content is no piece
            if token.content in pieces and (space or set(content) <= _byte_level_alphabet()):
                size = min(size, int(lengths[piece_id]))
            lengths[[token.id, piece_id]] = size
        # A longer token than the type can hold only makes its documents need the reference's offsets.
        return cls(np.minimum(lengths, np.iinfo(np.uint16).max).astype(np.uint16), nfc)


def _keeps_text(step: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer only divides a text."""
    return step["type"] in _TEXT_KEEPING_STEPS and "Removed" not in str(step.get("behavior"))


def _space_character(model: ModelHead, normalizers: list[dict[str, Any]]) -> str | None:
    """The one character that the normaliser writes for a space; None if it does anything else, or if the model has no
    byte fallback.
    """
    match normalizers:
        case [{"type": "Replace", "pattern": {"String": " "}, "content": str(space)}] if len(space) == 1:
            return space if model.byte_fallback else None
    return None


def _byte_count(text: str, space: str) -> int:
    """Bytes of a piece's text, in which a space is one byte: 3 of "▁ab", although "▁" itself has 3 bytes of UTF-8.

    Args:
        space: the character that stands for a space in the vocabulary.
    """
    if text.isascii():
        return len(text)
    return len(text.encode()) - (len(space.encode()) - 1) * text.count(space)


def _byte_level_alphabet() -> set[str]:
    """The characters that byte-level vocabularies use for the bytes of UTF-8 text.

    A printable byte is written as itself, any other as the next character from U+0100 on: "A" as "A", " " (the 33rd
    byte that is not printable) as "Ġ", U+0120.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in set(printable)]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + index) for index, byte in enumerate(unprintable)}
    return {character for byte, character in characters.items() if byte not in _NEVER_IN_UTF8}
