"""The manifest: written last, it makes a folder a finished dataset and names every byte of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import msgspec

from .fingerprint import fingerprint
from .layout import Certificate
from .ledger import Ledger
from .names import check_hash, check_name

FORMAT = 3


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file that the manifest vouches for."""

    name: str
    """Path below the output folder, with forward slashes."""
    bytes: int
    hash: str
    """BLAKE3 of the content."""
    sha256: str
    """Of the content: what a trainer's image checks downloads with, and anybody with `sha256sum`."""

    def __post_init__(self) -> None:
        _check_record(self)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One shard."""

    name: str
    bytes: int
    hash: str
    """BLAKE3 of the content; its beginning is in the name."""
    sha256: str
    """Of the content."""
    rows: int
    tokens: int
    trained: int
    """Labels that count."""
    max_docs: int
    """Most documents in one row: how long `cu_seq_lens` must be where its size is fixed."""

    def __post_init__(self) -> None:
        _check_record(self)


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """One split: its shards in reading order, and how well it is packed."""

    shards: tuple[ShardRecord, ...]
    windows: tuple[Certificate, ...]
    """One certificate a planning window."""

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def trained(self) -> int:
        return sum(shard.trained for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that the bytes depend on, and everything that was written."""

    plan_hash: str
    """Of inputs, configuration and versions: what was asked for."""
    plan: dict[str, Any]
    """The payload that `plan_hash` was made from."""
    schema: dict[str, str]
    """Arrow types of a row's columns."""
    splits: dict[str, SplitRecord]
    files: tuple[FileRecord, ...]
    """Everything else below the folder that belongs to the dataset."""
    ledger: Ledger

    @property
    def hash(self) -> str:
        """The fingerprint of the dataset: equal for equal bytes, whatever machine and workers made them."""
        return fingerprint(self.payload())

    @property
    def preference(self) -> bool:
        """Whether its rows are preference pairs (`schemas.rows.PREFERENCE`), and not packed."""
        return "chosen_ids" in self.schema

    @property
    def max_length(self) -> int:
        """Capacity of a packed row, in tokens."""
        return int(self.plan["config"]["truncate"]["max_length"])

    def payload(self) -> dict[str, Any]:
        """What the hash covers."""
        return {
            "format": FORMAT,
            "plan_hash": self.plan_hash,
            "plan": self.plan,
            "schema": self.schema,
            "splits": {
                name: {
                    "shards": [asdict(shard) for shard in split.shards],
                    "windows": [asdict(window) for window in split.windows],
                }
                for name, split in self.splits.items()
            },
            "files": [asdict(file) for file in self.files],
            "ledger": self.ledger.to_json(),
        }

    def to_json(self) -> dict[str, Any]:
        """The manifest file's content: the payload and its hash."""
        return {"hash": self.hash, **self.payload()}

    def to_bytes(self) -> bytes:
        """The manifest file, to the byte."""
        return json.dumps(self.to_json(), indent=1, sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Manifest":
        """The inverse of `to_json`.

        Raises:
            ValueError: another version of packtrain wrote it; a name in it leads out of the folder.
            KeyError, TypeError: the data has another shape.
        """
        if data["format"] != FORMAT:
            raise ValueError(f"manifests of format {FORMAT} are read here, this is one of format {data['format']!r}")
        return cls(
            plan_hash=msgspec.convert(data["plan_hash"], str),
            plan=_checked_plan(data["plan"]),
            schema=msgspec.convert(data["schema"], dict[str, str]),
            splits={
                name: SplitRecord(
                    shards=msgspec.convert(split["shards"], tuple[ShardRecord, ...]),
                    windows=msgspec.convert(split["windows"], tuple[Certificate, ...]),
                )
                for name, split in data["splits"].items()
            },
            files=msgspec.convert(data["files"], tuple[FileRecord, ...]),
            ledger=Ledger.from_json(data["ledger"]),
        )


class _Truncate(msgspec.Struct):
    max_length: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


class _Config(msgspec.Struct):
    truncate: _Truncate


class _Plan(msgspec.Struct):
    """What every reader of a manifest asks of its plan."""

    config: _Config
    inputs: list[dict[str, Any]]


def _checked_plan(plan: Any) -> dict[str, Any]:
    """The plan as it is, if it has the shape of one. Raises ValueError."""
    msgspec.convert(plan, _Plan)
    return msgspec.convert(plan, dict[str, Any])


def _check_record(record: FileRecord | ShardRecord) -> None:
    """Files are found by names, and copies of them by hashes.

    Raises:
        ValueError: one of them could lead elsewhere; a size is negative.
    """
    check_name(record.name)
    check_hash(record.hash)
    if record.sha256:
        check_hash(record.sha256)
    if record.bytes < 0:
        raise ValueError(f"{record.name} has {record.bytes} bytes")
