"""The samples file: one JSON object a line.

Groups of samples are appended whole, in the order of the groups, so that a killed process loses at most the group it
was in, and the next one goes on with it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from ...schemas.errors import InputError, OutputError
from ...schemas.escape import escape_line
from ...schemas.jsontext import decode_note
from ...schemas.samples import Sample
from ..store.appended import AppendedFile
from ..store.local import open_regular

MAX_LINE_BYTES = 64 << 20
_Count = Annotated[int, msgspec.Meta(ge=0)]
_encode = msgspec.json.Encoder().encode


class _SampleLine(msgspec.Struct):
    """A line as other programs may write it: the ids of many data files are numbers."""

    id: str | int
    row: _Count
    sample: _Count
    text: str
    finish_reason: str | None = None
    tokens: int | None = None


def read_samples(path: Path) -> Iterator[Sample]:
    """The samples of a file, in its order. Blank lines are skipped, unknown keys ignored.

    Raises:
        InputError: the file cannot be read; a line is no sample or is cut short; a sample is there twice; or samples
            of one row have different ids. Names the line.
    """
    seen: set[tuple[int, int]] = set()
    ids: dict[int, str] = {}
    try:
        with open_regular(path) as raw, open(raw.fileno(), "rb", closefd=False) as file:
            for number, line in _lines(file):
                if line.isspace():
                    continue
                sample = _sample(path, number, line)
                if sample.key in seen:
                    raise InputError(
                        f"{path}, line {number:,}: sample {sample.sample} of row {sample.row} is there twice; keep one "
                        "of them"
                    )
                if ids.setdefault(sample.row, sample.id) != sample.id:
                    raise InputError(
                        f"{path}, line {number:,}: row {sample.row} has the id {escape_line(sample.id)} here, and "
                        f"{escape_line(ids[sample.row])} above; these samples are not of one data file: keep those of "
                        "one"
                    )
                seen.add(sample.key)
                yield sample
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give a samples file") from error


class SamplesFile(AppendedFile):
    """A samples file being written by one process, or continued. A context manager.

    Args:
        path: the file, made if needed.
        options: see `AppendedFile`.
        sizes: how many samples each group has that this run makes, in order.

    Attributes:
        groups_done: how many of the groups are in the file.

    Raises:
        BusyError, StoreError, OutputError: see `AppendedFile`; or it holds more samples than this command makes.
    """

    def __init__(self, path: Path, options: Mapping[str, Any], sizes: Sequence[int]) -> None:
        super().__init__(path, options)
        try:
            self._continue(sizes)
        except BaseException:
            self.close()
            raise

    def write(self, samples: Iterable[Sample]) -> None:
        """Append the next group."""
        self.append(b"".join(_encode(sample) + b"\n" for sample in samples))

    def _continue(self, sizes: Sequence[int]) -> None:
        """Count the groups that are there, and cut off what a killed process had begun to write."""
        with self.reader() as file:
            whole = takewhile(lambda line: line.endswith(b"\n"), (line for _, line in _lines(file)))
            ends = [0, *accumulate(map(len, whole))]
        groups = [0, *accumulate(sizes)]
        if len(ends) > groups[-1] + 1:
            raise OutputError(f"--out {self.path} holds more samples than this command makes; choose another file")
        self.groups_done = bisect_right(groups, len(ends) - 1) - 1
        self.cut(ends[groups[self.groups_done]])


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """(line from 1, its bytes, at most `MAX_LINE_BYTES`)."""
    yield from enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1)


def _sample(path: Path, number: int, line: bytes) -> Sample:
    where = f"{path}, line {number:,}"
    if len(line) == MAX_LINE_BYTES:
        raise InputError(f"{where}: longer than {MAX_LINE_BYTES >> 20} MiB; give a samples file")
    try:
        said = decode_note(line, _SampleLine)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{where}: {escape_line(str(error))}; each line is a JSON object with id, row, sample and text"
        ) from None
    return Sample(str(said.id), said.row, said.sample, said.text, said.finish_reason, said.tokens)
