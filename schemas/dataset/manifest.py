"""The manifest, written last: it marks a folder as a finished dataset and lists all its files."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec

from ..errors import IntegrityError
from ..files.safe_names import check_hash, check_name
from ..fingerprint import fingerprint
from ..jsontext import indented_json, parse_json
from ..layout import Certificate, fill_of
from ..notebook import Shown, Table
from ..units import plural
from .ledger import Ledger
from .names import MANIFEST

if TYPE_CHECKING:
    from ..config.packing import PackConfig

FORMAT = 7
"""Version of the manifest's form. Only this one can be read."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Length = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
"""Tokens of a document or row; the configuration has the same limit."""
_LARGEST = 1 << 50
"""No file is larger, and no count higher; sums of them fit into 64 bits."""
_TOKEN_BYTES = 4
"""Bytes that a token takes in a shard at least."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of the dataset. Raises ValueError if its name leads out of the folder, or its hash is not a hash."""

    name: str
    """Path below the output folder, with forward slashes."""
    bytes: _Count
    hash: str
    """BLAKE3 of the content; its beginning is in the name of a shard."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_hash(self.hash)


@dataclass(frozen=True, slots=True)
class ShardRecord(FileRecord):
    """One shard."""

    rows: _Count
    tokens: _Count
    trained: _Count
    """Trained labels."""
    max_docs: _Count
    """Maximum number of documents in one row, which decides the length of `cu_seq_lens` for static shapes."""
    highest_id: _Count
    """The highest token id: a model needs embeddings for more ids than this. 0 for preference pairs that
    are not packed."""


@dataclass(frozen=True, slots=True, repr=False)
class SplitRecord(Shown):
    """One split: its shards in reading order, and how well it is packed."""

    shards: tuple[ShardRecord, ...]
    windows: tuple[Certificate, ...]
    """One certificate per planning window; none for preference pairs that are not packed."""

    def summary(self) -> str:
        """Rows, shards and tokens in one line."""
        return f"{plural(self.rows, 'row')} in {plural(len(self.shards), 'shard')}, {plural(self.tokens, 'token')}"

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Tokens of the rows, with padding."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def document_tokens(self) -> int:
        """Tokens of the packed documents, without padding; 0 for preference pairs that are not packed."""
        return sum(window.tokens for window in self.windows)

    @property
    def trained(self) -> int:
        return sum(shard.trained for shard in self.shards)

    def fill(self, row_length: int) -> float:
        """The share of the rows' capacity that holds tokens of documents, 0 to 1. The split must be packed."""
        return fill_of(self.document_tokens, self.rows, row_length)

    @property
    def padding(self) -> int:
        """Tokens of the rows that are padding for `pack.align` and `pack.parallel`."""
        return self.tokens - self.document_tokens if self.windows else 0


