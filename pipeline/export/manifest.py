"""The manifest of an export, written last: which dataset it came from, and every file with its hash."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from ...schemas.errors import IntegrityError
from ...schemas.fingerprint import fingerprint
from ...schemas.jsontext import decode_note, indented_json
from ...schemas.manifest import FileRecord
from ..store.open import Store

NAME = "export.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class ExportedSplit:
    """What one split amounts to, as its reader counts it."""

    rows: int
    pieces: int
    tokens: int
    """Without `padding`."""
    trained: int
    padding: int
    """Tokens that the format needs and the dataset does not have. They are not trained."""


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """Everything that decided the bytes, and everything that was written."""

    plan: dict[str, Any]
    """The dataset's manifest hash, the options, and versions."""
    not_carried: tuple[str, ...]
    """Columns of a packed row for which the format has no place."""
    splits: dict[str, ExportedSplit]
    files: tuple[FileRecord, ...]

    @property
    def hash(self) -> str:
        """Equal for equal bytes, on any machine and with any workers."""
        return fingerprint(self.payload())

    def payload(self) -> dict[str, Any]:
        """The data that the hash covers."""
        return {
            "format": FORMAT,
            "plan": self.plan,
            "not_carried": list(self.not_carried),
            "splits": {name: asdict(split) for name, split in self.splits.items()},
            "files": [asdict(file) for file in self.files],
        }

    def to_bytes(self) -> bytes:
        """The manifest file, to the byte."""
        payload = self.payload()
        return indented_json({"hash": fingerprint(payload), **payload}, 1)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    hash: str
    format: int
    plan: dict[str, Any]
    not_carried: tuple[str, ...]
    splits: dict[str, ExportedSplit]
    files: tuple[FileRecord, ...]


def read_export(store: Store) -> ExportManifest | None:
    """The manifest of a finished export, or None.

    Raises:
        IntegrityError: it cannot be read, or its hash does not match its content.
    """
    data = store.read(NAME)
    if data is None:
        return None
    try:
        return parse_export(data, store.where(NAME))
    except IntegrityError as error:
        raise IntegrityError(f"{error}. Delete {store.url} first") from error


def parse_export(data: bytes, where: str) -> ExportManifest:
    """The manifest of an export from its bytes.

    Args:
        where: its path, for messages.

    Raises:
        IntegrityError: it is something else, or its hash does not match its content.
    """
    try:
        found = decode_note(data, _File)
        manifest = ExportManifest(found.plan, found.not_carried, found.splits, found.files)
        whole = found.format == FORMAT and manifest.hash == found.hash
    except (msgspec.MsgspecError, ValueError) as error:
        raise IntegrityError(f"{where} is not the manifest of an export ({error}); export again") from error
    if not whole:
        raise IntegrityError(f"{where} is of another version, or was changed after it was written; export again")
    return manifest


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """A line for each value that differs between two plans."""
    lines = []
    for key in sorted({*there, *here}):
        if there.get(key) != here.get(key):
            lines.append(f"{key}: {_short(there.get(key))} → {_short(here.get(key))}")
    return lines


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:79]}…"
