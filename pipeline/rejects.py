"""rejects.jsonl: every row that cannot be used, by file and line, with the reason."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from .inputs.blocks import Block, InputFile
from .parts import PartRecord


def reject_lines(files: Sequence[InputFile], records: Sequence[PartRecord], *, unproved: bool) -> bytes:
    """The file's content.

    Args:
        records: one a block, in the order of `files`.
        unproved: see `PartRecord.refusals`.
    """
    lines = []
    for file, block, (line, sub, reason, detail) in _refusals(files, records, unproved):
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


def first_reject(files: Sequence[InputFile], records: Sequence[PartRecord], *, unproved: bool) -> str:
    """The first of them in a sentence, for messages; "" where there is none."""
    for file, block, (line, _, reason, detail) in _refusals(files, records, unproved):
        return f" The first: {file.shown}, line {block.first_line + line + 1}: {reason}: {detail}."
    return ""


def _refusals(
    files: Sequence[InputFile], records: Sequence[PartRecord], unproved: bool
) -> Iterator[tuple[InputFile, Block, tuple[int, int, str, str]]]:
    blocks = [(file, block) for file in files for block in file.blocks]
    for (file, block), record in zip(blocks, records, strict=True):
        for refusal in record.refusals(unproved=unproved):
            yield file, block, refusal
