"""Verdicts of the engine check over its fuzz texts, kept for the user who runs it.

They depend on the tokenizer and on versions, not on any data. So they are kept apart from the caches of datasets,
and a second dataset with the same tokenizer compares only its own first rows.
"""

import os
import platform
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ..schemas.errors import StoreError
from ..schemas.fingerprint import fingerprint, hash_bytes
from ..stages.engines import Engine
from ..stages.gate import FuzzVerdict, check_fuzz
from .sealed import seal, unseal
from .store import LocalStore
from .stores import default_scratch

_FORMAT = 1
"""Raised when `check_fuzz` compares differently; a change of the fuzz texts shows by itself."""
_FOLDER = "engine-checks"
_MOST_BYTES = 1 << 16


class _Note(msgspec.Struct):
    """A kept verdict. It says itself what it is about, so that its name alone is not believed."""

    about: dict[str, str | int]
    verdict: FuzzVerdict


class UserVerdicts:
    """The verdicts about one tokenizer.

    Args:
        tokenizer_json: content of a tokenizer.json.
        folder: by default `engine-checks` in the user's cache, `$PACKTRAIN_CACHE` or `~/.cache/packtrain`.
    """

    def __init__(self, tokenizer_json: str, folder: Path | None = None) -> None:
        self._tokenizer = hash_bytes(tokenizer_json.encode())
        self._store = LocalStore(folder or default_scratch() / _FOLDER)

    def check(self, engine: Engine, reference: Engine, texts: Sequence[str]) -> FuzzVerdict:
        """The verdict that is kept, or that of `check_fuzz`, which is kept from then on.

        A cache that cannot be read or written only costs time.
        """
        about = self._about(engine, reference, texts)
        name = f"{fingerprint(about)}.json"
        kept = self._read(name)
        if kept is not None and kept.about == about:
            return kept.verdict
        verdict = check_fuzz(engine, reference, texts)
        with suppress(StoreError):
            self._store.replace_bytes(name, seal(msgspec.json.encode(_Note(about, verdict))))
        return verdict

    def _about(self, engine: Engine, reference: Engine, texts: Sequence[str]) -> dict[str, str | int]:
        """All that a verdict depends on."""
        return {
            "format": _FORMAT,
            "tokenizer": self._tokenizer,
            "engine": f"{engine.name} {engine.version} {type(engine).__module__}.{type(engine).__qualname__}",
            "reference": f"{reference.name} {reference.version}",
            "texts": hash_bytes(msgspec.json.encode(list(texts))),
            "machine": platform.machine(),  # a home folder may be shared by machines of several kinds
        }

    def _read(self, name: str) -> _Note | None:
        """The note under a name; None where there is none, it is damaged, or others may have written it."""
        path = self._store.path(name)
        try:
            for place in (path.parent, path):
                found = place.lstat()
                if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
                    return None
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
                return None
            return msgspec.json.decode(unseal(path.read_bytes()) or b"", type=_Note)
        except (OSError, msgspec.MsgspecError):
            return None
