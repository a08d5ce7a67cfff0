"""Reads from the vocabulary how many bytes of text each token stands for.

With this table a token's position in the text is a running sum, and the tokenizer need not report offsets.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .engines import AddedToken, ModelHead, TokenizerHead, steps, tokenizer_head, vocabulary

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
Dummy = Literal["none", "first", "each"]
"""Where the tokenizer adds a space that is not in the text: never, before the text, or before each stretch of text
between added tokens."""

_FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")
_KEEPS_TEXT = ("Split", "Digits", "Punctuation", "UnicodeScripts")
# Bytes that never occur in UTF-8, so a byte-level vocabulary may lack them.
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
_BYTE_TOKENS = {f"<0x{byte:02X}>" for byte in range(256)}


class _UnsoundError(Exception):
    """The table would be wrong for this tokenizer."""


@dataclass(frozen=True, slots=True, eq=False)
class ByteLengths:
    """The table, and when it may be used.

    The running sums are right if the text is `trusted` and the sum over all tokens equals the text's length in bytes
    (plus one for a dummy space before the text). `token_spans` checks that.
    """

    lengths: NDArray[np.uint16]
    """(V,) bytes of UTF-8 text for each token id."""
    added: NDArray[np.bool_]
    """(V,) whether each id is an added token."""
    dummy: Dummy
    form: Form | None
    """Unicode normalisation that the tokenizer applies; texts not in this form are not trusted."""
    space: str
    """The character for a space in the vocabulary (Metaspace), or "". Texts that contain it are not trusted."""

    @classmethod
    def from_json(cls, tokenizer_json: str) -> "ByteLengths | None":
        """Read the table from the content of a tokenizer.json: 0.1 s for 150,000 entries. None if it would be wrong for
        this tokenizer, so that every document needs the reference's offsets.

        Raises:
            TokenizerError: it is not the content of a tokenizer.json.
        """
        head = tokenizer_head(tokenizer_json)
        try:
            if head.model.type not in ("BPE", None):
                raise _UnsoundError(f"the model is {head.model.type}")
            if head.model.continuing_subword_prefix or head.model.end_of_word_suffix:
                raise _UnsoundError("its pieces carry marks that are not text")
            vocab = vocabulary(tokenizer_json)
            if isinstance(vocab, list):
                raise _UnsoundError("its pieces have scores, as those of Unigram")
            return _table(head, vocab)
        except _UnsoundError:
            return None

    def trusted(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Return (N,) whether a matching sum of bytes proves that no byte of the text was moved.

        A matching sum alone does not: a normaliser may shorten one place and lengthen another, or reorder combining
        marks, and there may be an unexpected second dummy space.
        """
        trusted = np.ones(len(texts), np.bool_)
        form, space = self.form, self.space
        if form is not None:
            changed = [i for i, t in enumerate(texts) if not t.isascii() and not unicodedata.is_normalized(form, t)]
            trusted[changed] = False
        if space:
            # A piece such as `<0x0A>` stands for one byte, but a vocabulary may also make it of these six characters.
            trusted[[i for i, t in enumerate(texts) if space in t or "<0x" in t]] = False
        if self.dummy == "each":
            trusted[[i for i, t in enumerate(texts) if t.startswith(" ")]] = False
        return trusted


def _form(found: list[dict[str, Any]]) -> Form | None:
    return next((form for form in _FORMS if len(found) == 1 and found[0].get("type") == form), None)


def _table(head: TokenizerHead, vocab: dict[str, int]) -> ByteLengths:
    pre = steps(head.pre_tokenizer, "pretokenizers")
    for step in pre:
        if "Removed" in str(step.get("behavior")):
            raise _UnsoundError(f"its pre-tokenizer's {step['type']} drops text")
    kinds = [step["type"] for step in pre]
    form = _form(normalisers := steps(head.normalizer, "normalizers"))
    dummy: Dummy
    if kinds and kinds[-1] == "ByteLevel" and all(kind in _KEEPS_TEXT for kind in kinds[:-1]):
        if normalisers and form is None:
            raise _UnsoundError(f"its normaliser ({_names(normalisers)}) changes the text")
        space = ""
        dummy = "each" if pre[-1].get("add_prefix_space", True) else "none"
        sizes = _byte_level(head.model, vocab, dummy)
    else:
        space, dummy, form = _space(head, pre, normalisers)
        sizes = _byte_fallback(head.model, vocab, space)
    if dummy != "none" and any(token.lstrip or token.rstrip for token in head.added_tokens):
        # The bytes that such a token absorbs could hide the byte of the added space.
        raise _UnsoundError("it adds a space and has added tokens that swallow white space")
    return _with_added(vocab, sizes, head.added_tokens, dummy, form, space)