@dataclass(frozen=True, slots=True, repr=False)
class Manifest(Shown):
    """Everything that decided the bytes, and everything that was written."""

    plan: dict[str, Any]
    """Inputs, configuration and versions."""
    schema: dict[str, str]
    """Arrow types of a row's columns."""
    splits: dict[str, SplitRecord]
    files: tuple[FileRecord, ...]
    """All other files of the dataset."""
    ledger: Ledger

    def summary(self) -> str:
        """Rows of each split, how much is trained, and the beginning of the hash, in one line."""
        rows = ", ".join(f"{plural(split.rows, 'row')} in {name}" for name, split in self.splits.items())
        return f"{rows}, {self.ledger.supervision()}; {self.hash[:16]}"

    def tables(self) -> Iterator[Table]:
        """A table of the splits, then the ledger's."""
        rows = (
            (name, len(split.shards), split.rows, split.tokens, split.trained) for name, split in self.splits.items()
        )
        yield Table("Splits", ("split", "shards", "rows", "tokens", "trained tokens"), rows)
        yield from self.ledger.tables()

    @property
    def all_files(self) -> tuple[FileRecord, ...]:
        """The shards of all splits, and the other files."""
        shards = [shard for split in self.splits.values() for shard in split.shards]
        return (*shards, *self.files)

    @property
    def hash(self) -> str:
        """The fingerprint of the dataset: equal for equal bytes, on any machine and with any workers."""
        return fingerprint(self.payload())

    @property
    def has_unpacked_pairs(self) -> bool:
        """Whether each row is one preference pair that is not packed (`pack.strategy: none`), for TRL's trainers."""
        return "chosen_ids" in self.schema

    @property
    def has_packed_pairs(self) -> bool:
        """Whether its packed rows hold preference pairs: the chosen side of each, then its rejected one."""
        from ..tables.columns import SIDES  # here, because it imports pyarrow

        return SIDES in self.schema

    @property
    def weighted(self) -> bool:
        """Whether its rows have loss weights."""
        return "loss_weights" in self.schema

    @property
    def max_length(self) -> int:
        """Maximum length of an example, in tokens, where the strategy does not cut examples itself."""
        return int(self.plan["config"]["truncate"]["max_length"])

    @property
    def row_length(self) -> int:
        """Capacity of a packed row, in tokens."""
        return int(self.plan["config"].get("pack", {}).get("row_length") or self.max_length)

    @property
    def longest_piece(self) -> int:
        """The most tokens that a piece may have, without padding, by the configuration."""
        return self.row_length if self.pack.cuts_documents else min(self.max_length, self.row_length)

    @property
    def longest_padded(self) -> int:
        """The most tokens that a piece may have, with padding, by the configuration."""
        return self.pack.alignment.longest(self.longest_piece, self.row_length)

    @property
    def pack(self) -> "PackConfig":
        """How its rows are packed and padded."""
        from ..config.packing import PackConfig  # here, because it imports pydantic

        return PackConfig.model_validate(self.plan["config"].get("pack", {}))

    @property
    def pad_id(self) -> int:
        """The token that its rows are padded with; 0 if its tokenizer has none."""
        return self.plan.get("tokenizer", {}).get("pad_id") or 0

    def payload(self) -> dict[str, Any]:
        """The data that the hash covers."""
        content = msgspec.to_builtins(self)
        # The sources stand right under "ledger", because a ledger has nothing else.
        return {"format": FORMAT, **content, "ledger": content["ledger"]["sources"]}

    def to_bytes(self) -> bytes:
        """The content of the manifest file: the hash, then the payload that it is of."""
        payload = self.payload()
        # The hash stands first, where a person finds it; it is not part of what it hashes.
        return indented_json({"hash": fingerprint(payload), **payload}, indent=1)

    @classmethod
    def read(cls, data: bytes, where: str) -> "Manifest":
        """The manifest that a file holds.

        Args:
            where: the file, for messages.

        Raises:
            IntegrityError: it is damaged, of another version, or its hash does not match its content.
        """
        try:
            content = parse_json(data)
            manifest = cls.from_json(content)
            # `hash` raises ValueError where a text has half of a surrogate pair, which has no bytes in UTF-8.
            if manifest.hash == content.get("hash"):
                return manifest
            problem = "was changed after it was written: its hash does not match its content"
        except (ValueError, TypeError) as error:
            kind = "JSON" if isinstance(error, json.JSONDecodeError) else "a manifest of this version"
            problem = f"is not {kind} ({str(error).partition(chr(10))[0]})"  # pydantic's errors have several lines
        raise IntegrityError(
            f"{where} {problem}; delete it, and run the dataset's configuration again, which makes only what is missing"
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Manifest":
        """The manifest in the data of its file. Does not look at the hash.

        Raises:
            ValueError: another version of packtrain wrote it; the data has another shape; a name leads out of the
                folder; a count is one that no file can have.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ValueError(f"this version of packtrain reads format {FORMAT}")
        # Before objects are made of it: sums of larger numbers would not fit into 64 bits. The plan has none that are
        # summed, and may have larger ones, such as a seed.
        _check_numbers({key: data.get(key) for key in ("splits", "files", "ledger")})
        manifest = msgspec.convert({**data, "ledger": {"sources": data.get("ledger")}}, cls)
        msgspec.convert(manifest.plan, _Plan)  # only to check it: it raises ValueError if the plan has another shape
        # `pack` raises ValueError if that section of the plan is not a valid one.
        if manifest.pack.alignment.row > manifest.row_length:
            raise ValueError(f"pack pads rows to multiples of {manifest.pack.alignment.row:,}, more than a row has")
        records = Counter(file.name for file in manifest.all_files)
        for name, count in records.items():
            if count > 1:  # one of the records would never be compared with its file
                raise ValueError(f"it lists {name} {count:,} times")
        for split in manifest.splits.values():
            for shard in split.shards:
                manifest.check_shard(shard)
        return manifest

    def check_shard(self, shard: ShardRecord) -> None:
        """Refuse counts that no file of its size can have, because readers take memory for as much as is counted.

        Raises:
            ValueError: names the shard.
        """
        most_docs = 1 if self.has_unpacked_pairs else min(shard.tokens, self.row_length)
        # A row has a token at least, and a label belongs to a token. Token ids are 32-bit integers.
        for name, count, limit in (
            ("tokens", shard.tokens, shard.bytes // _TOKEN_BYTES),
            ("rows", shard.rows, shard.tokens),
            ("trained labels", shard.trained, shard.tokens),
            ("documents in a row", shard.max_docs, most_docs),
            ("for its highest token id", shard.highest_id, 2**31 - 1),
        ):
            if count > limit:
                raise ValueError(f"{shard.name} cannot have {count:,} {name}, but {limit:,} at most")


class NamedFiles(Protocol):
    """Files below a folder or URL: `DatasetFiles`, or a store of the pipeline."""

    def where(self, name: str) -> str:
        """The path or URL of a name, for messages."""

    def read(self, name: str) -> bytes | None:
        """The content of a small file, or None if there is no such name."""


def read_manifest(files: NamedFiles) -> Manifest | None:
    """The manifest of a finished dataset; None if there is none.

    Raises:
        IntegrityError: it is damaged, of another version, or its hash does not match its content.
    """
    data = files.read(MANIFEST)
    return None if data is None else Manifest.read(data, files.where(MANIFEST))


def _check_numbers(content: Any) -> None:
    """Raise ValueError if JSON data have, at any depth, a number beyond `_LARGEST`."""
    pending = [content]  # not by recursion, whose depth a file could exhaust
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        # Not `abs(value) > _LARGEST`, which is false for NaN.
        elif isinstance(value, int | float) and not abs(value) <= _LARGEST:
            raise ValueError("it has a number that no file can have")


# The parts of a plan on which properties of `Manifest` rely; the rest of it is taken as it comes. When a file is read,
# msgspec compares its plan with these types and names the place that differs, so that no property has to.


class _Truncate(msgspec.Struct):
    max_length: _Length


class _Source(msgspec.Struct):
    name: str
    format: str


class _Config(msgspec.Struct):
    truncate: _Truncate
    pack: dict[str, Any] = {}
    sources: list[_Source] = []


class _Tokenizer(msgspec.Struct, frozen=True):
    pad_id: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None


class _Input(msgspec.Struct):
    source: str
    file: str
    bytes: _Count
    hash: str


class _Plan(msgspec.Struct):
    config: _Config
    inputs: list[_Input]
    tokenizer: _Tokenizer = _Tokenizer()
    encode: dict[str, Any] = {}
    formats: dict[str, Any] = {}
