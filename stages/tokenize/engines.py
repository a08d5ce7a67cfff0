"""Tokenizer engines: two libraries behind one interface. Both give the same tokens, or the fast one is refused.

`tokenizers` is the reference. `fastokens` is 30 to 50 times faster, but young: `engine_check` compares it with the
reference before it is used.

The caller sets how many threads an engine uses, in the environment and before the first import; see
`schemas.tables.engines`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import TokenizerError
from ...schemas.fingerprint import version
from ...schemas.ragged import lengths_of, offsets_of
from ...schemas.tables.engines import AUTO, REFERENCE, TOKENIZER_ENGINES
from .vocabulary import ByteLengths, tokenizer_head


class EngineTokens(NamedTuple):
    """A batch of N texts as tokens, without tokens that the tokenizer would add around a text."""

    ids: NDArray[np.int32]
    """(T,) the tokens of all texts, one text after another. May be read-only."""
    offsets: NDArray[np.int64]
    """(N + 1,) text i is `ids[offsets[i]:offsets[i + 1]]`."""
    encodings: Sequence[Any] = ()
    """(N,) the `Encoding` of each text, with the places of its tokens; empty from any engine but the reference."""

    def ids_of(self, index: int) -> NDArray[np.int32]:
        """The tokens of a text."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def per_text(self) -> list[NDArray[np.int32]]:
        """The tokens of each text."""
        # As a list: a loop over an array makes an object of NumPy for each number.
        offsets = self.offsets.tolist()
        return [self.ids[begin:end] for begin, end in pairwise(offsets)]


class TokenizersEngine:
    """The reference: Hugging Face `tokenizers`. It says itself where its tokens lie."""

    name = REFERENCE
    byte_lengths: ByteLengths | None = None
    """None: its encodings say where its tokens lie."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer = reference_tokenizer(tokenizer_json)

    def encode(self, texts: Sequence[str]) -> EngineTokens:
        """Encode N texts. Texts with lone surrogates raise the library's own error; reject them earlier."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        offsets = offsets_of(lengths_of(encodings))
        all_ids = chain.from_iterable(encoding.ids for encoding in encodings)
        return EngineTokens(np.fromiter(all_ids, np.int32, int(offsets[-1])), offsets, encodings)


class FastokensEngine:
    """`fastokens`: BPE. Its cache of whole segments is off, because new text would not gain from it."""

    name = "fastokens"

    def __init__(self, tokenizer_json: str) -> None:
        # The table is read while fastokens loads, which takes a second without Python's lock.
        with ThreadPoolExecutor(1) as pool:
            byte_lengths = pool.submit(ByteLengths.from_json, tokenizer_json)
            try:
                self._tokenizer: Any = import_module(self.name).Tokenizer.from_json_str(tokenizer_json)
            except Exception as error:
                raise _refusal(self.name, error) from error
        self.byte_lengths = byte_lengths.result()
        """How many bytes its tokens stand for; None if the reference must say where they lie."""
        if self.byte_lengths is None:
            # Loaded now, so that workers that are forked from this process share it.
            reference_tokenizer(tokenizer_json)

    def encode(self, texts: Sequence[str]) -> EngineTokens:
        """Encode N texts. Only the tokens are given, not where they lie in the texts. The arrays are views of
        fastokens' buffers. Texts with lone surrogates raise the library's own error; reject them earlier.
        """
        ids, offsets = self._tokenizer.encode_batch_flat(list(texts))
        # Its numbers are unsigned and far below the limit of signed ones, so a view needs no copy.
        return EngineTokens(np.frombuffer(ids, "<u4").view(np.int32), np.frombuffer(offsets, "<u8").view(np.int64))


Engine: TypeAlias = TokenizersEngine | FastokensEngine
"""Turns texts into tokens. Recognises added tokens in a text; adds, cuts and pads nothing."""
ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (FastokensEngine, TokenizersEngine)}
"""What loads each of `schemas.tables.engines`, by its name."""


def make_engine(name: str, tokenizer_json: str) -> Engine:
    """Build the engine `name` from the content of a tokenizer.json, without truncation and padding.

    Raises:
        TokenizerError: the engine is missing or refuses the tokenizer; or the tokenizer has dropout, or is of another
        type than BPE and Unigram.
    """
    model = tokenizer_head(tokenizer_json).model
    # A file may leave the type out.
    if model.type not in ("BPE", "Unigram", None):
        raise TokenizerError(f"this is a tokenizer of type {model.type!r:.40}; packtrain reads BPE and Unigram only")
    if model.dropout:
        raise TokenizerError(
            "the tokenizer has BPE dropout, so the same text gives other tokens every time; "
            'set "dropout" of the model in tokenizer.json to null'
        )
    return ENGINES[name](tokenizer_json)


load_engine = lru_cache(maxsize=1)(make_engine)
"""`make_engine`, with the last engine kept: the first look and the encoder use the same one."""


def preferred_engine(requested: str) -> str:
    """The engine to try first: the one that is requested, or for `auto` the first of the table that is installed; the
    reference if that is not installed.
    """
    candidates = list(TOKENIZER_ENGINES) if requested == AUTO else [requested]
    for name in candidates:
        # `version` raises if the package is missing, and imports nothing: workers must set its threads before that.
        with suppress(PackageNotFoundError):
            version(name)
            return name
    return REFERENCE


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
        raise _refusal(REFERENCE, error) from error
    # A tokenizer.json may hold the length to which it was last made to cut or fill texts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.post_processor = None
    return tokenizer


def _refusal(name: str, error: Exception) -> TokenizerError:
    """The error for a tokenizer that an engine cannot load, with the first line of what the engine says."""
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return TokenizerError(f"{name} refuses this tokenizer: {first_line}")
