"""The source row of an example, read again from its input, and only believed if the input is what the run read."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import blake3
import msgspec

from ..schemas.config import RunConfig
from ..schemas.errors import PacktrainError
from ..schemas.jsontext import decode_note
from .follow_cache import CachedParts, Part, Spot
from .follow_ids import Address
from .inputs.blocks import Block, InputFile
from .inputs.containers import Container, detect
from .inputs.lines import BOM, read_range, split_lines
from .inputs.paths import Found, Kind, labels
from .outfolder import REQUEST, Request
from .reader import Finished
from .readers import is_reader
from .sources import read_rows, scan_file
from .store import hash_file


class State(StrEnum):
    """What the input is now."""

    SAME = "same"
    """What holds the row has the hash that the run noted."""
    CHANGED = "changed"
    GONE = "gone"
    UNKNOWN = "unknown"
    """The folder does not know where the input lay, or the input has no such row."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A source row, or why it cannot be shown."""

    state: State
    path: str
    """Where the input lies; "" where that is not known."""
    said: str
    """A sentence about it."""
    item: bytes | Mapping[str, Any] | None = None
    """The row as its container gives it: a line of JSON, or a decoded row."""
    index: int = 0
    """Its number within its block."""
    past_end: bool = False
    """Whether the input is as it was, and has no such row."""

    @property
    def value(self) -> Any:
        """The row as plain data; a line that is no JSON as text; None without a row."""
        if not isinstance(self.item, bytes):
            return dict(self.item) if self.item is not None else None
        try:
            return msgspec.json.decode(self.item.removeprefix(BOM))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self.item.decode(errors="backslashreplace")


def request_of(dataset: Finished) -> Request | None:
    """What the run was asked for; None where that note is gone."""
    data = dataset.store.read(REQUEST)
    try:
        return decode_note(data, Request) if data is not None else None
    except msgspec.MsgspecError:
        return None