def _byte_level(model: ModelHead, vocab: dict[str, int], dummy: Dummy) -> list[int]:
    """Every character of a piece stands for one byte."""
    covered = all(char in vocab for char in _alphabet())
    if not covered and (model.unk_token is not None or dummy != "none"):
        raise _UnsoundError("its vocabulary does not cover all bytes")
    return list(map(len, vocab))


def _byte_fallback(model: ModelHead, vocab: dict[str, int], space: str) -> list[int]:
    """A piece stands for its own UTF-8; its space mark and tokens such as `<0x0A>` stand for one byte each."""
    if not model.byte_fallback or not vocab.keys() >= _BYTE_TOKENS:
        raise _UnsoundError("it has neither a byte-level pre-tokenizer nor byte fallback")
    return [1 if piece in _BYTE_TOKENS else _own_size(piece, space) for piece in vocab]


def _own_size(piece: str, space: str) -> int:
    return len(piece) if piece.isascii() else len(piece.encode()) - (len(space.encode()) - 1) * piece.count(space)


def _space(
    head: TokenizerHead, pre: list[dict[str, Any]], normalisers: list[dict[str, Any]]
) -> tuple[str, Dummy, Form | None]:
    """How a SentencePiece-like tokenizer writes a space: by a Metaspace step, or by its normaliser."""
    kinds = [step["type"] for step in pre]
    if kinds == ["Metaspace"]:
        form = _form(normalisers)
        if normalisers and form is None:
            raise _UnsoundError(f"its normaliser ({_names(normalisers)}) changes the text")
        scheme = pre[0].get("prepend_scheme") or ("always" if pre[0].get("add_prefix_space", True) else "never")
        schemes: dict[str, Dummy] = {"never": "none", "first": "first", "always": "each"}
        if scheme not in schemes:
            raise _UnsoundError(f"its Metaspace has the unknown prepend_scheme {scheme!r}")
        return str(pre[0].get("replacement", "▁")), schemes[scheme], form
    if not all(kind in _KEEPS_TEXT for kind in kinds):
        raise _UnsoundError(f"its pre-tokenizer is {_names(pre)}")
    names = [step["type"] for step in normalisers]
    if names not in (["Replace"], ["Prepend", "Replace"]):
        raise _UnsoundError(f"its normaliser is {_names(normalisers)}")
    space = str(normalisers[-1].get("content"))
    if len(space) != 1 or normalisers[-1].get("pattern") != {"String": " "}:
        raise _UnsoundError("its normaliser replaces more than spaces")
    if names == ["Replace"]:
        return space, "none", None
    if normalisers[0].get("prepend") != space or any(token.normalized for token in head.added_tokens):
        raise _UnsoundError("its normaliser prepends something other than a space to a stretch of text")
    return space, "each", None


def _with_added(
    vocab: dict[str, int],
    sizes: list[int],
    tokens: list[AddedToken],
    dummy: Dummy,
    form: Form | None,
    space: str,
) -> ByteLengths:
    ids = np.fromiter(vocab.values(), np.int64, len(vocab))
    extent = max([int(ids.max(initial=-1)), *(token.id for token in tokens)]) + 1
    lengths = np.zeros(extent, np.int64)
    lengths[ids] = sizes
    added = np.zeros(extent, np.bool_)
    for token in tokens:
        # A normalised added token is searched in the normalised text; a trusted text is already normalised.
        content = unicodedata.normalize(form, token.content) if form and token.normalized else token.content
        size = len(content.encode())
        piece = vocab.get(token.content)
        own = size if piece is None else int(lengths[piece])
        lengths[token.id], added[token.id] = size, True
        if piece is None:
            continue
        # The library knows such a token by the piece's id, and the model may also produce it on its own.
        added[piece] = True
        if space and space in content:
            lengths[[token.id, piece]] = _own_size(content, space)
        elif own != size and (space or set(content) <= _alphabet()):
            raise _UnsoundError(f"{content!r} is an added token and a piece of another length")
        else:
            lengths[piece] = size
    if lengths.max(initial=0) > np.iinfo(np.uint16).max:
        raise _UnsoundError("it has a token of more than 65,535 bytes")
    return ByteLengths(lengths.astype(np.uint16), added, dummy, form, space)


def _alphabet() -> set[str]:
    """The characters that byte-level vocabularies use for the bytes of UTF-8 text."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    written = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return {char for byte, char in written.items() if byte not in _NEVER_IN_UTF8}


def _names(found: list[dict[str, Any]]) -> str:
    return ", ".join(str(step.get("type")) for step in found) or "missing"
