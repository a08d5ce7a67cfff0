"""Verdicts of the engine check on its fuzz texts, stored in the user's cache.

They depend on the tokenizer and on versions, not on any data. So they are kept apart from the caches of datasets,
and a second dataset with the same tokenizer compares only its own first rows.
"""

import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ....schemas.fingerprint import hash_bytes
from ....schemas.jsontext import decode_note
from ....stages.tokenize import engines
from ....stages.tokenize.engine_check import FUZZ_SET, CheckFuzz, FuzzVerdict, check_fuzz
from ....stages.tokenize.engines import Engine
from ...store.user_cache import About, UserCache

_FORMAT = 2
"""Version of the comparison; increase it when `check_fuzz` compares differently. Other fuzz texts have another
`FUZZ_SET`.
"""


class UserVerdicts:
    """The verdicts about one tokenizer.

    Args:
        tokenizer_json: content of a tokenizer.json.
        folder: by default `engine-checks` in the user's cache.
        compare: makes a verdict that is not stored yet.
    """

    def __init__(self, tokenizer_json: str, folder: Path | None = None, compare: CheckFuzz = check_fuzz) -> None:
        self._compare = compare
        self._tokenizer = hash_bytes(tokenizer_json.encode())
        self._cache = UserCache("engine-checks", folder)

    def check(self, engine: Engine, reference: Engine, added_tokens: Sequence[str]) -> FuzzVerdict:
        """Return the stored verdict, or make a new one with `check_fuzz` and store it."""
        about = self._about(engine, reference, added_tokens)
        kept = self._cache.read(about)
        if kept is not None:
            with suppress(msgspec.MsgspecError):
                return decode_note(kept, FuzzVerdict)
        verdict = self._compare(engine, reference, added_tokens)
        self._cache.keep(about, msgspec.json.encode(verdict))
        return verdict

    def _about(self, engine: Engine, reference: Engine, added_tokens: Sequence[str]) -> About:
        """Everything that a verdict depends on."""
        kind = engines.ENGINES[engine.name]  # the engine itself may be in a worker
        return {
            "format": _FORMAT,
            "tokenizer": self._tokenizer,
            "engine": f"{engine.name} {engine.version} {kind.__module__}.{kind.__qualname__}",
            "reference": f"{reference.name} {reference.version}",
            "texts": FUZZ_SET,
            "added": hash_bytes(msgspec.json.encode(list(added_tokens))),
            "machine": platform.machine(),  # machines of several kinds may share a home folder
        }
