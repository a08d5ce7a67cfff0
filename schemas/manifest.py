"""The manifest, written last: it marks a folder as a finished dataset and lists all its files."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, TypeVar

from .alignment import Alignment
from .fingerprint import fingerprint
from .jsontext import indented_json
from .layout import Certificate, fill_of
from .ledger import Ledger
from .names import check_hash, check_name
from .parallel import Parallel

FORMAT = 4

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of the dataset."""

    name: str
    """Path below the output folder, with forward slashes."""
    bytes: int
    hash: str
    """BLAKE3 of the content."""

    def __post_init__(self) -> None:
        _check_record(self)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One shard."""

    name: str
    bytes: int
    hash: str
    """BLAKE3 of the content; its beginning is in the name."""
    rows: int
    tokens: int
    trained: int
    """Trained labels."""
    max_docs: int
    """Maximum number of documents in one row, which decides the length of `cu_seq_lens` for static shapes."""

    def __post_init__(self) -> None:
        _check_record(self)


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """One split: its shards in reading order, and how well it is packed."""

    shards: tuple[ShardRecord, ...]
    windows: tuple[Certificate, ...]
    """One certificate per planning window."""

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Tokens of the rows, with padding."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def document_tokens(self) -> int:
        """Tokens of the packed documents, without padding; 0 for preference pairs, which are not packed."""
        return sum(window.tokens for window in self.windows)

    @property
    def trained(self) -> int:
        return sum(shard.trained for shard in self.shards)

    def fill(self, max_length: int) -> float:
        """See `fill_of`; of a packed split."""
        return fill_of(self.document_tokens, self.rows, max_length)

    @property
    def padding(self) -> int:
        """Tokens of the rows that are padding for `pack.align` and `pack.parallel`."""
        return self.tokens - self.document_tokens if self.windows else 0

    @property
    def trained_share(self) -> float:
        """Trained labels as a share of the tokens, without padding."""
        return self.trained / max(self.tokens - self.padding, 1)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that decided the bytes, and everything that was written."""

    plan_hash: str
    """Hash of `plan`: inputs, configuration and versions."""
    plan: dict[str, Any]
    """The data that `plan_hash` is made from."""
    schema: dict[str, str]
    """Arrow types of a row's columns."""
    splits: dict[str, SplitRecord]
    files: tuple[FileRecord, ...]
    """All other files of the dataset."""
    ledger: Ledger

    @property
    def hash(self) -> str:
        """The fingerprint of the dataset: equal for equal bytes, on any machine and with any workers."""
        return fingerprint(self.payload())

    @property
    def preference(self) -> bool:
        """Whether its rows are preference pairs (`schemas.rows.PREFERENCE`) instead of packed rows."""
        return "chosen_ids" in self.schema

    @property
    def weighted(self) -> bool:
        """Whether its rows have loss weights."""
        return "loss_weights" in self.schema

    @property
    def max_length(self) -> int:
        """Capacity of a packed row, in tokens."""
        return int(self.plan["config"]["truncate"]["max_length"])

    @property
    def parallel(self) -> Parallel | None:
        """The ranks that its rows are made for, if its configuration says so."""
        found = self.plan["config"].get("pack", {}).get("parallel")
        return Parallel.from_json(found) if found is not None else None

    @property
    def alignment(self) -> Alignment:
        """How its pieces and rows are padded."""
        return Alignment.of(self.plan["config"].get("pack", {}).get("align", 1), self.parallel)

    def payload(self) -> dict[str, Any]:
        """The data that the hash covers."""
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
        payload = self.payload()
        return {"hash": fingerprint(payload), **payload}

    def to_bytes(self) -> bytes:
        """The manifest file, to the byte."""
        return indented_json(self.to_json(), 1)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Manifest":
        """The inverse of `to_json`.

        Raises:
            ValueError: another version of packtrain wrote it; a name in it leads out of the folder.
            KeyError, TypeError: the data has another shape.
        """
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']!r}, and this version of packtrain reads format {FORMAT}")
        return cls(
            plan_hash=_checked(data["plan_hash"], str),
            plan=_checked_plan(data["plan"]),
            schema={name: _checked(kind, str) for name, kind in _checked(data["schema"], dict).items()},
            splits={
                name: SplitRecord(
                    shards=tuple(_record(ShardRecord, one) for one in split["shards"]),
                    windows=tuple(_record(Certificate, one) for one in split["windows"]),
                )
                for name, split in _checked(data["splits"], dict).items()
            },
            files=tuple(_record(FileRecord, one) for one in data["files"]),
            ledger=Ledger.from_json(data["ledger"]),
        )


def _record(kind: type[_Record], data: Any) -> _Record:
    """Decode a flat record and check the types of its fields; by hand, because a trainer has no msgspec.

    Raises:
        ValueError, TypeError, KeyError: it has another shape.
    """
    given = _checked(data, dict)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in given or field.default is MISSING:
            _checked(given[field.name], field.type)
    return kind(**given)


def _checked(value: Any, kind: Any) -> Any:
    """The value, if it has exactly this type: true is not a number. Raises ValueError."""
    if type(value) is not kind:
        raise ValueError(f"a {getattr(kind, '__name__', kind)} is expected, not a {type(value).__name__}")
    return value


def _checked_plan(plan: Any) -> dict[str, Any]:
    """The plan, if it has the fields that every reader of a manifest needs. Raises ValueError, TypeError, KeyError."""
    if not 1 <= _checked(plan["config"]["truncate"]["max_length"], int) < 2**31:
        raise ValueError("max_length is out of range")
    pack = _checked(plan["config"].get("pack", {}), dict)
    if not 1 <= _checked(pack.get("align", 1), int) < 2**31:
        raise ValueError("pack.align is out of range")
    if pack.get("parallel") is not None:
        Parallel.from_json(_checked(pack["parallel"], dict))
    for one in _checked(plan["inputs"], list):
        _checked(one, dict)
    return plan  # type: ignore[no-any-return]


def _check_record(record: FileRecord | ShardRecord) -> None:
    """Check the name and the hash, which say where a file and its copies are.

    Raises:
        ValueError: one of them could lead elsewhere; a size is negative.
    """
    check_name(record.name)
    check_hash(record.hash)
    if record.bytes < 0:
        raise ValueError(f"{record.name} has {record.bytes} bytes")
