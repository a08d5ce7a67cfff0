"""rejects.jsonl: every row that cannot be used, by file and line, with the reason."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from ...schemas.escape import escape_json
from ..inputs.blocks import InputFile
from ..inputs.first_rows import what_it_is
from .parts import PartRecord


def reject_lines(files: Sequence[InputFile], records: Sequence[PartRecord], reasons: Collection[str]) -> bytes:
    """Return the content of rejects.jsonl.

    Args:
        files: as they were encoded.
        records: one per block, in the order of `files`.
        reasons: see `PartRecord.refusals`.
    """
    lines = []
    for file, line, sub, reason, detail in _refusals(files, records, reasons):
        entry: dict[str, Any] = {
            "source": file.source,
            "file": file.shown,
            "line": line,
            "reason": reason,
            "detail": detail,
        }
        if sub >= 0:
            entry["example"] = sub
        lines.append(msgspec.json.encode(entry) + b"\n")
    return escape_json(b"".join(lines))


def first_reject(files: Sequence[InputFile], records: Sequence[PartRecord], reasons: Collection[str]) -> str:
    """Describe the first reject in a sentence, for messages; "" if there is none."""
    for file, line, _, reason, detail in _refusals(files, records, reasons):
        said = f" The first: {file.shown}, line {line}: {reason}: {detail.removesuffix('.')}."
        return said + what_it_is(file, reason)
    return ""


def _refusals(
    files: Sequence[InputFile], records: Sequence[PartRecord], reasons: Collection[str]
) -> Iterator[tuple[InputFile, int, int, str, str]]:
    """(file, line in it from 1, example of the row or -1, reason, detail)."""
    blocks = [(file, block) for file in files for block in file.blocks]
    for (file, block), record in zip(blocks, records, strict=True):
        for row, sub, reason, detail in record.refusals(reasons):
            yield *file.at(block, row), sub, reason, detail
