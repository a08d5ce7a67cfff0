"""APPS problems with their tests: what a program reads or is called with, and what is expected of it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...schemas.errors import RowRejectedError
from ..prep.apps import group_of
from ..prep.rowjson import require_shallow

UNRATED = "unrated"
"""Stands for a missing difficulty."""
_MAX_DIFFICULTY_LENGTH = 40
"""Characters of a difficulty that are kept: it names a row of a table, and may be anything in hostile data."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of the data."""

    row: int
    """Its row in the data, from 0."""
    id: str
    difficulty: str
    function: str | None
    """The function that the tests call; None if programs read standard input."""
    inputs: tuple[bytes, ...]
    """(T,) What standard input holds in each test; or the JSON list of arguments of each call."""
    expected: tuple[Any, ...]
    """(T,) JSON values. For standard input a text, a list of lines, or a value as Python or JSON writes it."""
    solutions: tuple[str, ...]
    """The data's own programs."""

    @property
    def is_call(self) -> bool:
        """Whether the tests call a function; else programs read standard input."""
        return self.function is not None

    @property
    def is_wrapped(self) -> bool:
        """Whether each expected value of a call is a list of one element.

        Many call-based APPS problems wrap what the call returns in this way, and nothing in a row says so.
        """
        return self.is_call and all(isinstance(value, list) and len(value) == 1 for value in self.expected)


def parse_problem(row: Any, number: int) -> Problem:
    """The problem of a row.

    Args:
        row: an APPS row, decoded by `AppsFormat.decode`.
        number: of the row in the data, from 0.

    Raises:
        RowRejectedError: `no_tests`, `bad_tests` or `too_deep`.
    """
    try:
        function, inputs, outputs = _read_tests(row.input_output)
    except RowRejectedError:
        raise
    except (ValueError, AttributeError, RecursionError) as error:
        raise RowRejectedError("bad_tests", f"`input_output`: {error}") from None
    return Problem(
        row=number,
        id=group_of(row),
        difficulty=(row.difficulty or UNRATED)[:_MAX_DIFFICULTY_LENGTH],
        function=function,
        inputs=inputs,
        expected=tuple(outputs),
        solutions=tuple(row.solutions or ()),
    )


def _read_tests(tests: Any) -> tuple[str | None, tuple[bytes, ...], list[Any]]:
    """The function that the tests call, or None if programs read standard input; (T,) the inputs; and (T,) the expected
    outputs, in the forms of `Problem.inputs` and `Problem.expected`.

    Args:
        tests: an object, or its JSON.

    Raises:
        RowRejectedError: `no_tests` or `too_deep`.
        ValueError, AttributeError, RecursionError: they are damaged.
    """
    if isinstance(tests, str):
        tests = json.loads(tests.strip() or "null")
    tests = tests or {}
    # An empty value is as good as none, as APPS has them.
    function = tests.get("fn_name") or None
    inputs = tests.get("inputs") or None
    outputs = tests.get("outputs") or None
    if not inputs and not outputs:
        raise RowRejectedError("no_tests", "`input_output` has no tests")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("`inputs` and `outputs` must be lists of one length")
    if not isinstance(function, str | None):
        raise ValueError("`fn_name` must be a string")
    require_shallow(tests, name="it")
    write_input = _arguments_json if function else _stdin_text
    return function, tuple(write_input(value).encode() for value in inputs), outputs


def expected_texts(value: Any) -> tuple[str, ...]:
    """The texts that a program may print for one expected output of a problem with standard input.

    A text stands for itself, and a list for its lines. A line that is no text (the tests of some problems were made for
    calls) may be written as Python prints it or as JSON: `True` or `true`.
    """
    lines = value if isinstance(value, list) else [value]
    # As a program prints a value: by print(value), or by print(json.dumps(value)).
    texts = (_join_lines(lines, str), _join_lines(lines, _to_json))
    return tuple(dict.fromkeys(texts))  # one, if both are equal


def _join_lines(lines: Sequence[Any], write: Callable[[Any], str]) -> str:
    """The lines as one text. `write` makes a text of a line that is something else, such as a number."""
    return "\n".join(line.removesuffix("\n") if isinstance(line, str) else write(line) for line in lines)


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _stdin_text(value: Any) -> str:
    """What standard input holds: a text as it is, or the lines of a list, or any other value as its only line."""
    if isinstance(value, str):
        return value
    lines = value if isinstance(value, list) else [value]
    return _join_lines(lines, str) + "\n"


def _arguments_json(value: Any) -> str:
    """The JSON list of a call's arguments: a list, or a text with the JSON of one argument a line."""
    if isinstance(value, str):
        value = [json.loads(line) for line in value.split("\n") if line.strip()]
    if not isinstance(value, list):
        raise ValueError("an input of a call must be the list of its arguments")
    return _to_json(value)
