"""The data that programs are judged with: its problems, whose tests are read again when they are needed."""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from ...schemas.errors import InputError, RowRejectedError
from ...schemas.files.foreign import open_regular
from ...schemas.units import plural
from ...stages.judge.problems import UNRATED, Problem, problem_of
from ...stages.prep import Options
from ...stages.prep.apps import AppsFormat, group_of
from ..inputs.find import regular
from ..inputs.lines import bounded
from ..store.local import hash_file

_LONGEST = 1 << 30
"""Bytes of a line, most of them tests."""


@dataclass(frozen=True, slots=True)
class ProblemHead:
    """What is kept of a problem while others run."""

    id: str
    difficulty: str
    unusable: str | None = None
    """Why it cannot be judged, such as `no_tests`; None if it can."""


@dataclass(slots=True)
class ProblemFile:
    """A file of APPS rows, one JSON object a line, read once and checked as a whole.

    Raises:
        ConfigError: there is no such file.
        InputError: it is empty, a line is no APPS row or endless, or no row has tests.
    """

    path: Path
    references: bool = False
    """Whether the rows' solutions are read, too."""
    hash: str = ""
    """BLAKE3 of the file."""
    heads: dict[int, ProblemHead] = field(default_factory=dict)
    """Row, from 0 and with blank lines → its problem, usable or not, in order of rows."""

    def __post_init__(self) -> None:
        if not regular(self.path, "--data").st_size:
            raise InputError(f"--data {self.path} is empty")
        self.hash = hash_file(self.path).hash
        self.heads = {number: _head(row, number) for number, row in self._rows()}
        if all(head.unusable for head in self.heads.values()):
            why = ", ".join(sorted({str(head.unusable) for head in self.heads.values()}))
            raise InputError(
                f"--data {self.path}: none of its {plural(len(self.heads), 'row')} can be judged ({why}). Give APPS "
                "rows with tests, in the key `input_output`: inputs and outputs, and `fn_name` where a function is "
                "called"
            )

    def problems(self, rows: Container[int]) -> Iterator[Problem]:
        """The usable problems of these rows, in order of rows; one line of the file is in memory at a time."""
        for number, row in self._rows():
            if number in rows and self.heads[number].unusable is None:
                yield problem_of(row, number)

    def _rows(self) -> Iterator[tuple[int, Any]]:
        form = AppsFormat(Options(prompt_only=not self.references))
        with BufferedReader(open_regular(self.path)) as file:
            for number, line in enumerate(bounded(file, f"--data {self.path}", _LONGEST)):
                if line.isspace():
                    continue
                try:
                    yield number, form.decode(line)
                except RowRejectedError as error:
                    raise InputError(
                        f"--data {self.path}, line {number + 1:,}: {error}. Each line must be an APPS problem as JSON: "
                        f"`question`, tests in `input_output`{', and `solutions`' if self.references else ''}"
                    ) from None


def _head(row: Any, number: int) -> ProblemHead:
    try:
        problem = problem_of(row, number)
    except RowRejectedError as error:
        return ProblemHead(group_of(row), row.difficulty or UNRATED, error.reason)
    return ProblemHead(problem.id, problem.difficulty)
