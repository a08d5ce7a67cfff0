"""Examples of rejected rows from rejects.jsonl, which is read one line at a time."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...schemas.errors import StoreError
from ...schemas.jsontext import decode_note
from ...schemas.names import REJECTS
from ...schemas.report import Reject
from ..dataset.open import Finished
from ..dataset.run_notes import recall_files
from ..inputs.blocks import InputFile
from ..store.open import Store

EACH, MOST = 5, 60
"""Maximum number of examples per reason and source, and in total."""
_DETAIL = 400
"""Maximum number of characters of a detail, which may quote the row."""
_LINES = 1_000_000
"""Maximum number of lines that are read."""


@dataclass(frozen=True, slots=True)
class Rejects:
    """Some rejected rows."""

    shown: list[Reject] = field(default_factory=list)
    file: str | None = None
    """The file that lists all rejected rows."""


class _Entry(msgspec.Struct):
    """A line of rejects.jsonl."""

    source: str
    file: str
    line: int
    reason: str
    detail: str
    example: int = -1


def rejects_of(dataset: Finished) -> Rejects:
    """Some rejected rows of each reason and source, in file order; none if the file is gone."""
    out = dataset.store
    size = out.size(REJECTS)
    if not size:
        return Rejects()
    return Rejects(_some(_entries(out), recall_files(out, dataset.manifest.plan)), out.where(REJECTS))


def rejects_among(lines: Iterable[bytes], files: Sequence[InputFile]) -> Rejects:
    """Some rejected rows, before they are written.

    Args:
        lines: the lines of rejects.jsonl.
        files: the input files.
    """
    return Rejects(_some((decode_note(line, _Entry) for line in lines), files))


def _some(entries: Iterable[_Entry], files: Sequence[InputFile]) -> list[Reject]:
    """The first few of each reason and source, in file order; of many kinds fewer each."""
    known = {(file.source, file.shown): file for file in files}
    seen: Counter[tuple[str, str]] = Counter()
    shown: list[tuple[int, int, Reject]] = []  # its number among those of its kind, its place
    for entry in entries:
        key = (entry.source, entry.reason)
        seen[key] += 1
        if seen[key] <= EACH and entry.reason != "more":
            path, detail = _path(known.get((entry.source, entry.file))), entry.detail
            detail = detail if len(detail) <= _DETAIL else detail[: _DETAIL - 1] + "…"
            reject = Reject(entry.source, entry.file, entry.line, entry.reason, detail, path)
            shown.append((seen[key], len(shown), reject))
    kept = sorted(shown, key=lambda one: one[:2])[:MOST]
    return [reject for *_, reject in sorted(kept, key=lambda one: one[1])]


def _entries(out: Store) -> Iterator[_Entry]:
    decoder = msgspec.json.Decoder(_Entry)
    try:
        with Path(out.local(REJECTS)).open("rb") as file:
            for number, line in enumerate(file):
                if number >= _LINES:
                    return
                try:
                    yield decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    continue  # damaged: verify says so, and the others still serve as examples
    except (OSError, StoreError):
        return


def _path(file: InputFile | None) -> str | None:
    """The path of a local input file; None for a copy of a remote or compressed one."""
    if file is None or file.origin or not file.path.is_absolute():
        return None
    return str(file.path)
