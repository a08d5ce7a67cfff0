"""rejects.jsonl: every row that cannot be used, by file and line, with the reason."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from ..schemas.errors import InputError
from .inputs.blocks import Block, InputFile
from .parts import PartRecord
from .sources import first_misfit, sample_rows

_NO_ROW = ("invalid_json", "invalid_utf8", "not_an_object")
"""Reasons that a whole file may have, because it is something else."""
_COLUMNS = 12
"""That are named."""


def reject_lines(files: Sequence[InputFile], records: Sequence[PartRecord], reasons: Collection[str]) -> bytes:
    """The file's content.

    Args:
        records: one a block, in the order of `files`.
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
    """The first of them in a sentence, for messages; "" where there is none."""
    for file, block, (line, _, reason, detail) in _refusals(files, records, reasons):
        said = f" The first: {file.shown}, line {block.first_line + line + 1}: {reason}: {detail}."
        return said + what_it_is(file, reason)
    return ""


def what_it_is(file: InputFile, reason: str, *, line: bool = True) -> str:
    """A sentence about a file: its columns, or what it may be instead of lines of JSON; "" where nobody knows.

    Args:
        line: say which line was looked at; not of a sample, whose lines are none of its input's.
    """
    table = any(block.place is not None for block in file.blocks)
    if reason != "missing_key" if table else reason not in _NO_ROW:
        return ""
    try:
        if table:
            names = [f"`{name}`" for row in sample_rows(file, 1) for name in row]
            return f" Its columns are {', '.join(names[:_COLUMNS])}{', …' if len(names) > _COLUMNS else ''}."
        if sample_rows(file, 1):
            return ""
        found = first_misfit(file)
    except InputError:  # it has changed since
        return ""
    return "" if found is None else f" {f'In line {found[0]:,}' if line else 'There'}, {found[1]}."


def _refusals(
    files: Sequence[InputFile], records: Sequence[PartRecord], reasons: Collection[str]
) -> Iterator[tuple[InputFile, Block, tuple[int, int, str, str]]]:
    blocks = [(file, block) for file in files for block in file.blocks]
    for (file, block), record in zip(blocks, records, strict=True):
        for refusal in record.refusals(reasons):
            yield file, block, refusal
