"""rejects.jsonl: every row that cannot be used, by file and line, with the reason."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from ..inputs.blocks import Block, InputFile
from ..inputs.first_rows import what_it_is
from .parts import PartRecord


def reject_lines(files: Sequence[InputFile], records: Sequence[PartRecord], reasons: Collection[str]) -> bytes:
    """Return the content of rejects.jsonl.

    Args:
        records: one per block, in the order of `files`.
        reasons: see `PartRecord.refusals`.
    """
    lines = []
    for file, block, (line, sub, reason, detail) in _refusals(files, records, reasons):
        entry: dict[str, Any] = {
            "source": file.source,
            "file": file.shown,
            "line": block.first_line + line + 1,
            "reason": reason,
            "detail": detail,
        }
        if sub >= 0:
            entry["example"] = sub
        lines.append(msgspec.json.encode(entry) + b"\n")
    return b"".join(lines)


def first_reject(files: Sequence[InputFile], records: Sequence[PartRecord], reasons: Collection[str]) -> str:
    """Describe the first reject in a sentence, for messages; "" if there is none."""
    for file, block, (line, _, reason, detail) in _refusals(files, records, reasons):
        said = f" The first: {file.shown}, line {block.first_line + line + 1}: {reason}: {detail}."
        return said + what_it_is(file, reason)
    return ""


def _refusals(
    files: Sequence[InputFile], records: Sequence[PartRecord], reasons: Collection[str]
) -> Iterator[tuple[InputFile, Block, tuple[int, int, str, str]]]:
    blocks = [(file, block) for file in files for block in file.blocks]
    for (file, block), record in zip(blocks, records, strict=True):
        for refusal in record.refusals(reasons):
            yield file, block, refusal
