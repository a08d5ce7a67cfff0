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


class Rule(StrEnum):
    """The rule that accepted an output, from the strictest to the loosest, for text and for values."""

    exact = "exact"
    """The same lines, apart from whitespace at the ends of lines and blank lines at the end."""
    tokens = "tokens"
    """The same words in the same order, however they are spaced."""
    numbers = "numbers"
    """As `tokens`, and numbers are close where the expected one has a decimal point."""
    value = "value"
    """The value that the call returned equals the expected one; tuples count as lists."""
    close_value = "close value"
    """As `value`, and numbers are close where the expected one has a decimal point."""
    wrapped = "wrapped"
    """The expected value is a list of one element, as in all tests of its problem; the call returned the element."""


TOLERANCE = 1e-6
"""A number is close if it differs by at most this, or by at most this share of the expected number."""
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_LONGEST = 400
"""Characters of a number; longer ones are compared as text."""


def compare_text(expected: str, output: str) -> Rule | None:
    """The strictest rule that accepts an output; None if it is wrong."""
    want, got = _trimmed(expected), _trimmed(output)
    if want == got:
        return Rule.exact
    words, printed = want.split(), got.split()
    if words == printed:
        return Rule.tokens
    return Rule.numbers if _close_words(words, printed) else None


def compare_value(expected: Any, value: bytes, *, wrapped: bool = False) -> Rule | None:
    """The rule that accepts the JSON of a returned value; None if it is wrong.

    Args:
        wrapped: see `Problem.wrapped`.
    """
    try:
        returned = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if equal_values(expected, returned, close=False):
        return Rule.value
    if equal_values(expected, returned, close=True):
        return Rule.close_value
    return Rule.wrapped if wrapped and equal_values(expected[0], returned, close=True) else None


def equal_values(expected: Any, value: Any, *, close: bool) -> bool:
    """Whether two JSON values are equal. Numbers are, whatever their type (2 and 2.0); true is not 1.

    Args:
        close: accept close numbers where the expected one is a floating-point number.
    """
    pairs = [(expected, value)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            pairs += zip(one, other, strict=True)
        elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
            pairs += ((one[key], other[key]) for key in one)
        elif _is_number(one) and _is_number(other):
            if one != other and not (close and isinstance(one, float) and _close(one, other)):
                return False
        elif type(one) is not type(other) or isinstance(one, list | dict) or one != other:
            return False
    return True


def _trimmed(text: str) -> str:
    """The text without whitespace at the ends of its lines and blank lines at its end."""
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(lines)


def _close_words(expected: list[str], printed: list[str]) -> bool:
    return len(expected) == len(printed) and all(
        word == other or _close_texts(word, other) for word, other in zip(expected, printed, strict=True)
    )


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