class Inputs:
    """The inputs of a finished run, as far as they are still there.

    Args:
        given: the run's configuration and its folder, as a person named them: only their readers are run.
    """

    def __init__(
        self,
        dataset: Finished,
        config: RunConfig,
        cached: CachedParts | None,
        given: tuple[RunConfig, Path] | None = None,
    ) -> None:
        self.dataset = dataset
        self.given = given
        self.config = config
        self.cached = cached
        self.request = request_of(dataset)

    def row(self, address: Address, spot: Spot | None) -> Origin:
        """The source row of an address.

        Args:
            spot: the block that it stands in, where the cache knows it.
        """
        noted = self._noted(address)
        path = self._path(address)
        if path is None:
            return Origin(State.UNKNOWN, "", "the folder does not say any more where this input lay")
        shown = str(path)
        then = f"it had {noted['bytes']:,} bytes then, of BLAKE3 {noted['hash'][:16]}"
        try:
            if not path.is_file():
                return Origin(State.GONE, shown, f"{shown} is gone; {then}")
            with path.open("rb") as file:
                head = file.read(16)
            if spot is not None and detect(path, shown, head) == (Container.JSONL, None):
                return self._line(path, head, address, spot, then)
            return self._scanned(path, address, spot, noted, then)
        except (OSError, PacktrainError) as error:
            return Origin(State.CHANGED, shown, f"{shown} cannot be read as it was ({error}); {then}")

    def _line(self, path: Path, head: bytes, address: Address, spot: Spot, then: str) -> Origin:
        """From a plain file of lines: its block alone is read."""
        assert self.cached is not None
        part = self.cached.parts[spot.part]
        start = self.cached.start_of(spot)
        index = address.line - 1 - spot.first_line
        if start is not None:
            start += len(BOM) if head.startswith(BOM) else 0
            data = read_range(path, start, start + part.bytes_read)
            if _is_block(blake3.blake3(data).hexdigest(), part.rows, part.block):
                lines = split_lines(data)
                return Origin(State.SAME, str(path), self._same(path, address), lines[index][1], index)
        return self._changed(path, then)

    def _scanned(self, path: Path, address: Address, spot: Spot | None, noted: Mapping[str, Any], then: str) -> Origin:
        """From any other container, or without the cache: the file is cut again as the run cut it."""
        source = self.config.sources[self._index(address.source)]
        with TemporaryDirectory(prefix="packtrain-inspect-") as folder:
            cache = self.cached.scratch if self.cached is not None else Path(folder)
            file = scan_file(address.source, address.file, path, source.max_row_bytes, cache)
            wanted = address.line - 1
            whole = file.hash == noted["hash"]
            block = next((b for b in file.blocks if b.first_line <= wanted < b.first_line + b.lines), None)
            if block is None:
                if not whole:
                    return self._changed(path, then)
                said = f"{path} has {file.lines:,} rows"
                return Origin(State.UNKNOWN, str(path), said, past_end=True)
            index = wanted - block.first_line
            if not (whole or self._agrees(block, spot)):
                return self._changed(path, then)
            rows = read_rows(file.where(block), block, source.max_row_bytes)
            item: bytes | Mapping[str, Any] | None
            item = next((one for at, one in [*(rows.lines or ()), *(rows.records or ())] if at == index), None)
            return Origin(State.SAME, str(path), self._same(path, address), item, index)

    def _agrees(self, block: Block, spot: Spot | None) -> bool:
        if spot is None or self.cached is None:
            return False
        part = self.cached.parts[spot.part]
        return block.first_line == spot.first_line and _is_block(block.hash, part.rows, part.block)

    def spot_of_line(self, address: Address) -> Spot | None:
        """The block of a row of a file of which nothing was packed: found by cutting the file again."""
        file = self._cut(address.source, address.file)
        for block in file.blocks if file is not None and self.cached is not None else ():
            if block.first_line < address.line <= block.first_line + block.lines:
                for index, part in enumerate(self.cached.parts if self.cached is not None else ()):
                    if self._is_part(address.source, block, part) and address.line <= block.first_line + part.rows:
                        return Spot(index, address.file, block.first_line, True)
        return None

    def spot_of_part(self, source: str, index: int) -> Spot | None:
        """Where a part's block stands: found by cutting the files of its source again. None where several hold it."""
        assert self.cached is not None
        found = []
        for noted in self.dataset.manifest.plan["inputs"]:
            file = self._cut(source, noted["file"]) if noted["source"] == source else None
            for block in file.blocks if file is not None else ():
                if self._is_part(source, block, self.cached.parts[index]):
                    found.append(Spot(index, noted["file"], block.first_line, True))
        return found[0] if len(found) == 1 else None

    def _cut(self, source: str, label: str) -> InputFile | None:
        """A file, cut as the run cut it; None where that is not possible."""
        path = self._path(Address(source, label, 1))
        if self.cached is None or path is None or not path.is_file():
            return None
        most = self.config.sources[self._index(source)].max_row_bytes
        try:
            return scan_file(source, label, path, most, self.cached.scratch)
        except PacktrainError:
            return None

    def _is_part(self, source: str, block: Block, part: Part) -> bool:
        return part.source == self._index(source) and _is_block(block.hash, part.rows, part.block)

    def _same(self, path: Path, address: Address) -> str:
        listed = next((one for one in self._listed(address.source) if one[1] == str(path)), None)
        if listed is None:
            return "as the run read it"
        now = path.stat()
        if now.st_size != listed[2]:
            return (
                f"the file has changed since the run ({listed[2]:,} → {now.st_size:,} bytes), but not the part of it "
                "that holds this row"
            )
        return "as the run read it"

    def _changed(self, path: Path, then: str) -> Origin:
        now = path.stat().st_size
        return Origin(
            State.CHANGED,
            str(path),
            f"{path} has changed since the run: {then}, and has {now:,} bytes now. What stands there now is not shown",
        )

    def _index(self, source: str) -> int:
        return [one.name for one in self.config.sources].index(source)

    def _noted(self, address: Address) -> Mapping[str, Any]:
        """What the plan says of the file."""
        inputs: list[dict[str, Any]] = self.dataset.manifest.plan["inputs"]
        return next(one for one in inputs if (one["source"], one["file"]) == (address.source, address.file))

    def _listed(self, source: str) -> list[tuple[str, str, int, int]]:
        return [one for one in self.request.files if one[0] == source] if self.request is not None else []

    def _path(self, address: Address) -> Path | None:
        """Where the input lies on this disk: itself, or the copy in the cache of what lies far away."""
        noted = self._noted(address)
        found = [_found(one) for one in self._files(address.source)]
        if all(one.kind is not Kind.HUB for one in found):
            named = dict(zip(labels([one.path for one in found]), found, strict=True)) if found else {}
            one = named.get(address.file)
            if one is not None and one.kind is Kind.LOCAL:
                return one.path
        else:  # a dataset's files are known to the run alone; local files beside it by the end of their names
            near = [one for one in found if one.kind is Kind.LOCAL and _ends(one.path, address.file)]
            if len(near) == 1:
                return near[0].path
        if self.cached is None:
            return None
        for path in sorted((self.cached.scratch / "remote").glob(f"{noted['hash'][:40]}*")):
            return path
        if any(one.kind is Kind.HUB for one in found):
            for path in sorted((self.cached.scratch / "hub").rglob("*.arrow")):
                if path.stat().st_size == noted["bytes"] and hash_file(path).hash == noted["hash"]:
                    return path
        return None

    def _files(self, source: str) -> list[tuple[str, str, int, int]]:
        """What the request lists of a source, without its split and its reader."""
        mine = self._listed(source)
        if mine and is_reader(self.config.sources[self._index(source)].format):
            mine = mine[:-1]
        return mine[:-1]


def _found(listed: tuple[str, str, int, int]) -> Found:
    _, name, size, stamp = listed
    if "://" in name:
        return Found(Kind.URL, name, size, stamp)
    # A dataset is listed by its name or its folder, without a size or a time.
    return Found(Kind.LOCAL if size or stamp else Kind.HUB, name, size, stamp)


def _ends(path: Path, label: str) -> bool:
    tail = label.split("/")
    parts = [*path.parent.parts, path.name.partition(".")[0]]
    return parts[-len(tail) :] == tail


def _is_block(hash: str, rows: int, noted: str) -> bool:
    """Whether a block is the one whose hash the cache noted, whole or cut by `max_rows`."""
    if hash == noted:
        return True
    return Block(0, 0, 0, rows, hash).first(rows).hash == noted
