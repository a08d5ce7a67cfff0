"""Tokenizer engines: three libraries behind one interface. Each gives the same tokens, or is refused.

`tokenizers` is the reference. `fastokens` and `gigatoken` are 30 to 50 times faster, but young: here each is refused
for the configurations that it is known to encode wrongly, and `engine_check` compares it with the reference before it
is used.

The caller sets how many threads an engine uses, in the environment and before the first import:
FASTOKENS_BPE_THREADS, RAYON_NUM_THREADS, TOKENIZERS_PARALLELISM.
"""

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import TokenizerError
from ...schemas.ragged import lengths_of, offsets_of
from ...schemas.versions import version

NOT_INSTALLED = "is not installed"
"""What `make_engine` says about an engine whose package is missing."""
_NULL_JSON = b"null"


Read = TypeVar("Read")


class EngineTokens(NamedTuple):
    """A batch of N texts as tokens, without tokens that the tokenizer would add around a text."""

    ids: NDArray[np.int32]
    """(T,) the tokens of all texts, one text after another. May be read-only."""
    offsets: NDArray[np.int64]
    """(N + 1,) text i is `ids[offsets[i]:offsets[i + 1]]`."""


class Engine(Protocol):
    """Turns texts into tokens. Recognises added tokens in a text; adds, cuts and pads nothing."""

    name: str
    """`tokenizers`, `fastokens` or `gigatoken`."""
    version: str
    """The version of that package."""

    def encode(self, texts: Sequence[str]) -> EngineTokens:
        """Encode N texts. Texts with lone surrogates raise the library's own error; reject them earlier."""
        ...


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
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class TokenizerHead(msgspec.Struct):
    """A tokenizer.json without its vocabulary."""

    model: ModelHead
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    truncation: msgspec.Raw = msgspec.Raw(_NULL_JSON)
    padding: msgspec.Raw = msgspec.Raw(_NULL_JSON)
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


def vocabulary(tokenizer_json: str) -> dict[str, int] | list[tuple[str, float]]:
    """The pieces of the model with their ids; for Unigram, with their scores in the order of ids.

    Raises:
        TokenizerError: it is not the content of a tokenizer.json.
    """
    return _decoded(tokenizer_json, _Vocabulary).model.vocab


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


class TokenizersEngine:
    """The reference: Hugging Face `tokenizers`."""

    name = "tokenizers"

    def __init__(self, tokenizer_json: str) -> None:
        self.version = _package_version("tokenizers")
        self.tokenizer = reference_tokenizer(tokenizer_json)
        """Also used by `token_spans.reference_boundaries` for offsets."""

    def encode(self, texts: Sequence[str]) -> EngineTokens:
        """See Engine."""
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        offsets = offsets_of(lengths_of(encodings))
        flat = chain.from_iterable(encoding.ids for encoding in encodings)
        return EngineTokens(np.fromiter(flat, np.int32, int(offsets[-1])), offsets)


class FastokensEngine:
    """`fastokens`: byte-level BPE. Its cache of whole segments is off, because new text would not gain from it."""

    name = "fastokens"

    def __init__(self, tokenizer_json: str) -> None:
        self.version = _package_version("fastokens")
        fastokens_supported(tokenizer_json)
        module = _import("fastokens")
        try:
            self._tokenizer: Any = module.Tokenizer.from_json_str(joined_merges(_unlimited(tokenizer_json)))
        except Exception as error:
            raise _refusal(self.name, error) from error

    def encode(self, texts: Sequence[str]) -> EngineTokens:
        """See Engine. The arrays are views of fastokens' buffers."""
        ids, offsets = self._tokenizer.encode_batch_flat(list(texts))
        return EngineTokens(np.frombuffer(ids, "<u4").view(np.int32), np.frombuffer(offsets, "<u8").view(np.int64))


