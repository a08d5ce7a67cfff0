"""Verdicts of the engine check over its fuzz texts, kept for the user who runs it.

They depend on the tokenizer and on versions, not on any data. So they are kept apart from the caches of datasets,
and a second dataset with the same tokenizer compares only its own first rows.
"""

import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ..schemas.fingerprint import hash_bytes
from ..stages.engines import Engine
from ..stages.gate import FuzzVerdict, check_fuzz
from .user_cache import About, UserCache

_FORMAT = 1
"""Raised when `check_fuzz` compares differently; a change of the fuzz texts shows by itself."""


class UserVerdicts:
    """The verdicts about one tokenizer.

    Args:
        tokenizer_json: content of a tokenizer.json.
        folder: by default `engine-checks` in the user's cache.
    """

    def __init__(self, tokenizer_json: str, folder: Path | None = None) -> None:
        self._tokenizer = hash_bytes(tokenizer_json.encode())
        self._cache = UserCache("engine-checks", folder)

    def check(self, engine: Engine, reference: Engine, texts: Sequence[str]) -> FuzzVerdict:
        """The verdict that is kept, or that of `check_fuzz`, which is kept from then on."""
        about = self._about(engine, reference, texts)
        kept = self._cache.read(about)
        if kept is not None:
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(kept, type=FuzzVerdict)
        verdict = check_fuzz(engine, reference, texts)
        self._cache.keep(about, msgspec.json.encode(verdict))
        return verdict

    def _about(self, engine: Engine, reference: Engine, texts: Sequence[str]) -> About:
        """All that a verdict depends on."""
        return {
            "format": _FORMAT,
            "tokenizer": self._tokenizer,
            "engine": f"{engine.name} {engine.version} {type(engine).__module__}.{type(engine).__qualname__}",
            "reference": f"{reference.name} {reference.version}",
            "texts": hash_bytes(msgspec.json.encode(list(texts))),
            "machine": platform.machine(),  # a home folder may be shared by machines of several kinds
        }
