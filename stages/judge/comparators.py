"""What became of a program: compares what it printed or returned with what is expected.

The checker published with APPS also accepts what this one refuses: the right words in another order or repeated;
integers within a tolerance; numbers that are equal when rounded to three places; and, in every problem, a value that
equals the first element of an expected list.
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
# A number with a decimal point, and any number.
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_MAX_NUMBER_LENGTH = 400
"""Characters of a number; longer ones are compared as text."""


def same_text(expected: str, output: str) -> bool:
    """Whether a program printed what is expected: the same words in the same order, however they are spaced.

    Numbers need only be close where the expected one has a decimal point.
    """
    expected_words = expected.split()
    printed_words = output.split()
    if len(expected_words) != len(printed_words):
        return False
    pairs = zip(expected_words, printed_words, strict=True)
    return all(printed == word or _are_close_texts(word, printed) for word, printed in pairs)


def same_value(expected: Any, value: bytes, *, is_wrapped: bool = False) -> bool:
    """Whether the JSON of a returned value is what is expected, by `equal_values`.

    Args:
        is_wrapped: whether `expected` is a list of one element that may stand for the list, as in many problems of
            APPS.
    """
    try:
        returned = json.loads(value)
    except (ValueError, RecursionError):  # a program can write anything to the descriptor of the value
        return False
    if equal_values(expected, returned):
        return True
    return is_wrapped and equal_values(expected[0], returned)


def equal_values(expected: Any, value: Any) -> bool:
    """Whether two JSON values are equal. Numbers are, whatever their type (2 and 2.0); true is not 1.

    Numbers need only be close where the expected one is a floating-point number.
    """
    # A list of pairs in place of recursion: a hostile value may be nested deeper than Python's stack.
    pairs = [(expected, value)]
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pairs += zip(left, right, strict=True)
        elif isinstance(left, dict) and isinstance(right, dict):
            if left.keys() != right.keys():
                return False
            pairs += ((left[key], right[key]) for key in left)
        elif _is_number(left) and _is_number(right):
            if left != right and not (isinstance(left, float) and _is_close(left, right)):
                return False
        elif type(left) is not type(right) or left != right:
            return False
    return True


def _are_close_texts(expected: str, printed: str) -> bool:
    """Whether both words are numbers, the expected one has a decimal point, and they are close."""
    if max(len(expected), len(printed)) > _MAX_NUMBER_LENGTH:
        return False
    if not _DECIMAL.fullmatch(expected) or not _NUMBER.fullmatch(printed):
        return False
    return _is_close(float(expected), float(printed))


def _is_close(expected: float, value: float) -> bool:
    try:
        # Not `rel_tol`, which is a share of the larger of both numbers, not of the expected one.
        return math.isclose(expected, value, rel_tol=0.0, abs_tol=max(TOLERANCE, TOLERANCE * abs(expected)))
    except OverflowError:  # an integer beyond any float
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)  # a bool is an int in Python