class GigatokenEngine:
    """`gigatoken`: BPE, also for SentencePiece-like vocabularies."""

    name = "gigatoken"

    def __init__(self, tokenizer_json: str) -> None:
        self.version = _package_version("gigatoken")
        gigatoken_supported(tokenizer_json)
        module = _import("gigatoken")
        try:
            self._tokenizer: Any = module.Tokenizer.from_json(_unlimited(tokenizer_json))
        except Exception as error:
            raise _refusal(self.name, error) from error

    def encode(self, texts: Sequence[str]) -> EngineTokens:
        """See Engine. The arrays are views of the awkward array's buffers."""
        if not texts:
            return EngineTokens(np.zeros(0, np.int32), np.zeros(1, np.int64))
        layout = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(layout.offsets.data).astype(np.int64, copy=False)
        content = np.asarray(layout.content.data).astype(np.uint32, copy=False)
        first, last = int(offsets[0]), int(offsets[-1])
        return EngineTokens(content[first:last].view(np.int32), offsets - first if first else offsets)


ENGINES: dict[str, type[TokenizersEngine] | type[FastokensEngine] | type[GigatokenEngine]] = {
    "fastokens": FastokensEngine,
    "gigatoken": GigatokenEngine,
    "tokenizers": TokenizersEngine,
}
"""Engines by name, in the order in which `auto` tries them."""


def make_engine(name: str, tokenizer_json: str) -> Engine:
    """Build the engine `name` from the content of a tokenizer.json, without truncation and padding.

    Raises:
        TokenizerError: there is no such engine, its package is missing, it refuses this tokenizer or is known to be
            wrong on it, or the tokenizer is random (BPE dropout).
    """
    if name not in ENGINES:
        raise TokenizerError(f"no tokenizer engine {name!r}; choose from auto, {', '.join(ENGINES)}")
    if tokenizer_head(tokenizer_json).model.dropout:
        raise TokenizerError(
            "the tokenizer has BPE dropout, so the same text gives other tokens every time; "
            'set "dropout" of the model in tokenizer.json to null'
        )
    return ENGINES[name](tokenizer_json)


load_engine = lru_cache(maxsize=1)(make_engine)
"""`make_engine`, with the last engine kept: the engine check, the encoder and the fork server use the same one."""


def guess_engine(requested: str, distrusted: Sequence[str]) -> tuple[str, str]:
    """The most likely choice of engine, and its version."""
    for name in ENGINES if requested == "auto" else [requested]:
        if name in distrusted:
            continue
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return "tokenizers", version("tokenizers")


