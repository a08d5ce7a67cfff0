"""Reads an example's source row again, and checks that the input is still what the run read."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from ...schemas.config.config import RunConfig
from ...schemas.errors import PacktrainError
from ...schemas.units import plural
from ..dataset.documents import Address
from ..dataset.open import Finished
from ..dataset.run_notes import recall_files
from ..inputs.blocks import Block, BlockRows, InputFile
from ..inputs.lines import BOM
from ..inputs.read import read_rows
from ..inputs.scan import scan_file


class State(StrEnum):
    """The state of an input now."""

    SAME = "same"
    """The file has changed, but the block with the row still has the hash that the run noted."""
    CHANGED = "changed"
    GONE = "gone"
    UNKNOWN = "unknown"
    """The input's place is unknown, or it has no such row."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source row, or why it cannot be shown."""

    state: State
    path: str
    """Path of the input; "" if unknown."""
    said: str
    """The state of the input, in a sentence."""
    rows: BlockRows | None = None
    """A source with only this row, as the run read it."""
    past_end: bool = False
    """Whether the row's number is beyond the input's end."""

    @property
    def item(self) -> bytes | Mapping[str, Any] | None:
        """The row as its file has it: a line of JSON, or a decoded row. None if it cannot be read."""
        found = [one for _, one in (*(self.rows.lines or ()), *(self.rows.records or ()))] if self.rows else []
        return found[0] if found else None

    @property
    def value(self) -> Any:
        """The row as plain data; as text if the line is not JSON; None without a row."""
        item = self.item
        if not isinstance(item, bytes):
            return dict(item) if item is not None else None
        try:
            return msgspec.json.decode(item.removeprefix(BOM))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return item.decode(errors="backslashreplace")


class Inputs:
    """Those inputs of a finished run that still exist.

    Args:
        scratch: the local folder with copies of inputs; None if it is gone.
    """

    def __init__(self, dataset: Finished, config: RunConfig, scratch: Path | None) -> None:
        files = recall_files(dataset.store, dataset.manifest.plan)
        self._files = {(file.source, file.label): file for file in files}
        self._max_row_bytes = {source.name: source.max_row_bytes for source in config.sources}
        self._scratch = scratch

    def taken(self, address: Address) -> bool:
        """Whether a row is within the source's `max_rows`; True if that is unknown."""
        file = self._files.get((address.source, address.file))
        return file is None or address.line <= file.lines

    def row(self, address: Address) -> SourceRow:
        """Read the source row at an address."""
        file = self._files.get((address.source, address.file))
        if file is None:
            return SourceRow(State.UNKNOWN, "", "the folder no longer says where this input was")
        path, total = str(file.path), file.lines + file.not_taken
        if address.line > total:
            return SourceRow(State.UNKNOWN, path, f"{path} had {plural(total, 'row')}", past_end=True)
        then = f"it had {file.size:,} bytes, with BLAKE3 hash {file.hash[:16]}"
        if not file.path.is_file():
            return SourceRow(State.GONE, path, f"{path} is gone; {then}")
        try:
            now = file.path.stat()
            same = (now.st_size, now.st_mtime_ns) == (file.size, file.mtime_ns)
        except OSError as error:
            return SourceRow(State.GONE, path, f"{path} can no longer be read ({error}); {then}")
        try:
            rows = self._rows(file, address.line, same)
        except (OSError, PacktrainError) as error:
            if same:
                return SourceRow(State.CHANGED, path, f"{path} can no longer be read ({error}); {then}")
            rows = None
        if rows is None:
            said = f"{path} has changed since the run: {then}, and has {now.st_size:,} bytes now"
            return SourceRow(State.CHANGED, path, f"{said}. Its current content is not shown")
        said = "as the run read it"
        if now.st_size != file.size:
            said = (
                f"the file has changed since the run ({file.size:,} → {now.st_size:,} bytes), but not the part with "
                "this row"
            )
        return SourceRow(State.SAME, path, said, rows)

    def _rows(self, file: InputFile, line: int, same: bool) -> BlockRows | None:
        """Only this row; None if the file has a different block there.

        Args:
            same: whether the file has the noted size and time. If not, copies of its blocks must not be used.
        """
        most = self._max_row_bytes[file.source]
        block = _holding(file, line)
        if block is not None and (block.spooled is None or (same and block.spooled.is_file())):
            if block.spooled is None and block.kind == "lines" and block.end > file.path.stat().st_size:
                return None
            return read_rows(file.where(block), block, most).only(line - 1 - block.first_line)
        # The copies of the file's blocks are gone, or the run did not take this row, so divide the file into blocks as
        # the run did.
        with TemporaryDirectory(prefix="packtrain-inspect-") as folder:
            again = scan_file(file.source, file.label, file.path, most, self._scratch or Path(folder))
            there = _holding(again, line)
            known = (block.first_line, block.content_hash) if block is not None else None
            if there is None or (again.hash != file.hash and (there.first_line, there.hash) != known):
                return None
            return read_rows(again.where(there), there, most).only(line - 1 - there.first_line)


def _holding(file: InputFile, line: int) -> Block | None:
    return next((one for one in file.blocks if one.first_line < line <= one.first_line + one.lines), None)
