"""APPS: programming problems with many solutions each. One example per (problem, solution) pair."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from ...schemas.errors import RowFilteredError, RowRejectedError
from ...schemas.fingerprint import short_hash
from ...schemas.rows import Example
from .base import Format
from .columns import Column, Columns


class _Tests(msgspec.Struct):
    """What is read of tests. Values may be megabytes long, and have numbers that are longer than Python reads."""

    fn_name: Any = None
    inputs: msgspec.Raw = msgspec.Raw(b"null")


_decode_tests = msgspec.json.Decoder(_Tests).decode
_TICKS = re.compile("`{3,}")
_SHORT_TESTS = 256
"""Characters of tests that are decoded without a search for `fn_name`, which would take as long."""


class AppsFormat(Format):
    """Problems in the public APPS fields.

    `sub` is the solution's index in the row's own list, -1 with `prompt_only`. `group` is the problem's id,
    or a digest of its question when it has none. Examples of a problem share one list as their prompt, so no code may
    change it.
    """

    name = "apps"
    columns: ClassVar[Columns] = {
        "question": Column(str, required=True),
        "id": Column(int | str | None),
        "solutions": Column(list[str] | None, cell="a JSON list of strings"),
        "input_output": Column(Any),  # an object, or its JSON; "" or null if there are no tests; may be megabytes long
        "difficulty": Column(str | None),
        "starter_code": Column(str | None),
    }
    values = "a text, beside `solutions` and `input_output` or `difficulty`"
    default_style = "chat"

    def read_columns(self) -> dict[str, str]:
        """The name of each column that is read, by field; without solutions, if only prompts are wanted."""
        names = super().read_columns()
        if self.options.prompt_only:
            names.pop("solutions", None)
        return names

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is a problem with its solutions, for detection."""
        has_solutions = isinstance(row.get("solutions"), str | list)
        # A `question` alone is a column of many data sets.
        is_problem = has_solutions and ("input_output" in row or "difficulty" in row)
        return is_problem and super().fits(row)

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """One example for each solution, or one without a completion with `prompt_only`. Rejects `empty`; filters
        `no_solution`.

        Solutions that are blank, or equal an earlier one but for whitespace at the end, are skipped, and those beyond
        `max_solutions`; they are counted if the row has others.
        """
        if not row.question or row.question.isspace():
            raise RowRejectedError("empty", "`question` is empty")
        group = group_of(row)
        prompt = [{"role": "user", "content": chat_prompt(row)}]
        if self.options.prompt_only:
            return [Example(line, sub=-1, group=group, prompt=prompt, completion=[], text=None)]
        kept = self._chosen(row.solutions or [], skipped)
        if not kept:
            raise RowFilteredError("no_solution")
        return [
            Example(
                line,
                sub=sub,
                group=group,
                prompt=prompt,
                completion=[{"role": "assistant", "content": fenced(text)}],
                text=None,
            )
            for sub, text in kept
        ]

    def _chosen(self, solutions: list[str], skipped: Counter[str]) -> list[tuple[int, str]]:
        """(index in the row's list, solution) of the solutions to keep, without whitespace at their ends."""
        # By their text, so that a later equal one is found; in the order of the row.
        index_of_solution: dict[str, int] = {}
        left_out: Counter[str] = Counter()
        for index, solution in enumerate(map(str.rstrip, solutions)):
            if not solution:
                left_out["empty"] += 1
            elif solution in index_of_solution:
                left_out["duplicate"] += 1
            else:
                index_of_solution[solution] = index
        limit = self.options.max_solutions or len(index_of_solution)
        left_out["over_limit"] = max(len(index_of_solution) - limit, 0)
        # A row without any solution is filtered as a whole, and counted there.
        if index_of_solution:
            skipped.update(+left_out)  # the plus sign drops counts of 0
        return [(index, solution) for solution, index in index_of_solution.items()][:limit]


def group_of(row: Any) -> str:
    """The problem's id as text, or 16 hexadecimal digits of a hash of its question."""
    # Without an id, rows of one problem are known by their question, so that a held-out split keeps them together.
    if row.id is None or row.id == "":
        return short_hash(row.question.encode(), size=8)
    return str(row.id)


def function_of(row: Any) -> str | None:
    """The name of the function that the tests call; "" if they use standard input and output; None if the row does not
    say which, or its tests cannot be read.

    Only the name is parsed, and of long tests only if `fn_name` occurs in them, so that they cost nothing. Problems
    with starter code but tests of plain input and output (many in APPS's test split) use standard input, as in APPS.
    """
    tests = row.input_output
    if isinstance(tests, str):
        if len(tests) > _SHORT_TESTS and "fn_name" not in tests:
            return ""
        try:
            decoded = _decode_tests(tests)
        except (msgspec.DecodeError, RecursionError):
            return None
        name = decoded.fn_name
        has_inputs = bytes(decoded.inputs) != b"null"
    elif isinstance(tests, dict):
        name = tests.get("fn_name")
        has_inputs = tests.get("inputs") is not None
    else:
        return None
    if isinstance(name, str) and name:
        return name
    return "" if has_inputs else None


def fenced(code: str) -> str:
    """Code in a Markdown fence, longer than any run of backticks in it. `code` must not end in a newline."""
    longest = 2  # Markdown needs a fence of three backticks at least
    # Searching for one character is several times faster than for three, and most programs have no backtick.
    if "`" in code:
        longest = max(map(len, _TICKS.findall(code)), default=longest)
    fence = "`" * (longest + 1)
    return f"{fence}python\n{code}\n{fence}"


def chat_prompt(row: Any) -> str:
    """The user's turn: the question, the starter code if any, and how the program will be called."""
    # Only empty lines are taken off the beginning: spaces there may indent the first line.
    parts = [row.question.rstrip().lstrip("\r\n")]
    starter = (row.starter_code or "").rstrip().lstrip("\r\n")
    if starter:
        parts.append(f"Starter code:\n\n{fenced(starter)}")
    # A name: the tests call it. "": they use standard input. None: the row does not say how the program is tested.
    function = function_of(row)
    if function:
        parts.append(f"Your Python code will be tested by calling `{function}`: return the answer, do not print it.")
    elif function == "":
        parts.append("Write a Python program that reads standard input and prints the answer to standard output.")
    elif starter:
        parts.append("Complete the starter code in Python.")
    else:
        parts.append("Solve this in Python.")
    return "\n\n".join(parts)
