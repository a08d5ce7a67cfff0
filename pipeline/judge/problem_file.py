"""The data that programs are judged with: its problems, whose tests are read again when they are needed."""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from ...schemas.errors import InputError, RowRejectedError
from ...schemas.files.foreign import open_regular
from ...schemas.units import plural
from ...stages.judge.problems import UNRATED, Problem, parse_problem
from ...stages.prep import Options
from ...stages.prep.apps import AppsFormat, group_of
from ..inputs.find import require_regular
from ..inputs.lines import bounded_lines
from ..store.local import hash_file

_MAX_LINE_BYTES = 1 << 30
"""Limit of one line, most of which is tests."""


@dataclass(frozen=True, slots=True)
class ProblemEntry:
    """What stays in memory of a problem during an evaluation."""

    id: str
    difficulty: str
    unusable: str | None = None
    """Why it cannot be judged, such as `no_tests`; None if it can."""


@dataclass(slots=True)
class ProblemFile:
    """A file of APPS rows, one JSON object a line, read once and checked as a whole.

    The tests of a real data set may take more memory than there is, so the file is read again for them.

    Raises:
        ConfigError: there is no such file.
        InputError: it is empty, a line is no APPS row or endless, or no row has tests.
    """

    path: Path
    references: bool = False
    """Whether the rows' solutions are read, too."""
    hash: str = ""
    """BLAKE3 of the file."""
    entries: dict[int, ProblemEntry] = field(default_factory=dict)
    """Row, from 0 and counting blank lines → its problem, usable or not, in order of rows."""

    def __post_init__(self) -> None:
        """Read and check the whole file."""
        if not require_regular(self.path, "--data").st_size:
            raise InputError(f"--data {self.path} is empty")
        # All is read before the first program runs, so that a bad line is reported at once, not after hours.
        self.hash = hash_file(self.path).hash
        self.entries = {number: _problem_entry(row, number) for number, row in self._read_rows()}
        if all(entry.unusable for entry in self.entries.values()):
            reasons = ", ".join(sorted({str(entry.unusable) for entry in self.entries.values()}))
            raise InputError(
                f"--data {self.path}: none of its {plural(len(self.entries), 'row')} can be judged ({reasons}). Give "
                "APPS rows with tests, in the key `input_output`: inputs and outputs, and `fn_name` where a function "
                "is called"
            )

    def read_problems(self, rows: Container[int]) -> Iterator[Problem]:
        """The usable problems of these rows, in order of rows; one line of the file is in memory at a time."""
        for number, row in self._read_rows():
            if number in rows and self.entries[number].unusable is None:
                yield parse_problem(row, number)

    def _read_rows(self) -> Iterator[tuple[int, Any]]:
        """(number, row) of each line that is not blank."""
        apps = AppsFormat(Options(prompt_only=not self.references))
        with BufferedReader(open_regular(self.path)) as file:
            for number, line in enumerate(bounded_lines(file, f"--data {self.path}", _MAX_LINE_BYTES)):
                if line.isspace():
                    continue
                try:
                    yield number, apps.decode(line)
                except RowRejectedError as error:
                    raise InputError(
                        f"--data {self.path}, line {number + 1:,}: {error}. Each line must be an APPS problem as JSON: "
                        f"`question`, tests in `input_output`{', and `solutions`' if self.references else ''}"
                    ) from None


def _problem_entry(row: Any, number: int) -> ProblemEntry:
    """What is kept of a row, by its number. One that cannot be judged is kept too: samples of it are no mistake."""
    try:
        problem = parse_problem(row, number)
    except RowRejectedError as error:
        return ProblemEntry(id=group_of(row), difficulty=row.difficulty or UNRATED, unusable=error.reason)
    return ProblemEntry(id=problem.id, difficulty=problem.difficulty)
