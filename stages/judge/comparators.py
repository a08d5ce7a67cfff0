"""What became of a program: compares what it printed or returned with what is expected.

What is not done, though the checker published with APPS does: compare sets of words, so that order and repetition do
not matter; compare integers with a tolerance, or numbers rounded to three places; accept any value that equals the
first element of an expected list.
"""

import json
import math
import re
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What became of one sample. The first test that failed decides."""

    passed = "passed"
    """All tests passed."""
    wrong = "wrong"
    """The program ended, and its output or result is not what is expected."""
    runtime_error = "runtime error"
    """An exception, or an exit code other than 0."""
    timeout = "timeout"
    memory = "memory"
    output_limit = "output limit"
    no_code = "no code found"
    """The answer contains no program; nothing ran."""


TOLERANCE = 1e-6
"""A number is close if it differs by at most this, or by at most this share of the expected number."""
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_LONGEST = 400
"""Characters of a number; longer ones are compared as text."""


def same_text(expected: str, output: str) -> bool:
    """Whether a program printed what is expected: the same words in the same order, however they are spaced.

    Numbers need only be close where the expected one has a decimal point.
    """
    words, printed = expected.split(), output.split()
    return len(words) == len(printed) and all(
        word == other or _close_texts(word, other) for word, other in zip(words, printed, strict=True)
    )


def same_value(expected: Any, value: bytes, *, wrapped: bool = False) -> bool:
    """Whether the JSON of a returned value is what is expected; see `equal_values`.

    Args:
        wrapped: the element of an expected list may stand for the list; see `Problem.wrapped`.
    """
    try:
        returned = json.loads(value)
    except (ValueError, RecursionError):
        return False
    return equal_values(expected, returned) or (wrapped and equal_values(expected[0], returned))


def equal_values(expected: Any, value: Any) -> bool:
    """Whether two JSON values are equal. Numbers are, whatever their type (2 and 2.0); true is not 1.

    Numbers need only be close where the expected one is a floating-point number.
    """
    pairs = [(expected, value)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            pairs += zip(one, other, strict=True)
        elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
            pairs += ((one[key], other[key]) for key in one)
        elif _is_number(one) and _is_number(other):
            if one != other and not (isinstance(one, float) and _close(one, other)):
                return False
        elif type(one) is not type(other) or isinstance(one, list | dict) or one != other:
            return False
    return True


def _close_texts(expected: str, printed: str) -> bool:
    if max(len(expected), len(printed)) > _LONGEST:
        return False
    if not _DECIMAL.fullmatch(expected) or not _NUMBER.fullmatch(printed):
        return False
    return _close(float(expected), float(printed))


def _close(expected: float, value: float) -> bool:
    try:
        return math.isclose(expected, value, rel_tol=0.0, abs_tol=max(TOLERANCE, TOLERANCE * abs(expected)))
    except OverflowError:  # an integer beyond any float
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