@lru_cache(maxsize=1)
def reference_tokenizer(tokenizer_json: str) -> Any:
    """The `tokenizers.Tokenizer` itself, without truncation, padding and post-processor. Loaded once for all that use
    it in a process; do not change it.

    A post-processor adds tokens, which are not wanted here, and may exclude white space from offsets, which would move
    a boundary.

    Raises:
        TokenizerError: `tokenizers` cannot load it.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(tokenizer_json)
    except Exception as error:
        raise _refusal("tokenizers", error) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.post_processor = None
    return tokenizer


def fastokens_supported(tokenizer_json: str) -> None:
    """Refuse the configurations that fastokens accepts and is known to encode wrongly.

    Raises:
        TokenizerError: names the setting.
    """
    head = tokenizer_head(tokenizer_json)
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if getattr(head.model, key):
            raise _known_wrong("fastokens", f"a model with {key}")
    for step in steps(head.pre_tokenizer, "pretokenizers"):
        if step.get("add_prefix_space"):
            raise _known_wrong("fastokens", f"{step.get('type')} with add_prefix_space")


def gigatoken_supported(tokenizer_json: str) -> None:
    """Refuse the pre-tokenizers that gigatoken accepts but is known to encode wrongly, and untested ones.

    Supported are one ByteLevel, one Metaspace, or regular-expression Splits before a plain ByteLevel.

    Raises:
        TokenizerError: names the setting.
    """
    pre_tokenizer = tokenizer_head(tokenizer_json).pre_tokenizer
    parts = steps(pre_tokenizer, "pretokenizers")
    if pre_tokenizer is None or not parts:
        raise _known_wrong("gigatoken", "a tokenizer without a pre-tokenizer")
    if pre_tokenizer["type"] != "Sequence":
        if pre_tokenizer["type"] not in ("ByteLevel", "Metaspace"):
            raise _known_wrong("gigatoken", f"a {pre_tokenizer['type']} pre-tokenizer alone")
        return
    for part in parts[:-1]:
        if part["type"] != "Split" or "Regex" not in (part.get("pattern") or {}):
            raise _known_wrong("gigatoken", f"a {part['type']} step in the pre-tokenizer")
    last = parts[-1]
    if last["type"] != "ByteLevel":
        raise _known_wrong("gigatoken", f"a pre-tokenizer that ends in {last['type']}")
    for key in ("add_prefix_space", "use_regex"):
        if last.get(key, True):
            raise _known_wrong("gigatoken", f"{key} inside a Sequence")


def _unlimited(tokenizer_json: str) -> str:
    """The tokenizer.json without truncation and padding."""
    head = tokenizer_head(tokenizer_json)
    if bytes(head.truncation) == _NULL_JSON and bytes(head.padding) == _NULL_JSON:
        return tokenizer_json
    whole = msgspec.json.decode(tokenizer_json, type=dict[str, msgspec.Raw])
    whole["truncation"] = whole["padding"] = msgspec.Raw(_NULL_JSON)
    return msgspec.json.encode(whole).decode()


def joined_merges(tokenizer_json: str) -> str:
    """The tokenizer.json with its merges in the older of two forms, `"a b"` instead of `["a","b"]`, in which fastokens
    loads it in three quarters of the time. Unchanged where the older form cannot say the same, because a space is
    merged, and where the merges are not compact pairs.

    Works on the bytes, because to decode 300,000 strings takes most of the time that the older form saves.
    """
    whole = msgspec.json.decode(tokenizer_json, type=dict[str, msgspec.Raw])
    model = msgspec.json.decode(whole["model"], type=dict[str, msgspec.Raw])
    raw = bytes(model.get("merges", msgspec.Raw(_NULL_JSON)))
    # As long as before, but every quotation mark that is left begins or ends a string.
    text = np.frombuffer(raw.replace(rb"\\", b"__").replace(rb"\"", b"__"), np.uint8)
    quotes = np.flatnonzero(text == ord('"'))
    if not len(quotes) or len(quotes) % 4 or b" " in raw or rb"\u0020" in raw:
        return tokenizer_json
    left, left_end, right, right_end = quotes.reshape(-1, 4).T
    around = ((left - 1, "["), (left_end + 1, ","), (right_end + 1, "]"), (right_end[:-1] + 2, ","))
    if (
        any((text[at] != ord(mark)).any() for at, mark in around)
        or (right - left_end != 2).any()
        or (left[1:] - right_end[:-1] != 4).any()
        or (np.minimum(left_end - left, right_end - right) == 1).any()
        or (left[0], right_end[-1]) != (2, len(raw) - 3)
    ):
        return tokenizer_json
    joined = np.frombuffer(raw, np.uint8).copy()
    joined[left_end] = ord(" ")
    kept = np.ones(len(raw), np.bool_)
    for dropped in (left - 1, left_end + 1, right, right_end + 1):
        kept[dropped] = False
    model["merges"] = msgspec.Raw(joined[kept].tobytes())
    whole["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(whole).decode()


def _import(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise TokenizerError(
            f"the tokenizer engine {package} cannot be imported ({error}); pip install packtrain[fast]"
        ) from error


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise TokenizerError(f"the tokenizer engine {package} {NOT_INSTALLED}; pip install packtrain[fast]") from error


def _refusal(name: str, error: Exception) -> TokenizerError:
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return TokenizerError(f"{name} refuses this tokenizer: {first_line}")


def _known_wrong(name: str, what: str) -> TokenizerError:
    return TokenizerError(f"{name} is not trusted with {what}")
