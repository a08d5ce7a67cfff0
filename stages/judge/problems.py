"""APPS problems with their tests: what a program reads or is called with, and what is expected of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...schemas.errors import RowRejectedError
from ..prep.apps import group_of
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
        RowRejectedError: `no_tests`, `bad_tests` or `too_deep`.
    """
    tests = row.input_output
    try:
        tests = json.loads(tests.strip() or "null") if isinstance(tests, str) else tests
        function, inputs, outputs = ((tests or {}).get(key) or None for key in ("fn_name", "inputs", "outputs"))
        if not inputs and not outputs:
            raise RowRejectedError("no_tests", "`input_output` has no tests")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise ValueError("`inputs` and `outputs` must be lists of one length")
        if not isinstance(function, str | None):
            raise ValueError("`fn_name` must be a string")
        require_shallow(tests, "it")
        as_bytes = tuple((_arguments(one) if function else _text(one)).encode() for one in inputs)
    except RowRejectedError:
        raise
    except (ValueError, AttributeError, RecursionError) as error:
        raise RowRejectedError("bad_tests", f"`input_output`: {error}") from None
    return Problem(
        number,
        group_of(row),
        (row.difficulty or UNRATED)[:_LONGEST_NAME],
        function,
        as_bytes,
        tuple(outputs),
        tuple(row.solutions or ()),
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


def _arguments(value: Any) -> str:
    """The JSON list of a call's arguments: a list, or a text with the JSON of one argument a line."""
    if isinstance(value, str):
        value = [json.loads(line) for line in value.split("\n") if line.strip()]
    if not isinstance(value, list):
        raise ValueError("an input of a call must be the list of its arguments")
    return _json(value)
