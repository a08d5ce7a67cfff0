"""The data that programs are judged with: its problems, whose tests are read again when they are needed."""

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...schemas.errors import ConfigError, InputError, RowRejectedError
from ...schemas.units import plural
from ...stages.judge.problems import UNRATED, Problem, problem_of
from ...stages.prep.apps import AppsFormat, group_of
from ..inputs.blocks import InputFile
from ..inputs.find import regular
from ..inputs.read import columns_of, read_rows
from ..inputs.scan import scan_file

_MAX_ROW_BYTES = 1 << 30
"""Tests of one problem may be megabytes long."""


@dataclass(frozen=True, slots=True)
class ProblemHead:
    """What is kept of a problem while others run."""

    id: str
    difficulty: str
    unusable: str | None = None
    """Why it cannot be judged: `no_tests`, `bad_tests` or `bad_solutions`; None if it can."""


@dataclass(frozen=True, slots=True)
class ProblemFile:
    """An open data file."""

    path: Path
    hash: str
    """BLAKE3 of the file."""
    heads: dict[int, ProblemHead]
    """Row → its problem, usable or not, in order of rows."""
    _file: InputFile

    def problems(self, rows: Container[int]) -> Iterator[Problem]:
        """The usable problems of these rows, in order of rows; a few megabytes of the file are in memory at a time."""
        for number, row in _rows(self._file):
            if number in rows and self.heads[number].unusable is None:
                yield problem_of(row, number)


@contextmanager
def open_problems(path: Path) -> Iterator[ProblemFile]:
    """Read a file of APPS rows once, and check it as a whole.

    Raises:
        ConfigError: there is no such file.
        InputError: it is empty or damaged, a row is no APPS row, or no row has tests.
    """
    if not path.exists() or path.is_dir():
        raise ConfigError(f"--data {path}: {'it is a folder; name a file in it' if path.is_dir() else 'no such file'}")
    if not regular(path, "--data").st_size:
        raise InputError(f"--data {path} is empty")
    with TemporaryDirectory(prefix="packtrain-judge-") as spool:
        file = scan_file("data", path.name, path, _MAX_ROW_BYTES, Path(spool))
        heads = {number: _head(row, number) for number, row in _rows(file)}
        if all(head.unusable for head in heads.values()):
            why = ", ".join(sorted({str(head.unusable) for head in heads.values()}))
            raise InputError(
                f"--data {path}: none of its {plural(len(heads), 'row')} can be judged ({why}). Give APPS "
                "rows with tests, in the key `input_output`: inputs and outputs, and `fn_name` where a function is "
                "called"
            )
        yield ProblemFile(path, file.hash, heads, file)


def _rows(file: InputFile) -> Iterator[tuple[int, Any]]:
    """(row number, row) of each row that is not blank."""
    form = AppsFormat()
    for block in file.blocks:
        found = read_rows(file.path, block, _MAX_ROW_BYTES, columns_of(form))
        if found.rejects:
            number, reason, detail = found.rejects[0]
            raise _refused(file, block.first_line + number, f"{reason}: {detail}")
        for number, item in found.records if found.records is not None else found.lines or []:
            if isinstance(item, bytes) and (not item or item.isspace()):
                continue
            try:
                yield block.first_line + number, form.decode(item) if isinstance(item, bytes) else form.convert(item)
            except RowRejectedError as error:
                raise _refused(file, block.first_line + number, str(error)) from None


def _refused(file: InputFile, row: int, why: str) -> InputError:
    return InputError(
        f"--data {file.path}, line {row + 1:,}: {why}. Each row must be an APPS problem: `question`, and tests in "
        "`input_output`"
    )


def _head(row: Any, number: int) -> ProblemHead:
    try:
        problem = problem_of(row, number)
    except RowRejectedError as error:
        return ProblemHead(group_of(row), row.difficulty or UNRATED, error.reason)
    return ProblemHead(problem.id, problem.difficulty)
