"""What a tokenizer.json says without a library: its pieces, its added tokens and its steps."""

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from ...schemas.errors import TokenizerError

Read = TypeVar("Read")


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


@lru_cache(maxsize=4)
def id_count(tokenizer_json: str) -> int:
    """Number of token ids: one more than the highest, of pieces and added tokens.

    Raises:
        TokenizerError: it is not the content of a tokenizer.json.
    """
    ids = (token.id for token in tokenizer_head(tokenizer_json).added_tokens)
    return max([max(vocabulary(tokenizer_json).values(), default=-1), *ids]) + 1


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
