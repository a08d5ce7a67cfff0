"""Examples of rows that cannot be used, from rejects.jsonl, a line in memory at a time."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from ...schemas.errors import StoreError
from ...schemas.jsontext import decode_note
from ...schemas.report import Reject
from ..inputs.blocks import InputFile
from ..outfolder import REJECTS
from ..recall import recall_files
from ..stores import Store
from .flow import Rejects

EACH, MOST = 5, 60
"""Of each reason of a source, and in all."""
_DETAIL = 400
"""Characters of a detail: it may quote the row."""
_LINES = 1_000_000
"""Lines that are looked at."""


class _Entry(msgspec.Struct):
    """A line of rejects.jsonl."""

    source: str
    file: str
    line: int
    reason: str
    detail: str
    example: int = -1


def rejects_of(out: Store) -> Rejects:
    """Some of each reason and source, in their order; none where the file is gone."""
    size = out.size(REJECTS)
    if not size:
        return Rejects()
    return Rejects(_some(_entries(out), recall_files(out) or []), out.where(REJECTS))


def rejects_among(lines: Iterable[bytes], files: Sequence[InputFile]) -> Rejects:
    """The same before they are written.

    Args:
        lines: of rejects.jsonl.
        files: that they are in.
    """
    return Rejects(_some((decode_note(line, _Entry) for line in lines), files))


def _some(entries: Iterable[_Entry], files: Sequence[InputFile]) -> list[Reject]:
    known = {(file.source, file.shown): file for file in files}
    seen: Counter[tuple[str, str]] = Counter()
    shown = []
    for entry in entries:
        key = (entry.source, entry.reason)
        seen[key] += 1
        if seen[key] <= EACH and entry.reason != "more":
            path = _path(known.get((entry.source, entry.file)))
            shown.append(Reject(entry.source, entry.file, entry.line, entry.reason, _short(entry.detail), path))
    return _spread(shown)


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


def _spread(rejects: list[Reject]) -> list[Reject]:
    """At most `MOST`, the first of each reason and source before the second of any."""
    places: Counter[tuple[str, str]] = Counter()
    ranked = []
    for index, reject in enumerate(rejects):
        places[reject.source, reject.reason] += 1
        ranked.append((places[reject.source, reject.reason], index))
    kept = sorted(index for _, index in sorted(ranked)[:MOST])
    return [rejects[index] for index in kept]


def _path(file: InputFile | None) -> str | None:
    """Of a file that lies where it was named; copies of what came from elsewhere are none of it."""
    if file is None or file.origin or not file.path.is_absolute():
        return None
    return str(file.path)


def _short(detail: str) -> str:
    return detail if len(detail) <= _DETAIL else detail[: _DETAIL - 1] + "…"
