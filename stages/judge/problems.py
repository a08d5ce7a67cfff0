"""APPS problems with their tests: what a program reads or is called with, and what is expected of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...schemas.errors import RowRejectedError
from ..prep.apps import group_of, solutions_of
from ..prep.rowjson import require_shallow

UNRATED = "unrated"
"""Stands for a missing difficulty."""
_LONGEST_NAME = 40
"""Characters of a difficulty, which names rows of tables."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of the data."""

    row: int
    """Its row in the data, from 0."""
    id: str
    difficulty: str
    question: str
    function: str | None
    """The function that the tests call; None if programs read standard input."""
    inputs: tuple[bytes, ...]
    """(T,) What standard input holds in each test; or the JSON list of arguments of each call."""
    expected: tuple[Any, ...]
    """(T,) JSON values. For standard input a text, a list of lines, or a value as Python or JSON writes it."""
    solutions: tuple[str, ...]
    """The data's own programs."""

    @property
    def wrapped(self) -> bool:
        """Whether each expected value of a call is a list of one element.

        Many call-based APPS problems wrap what the call returns in this way, and nothing in a row says so.
        """
        return self.function is not None and all(isinstance(one, list) and len(one) == 1 for one in self.expected)


def problem_of(row: Any, number: int) -> Problem:
    """The problem of a row.

    Raises:
        RowRejectedError: `no_tests`, or `bad_tests` or `bad_solutions` with the key and what is wrong with it.
    """
    tests = _tests(row.input_output)
    function = tests.get("fn_name") or None
    if function is not None and not isinstance(function, str):
        raise _bad(f"`fn_name` must be a string, got {type(function).__name__}")
    inputs, outputs = tests.get("inputs") or [], tests.get("outputs") or []
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise _bad("`inputs` and `outputs` must be lists")
    if len(inputs) != len(outputs):
        raise _bad(f"{len(inputs)} inputs, but {len(outputs)} outputs")
    if not inputs:
        raise RowRejectedError("no_tests", "`input_output` has no tests")
    as_bytes = [_input(one, at, function) for at, one in enumerate(inputs)]
    return Problem(
        number,
        group_of(row),
        (row.difficulty or UNRATED)[:_LONGEST_NAME],
        row.question,
        function,
        tuple(as_bytes),
        tuple(outputs),
        tuple(solutions_of(row)),
    )


def expected_texts(value: Any) -> tuple[str, ...]:
    """The texts that a program may print for one expected output of a problem with standard input.

    A text stands for itself, and a list for its lines. A line that is no text (the tests of some problems were made for
    calls) may be written as Python prints it or as JSON: `True` or `true`.
    """
    lines = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys((_lines(lines, str), _lines(lines, _json))))


def _lines(lines: Sequence[Any], write: Any) -> str:
    return "\n".join(one.removesuffix("\n") if isinstance(one, str) else write(one) for one in lines)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _lines(value if isinstance(value, list) else [value], str) + "\n"


def _input(value: Any, at: int, function: str | None) -> bytes:
    try:
        return (_arguments(value, at) if function else _text(value)).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise _bad(f"`inputs[{at}]` cannot be written as text: {error}") from None


def _arguments(value: Any, at: int) -> str:
    """The JSON list of a call's arguments: a list, or a text with the JSON of one argument a line."""
    if isinstance(value, str):
        try:
            value = [json.loads(line) for line in value.split("\n") if line.strip()]
        except (ValueError, RecursionError):
            raise _bad(f"`inputs[{at}]` of a call is a text, but not one JSON value a line") from None
    if not isinstance(value, list):
        raise _bad(f"`inputs[{at}]` of a call must be the list of its arguments, got {type(value).__name__}")
    return _json(value)


def _tests(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        if not value.strip():
            raise RowRejectedError("no_tests", "`input_output` is empty")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _bad(f"it is not JSON: {error}") from None
    if value is None:
        raise RowRejectedError("no_tests", "`input_output` is null")
    if not isinstance(value, dict):
        raise _bad(f"it must be an object, got {type(value).__name__}")
    try:
        require_shallow(value, "it")
    except RowRejectedError as error:
        raise _bad(error.detail) from None
    return value


def _bad(what: str) -> RowRejectedError:
    return RowRejectedError("bad_tests", f"`input_output`: {what}")
