"""The samples file: one JSON object a line.

Groups of samples are appended whole, in the order of the groups, so that a killed process loses at most the group it
was in, and the next one goes on with it.
"""

from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...schemas.errors import InputError, OutputError
from ...schemas.escape import escape_line
from ...schemas.files.foreign import open_regular
from ...schemas.jsontext import decode_note
from ...schemas.models.samples import Sample
from ..inputs.lines import bounded_lines
from ..store.appended import AppendedFile

_MAX_LINE_BYTES = 64 << 20
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _SampleLine(msgspec.Struct):
    """A line, which another program may have written: the ids of many data files are numbers, so an int is allowed."""

    id: str | int
    row: _Count
    sample: _Count
    text: str
    finish_reason: str | None = None
    tokens: _Count | None = None


def read_samples(path: Path) -> Iterator[Sample]:
    """The samples of a file, in its order. Blank lines are skipped, unknown keys ignored.

    Raises:
        InputError: the file cannot be read; or a line is no sample, is cut short, or repeats a sample. Names the line.
    """
    keys: set[tuple[int, int]] = set()  # (row, sample) of the samples so far
    try:
        with BufferedReader(open_regular(path)) as file:
            for number, line in enumerate(bounded_lines(file, str(path), _MAX_LINE_BYTES), start=1):
                if line.isspace():
                    continue
                sample = _parse_line(path, number, line)
                if sample.key in keys:
                    raise InputError(
                        f"{path}, line {number:,}: sample {sample.sample} of row {sample.row} is there twice; keep one "
                        "of them"
                    )
                keys.add(sample.key)
                yield sample
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give a samples file") from error


def open_samples(path: Path, options: Mapping[str, Any], total: int, group_size: int) -> tuple[AppendedFile, int]:
    """A samples file to write or to continue, and how many samples it has.

    A group that a killed process had begun to write is cut off: it is drawn again as a whole, because its samples are
    computed together.

    Args:
        path: the file, made if needed.
        options: what decides the samples, as plain data. It is recorded beside the file.
        total: how many samples it will have.
        group_size: the samples of each group but the last.

    Raises:
        OutputError: another command made the file, or it holds more samples than this command makes.
        BusyError: another process is writing it.
        StoreError: it cannot be written.
    """
    file = AppendedFile(path, options)
    if file.count > total:
        file.close()
        raise OutputError(f"--out {path} holds more samples than this command makes; choose another file")
    # The last group may be smaller, and is whole only if the file is. With groups of 4 and a total of 10, a file of 10
    # samples is complete, and one of 9 goes on behind its 8th.
    finished = total if file.count == total else file.count - file.count % group_size
    file.keep(finished)
    return file, finished


def _parse_line(path: Path, number: int, line: bytes) -> Sample:
    """The sample in a line.

    Args:
        number: of the line, from 1.

    Raises:
        InputError: the line is no sample, or is cut short.
    """
    try:
        fields = decode_note(line, _SampleLine)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{path}, line {number:,}: {escape_line(str(error))}; each line is a JSON object with id, row, sample and "
            "text"
        ) from None
    return Sample(
        id=str(fields.id),
        row=fields.row,
        sample=fields.sample,
        text=fields.text,
        finish_reason=fields.finish_reason,
        tokens=fields.tokens,
    )
